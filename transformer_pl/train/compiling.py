"""Compiled layers (`trainer.compile=on`)."""

from functools import partial
from typing import Any

import torch
from torch import nn

from transformer_pl.model import Transformer
from transformer_pl.runtime.terminal import plain


def compile_layers(model: Transformer) -> None:
    """Compile each layer in place, for all lengths: names of weights stay, and dropout draws its masks as before.

    Only training is compiled, and a part that torch cannot compile, such as an LSTM, runs as it is between compiled
    ones. Where compiling fails, all layers run as they are from then on, and one line says why.
    """
    torch._dynamo.config.recompile_limit = 64  # a component may hold a different number in each layer
    torch._functorch.config.force_non_lazy_backward_lowering = True  # a backward pass fails to compile in the forward
    torch.fx.experimental._config.use_duck_shape = False  # lengths may be equal by chance, which is no rule
    layers = dict.fromkeys((*model.encoder, *model.decoder))  # a shared layer once
    failures: list[str] = []
    for layer in layers:
        layer.compile(dynamic=True, options={"fallback_random": True})
        layer._compiled_call_impl = partial(_or_eagerly, layer, layer._compiled_call_impl, failures)


def _or_eagerly(layer: nn.Module, compiled: Any, failures: list[str], *arguments: Any, **options: Any) -> Any:
    """What a compiled layer returns in training. failures: why compiling has failed, of all layers of the model."""
    if layer.training and not failures:
        try:
            return compiled(*arguments, **options)
        except Exception as error:  # of any kind: an error of the layer's own comes again without compiling
            failures.append(f"{type(error).__name__}: {error}".strip().splitlines()[0])
            print(plain(f"layers are not compiled: {failures[0]}"), flush=True)
    return layer._call_impl(*arguments, **options)
