"""Compiled layers and loss, which are compared with eager ones at the first batch of a training."""

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch._inductor import list_options

from transformer_pl.data.batches import Batch
from transformer_pl.model.loss import SmoothedCrossEntropy
from transformer_pl.runtime.terminal import plain
from transformer_pl.train.passes import NormalNoise, apart, undone

OF_COMPILED = 0.15  # how much bfloat16's rounding may change the gradients of compiled layers; other masks change more


class CompiledLayers(L.Callback):
    """Compiles the layers and the loss when training computes them: each class of layers once, for all lengths.

    A component that cannot be compiled, such as an LSTM, runs as it is between compiled parts. Dropout draws the same
    masks as without compiling, so that numbers differ in their last digits only. (Torch's own compiled dropout repeats
    parts of its masks on a GPU: pytorch issue 198333, of 2.13.) This is compared at the first batch.
    """

    def __init__(self, module: Any, on_gpu: bool = False):
        self.module, self.is_used, self._is_tried = module, True, False
        self._masks = "align_random_eager" if on_gpu and "align_random_eager" in list_options() else "fallback_random"
        torch._dynamo.config.recompile_limit = 64  # a component may hold a different number in each layer
        torch.fx.experimental._config.use_duck_shape = False  # lengths may be equal by chance, which is no rule

    def compile_at(self, batch: Batch) -> None:
        """Compile at the first batch, unless that fails or gives it other gradients than without compiling."""
        if self._is_tried:
            return
        self._is_tried, module = True, self.module
        with undone(module), NormalNoise() as noise:
            eager = self._gradients(batch)
        masks = "fallback_random" if noise.is_drawn else self._masks  # the other would be uniform: pytorch issue 193938
        layers = dict.fromkeys((*module.model.encoder, *module.model.decoder))  # a shared layer once
        for layer in layers:
            layer.compile(dynamic=True, options={masks: True})
        if isinstance(module.loss, SmoothedCrossEntropy):
            module.loss.compile()
        try:
            with undone(module):
                distance = apart(self._gradients(batch), eager)
            why = f"the gradients of a batch are {distance:.2g} apart" if not distance <= OF_COMPILED else None
        except Exception as error:  # of any kind: without compiling, the pass has succeeded
            why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        if why:
            print(plain(f"layers are not compiled: {why}"), flush=True)
            self.is_used = False
            for layer in layers:
                layer._compiled_call_impl = None
            if isinstance(module.loss, SmoothedCrossEntropy):
                module.loss.compiled = None

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """The gradients of a micro-batch. They are not added to those of the weights, which ranks would exchange."""
        loss = self.module.losses(batch).loss
        weights = [weight for weight in self.module.parameters() if weight.requires_grad]
        with torch.autocast(batch.source.device.type, enabled=False):
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        return [gradient for gradient in gradients if gradient is not None]

    def on_validation_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.is_used:  # torch would compile again for other lengths, no gradients, and caches
            torch.compiler.set_stance("force_eager")

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.is_used:
            torch.compiler.set_stance("default")
