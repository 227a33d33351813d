"""The dry run: a small model with the given components runs before anything starts, so that mistakes show at once."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transformer_pl.check.small_model import small_model
from transformer_pl.config import Model, Sizes, custom_components
from transformer_pl.config.components import before_options, component_names, import_component, named
from transformer_pl.model import Transformer
from transformer_pl.model.kernels import set_up_gpu
from transformer_pl.model.loss import smoothed_loss
from transformer_pl.model.slots import Auxiliary, call_signatures, modules_with
from transformer_pl.runtime.errors import InputError, described

LARGER = (
    "; if layers pass on a state of another shape, let model.residual do it; if they pass on anything else, let "
    "model.architecture"
)
MODULE = (nn.Module, "torch.nn.Module")


def dry_run(config: Sizes) -> str:
    """Run a model with one layer per stack, forward and backward, and check what each component returns.

    Returns the device on which it runs: `cpu`, or `cuda` for a component that does not run on a CPU. Raises an
    InputError where a component cannot be called or returns something else than it must. An error of the component's
    own is passed on.
    """
    check_classes(config)
    try:
        return _device(config.with_layers(1))
    except (TypeError, AttributeError, NotImplementedError) as error:  # usually a method or an argument is missing
        expected = "; ".join(
            f"model.{slot} is built as {_construction(slot)} and called as {_call(slot)}"
            for slot in custom_components(config)
        )
        raise InputError(f"{component_names(config)}: must run, but fails at {described(error)}; {expected}") from None


def _construction(slot: str) -> str:
    return "CLASS(config, site)" if before_options(f"model.{slot}") == 2 else "CLASS(config)"


def _call(slot: str) -> str:
    """How a component of a slot is called, such as `component(x, sublayer) and component.final_norm()`."""
    methods = call_signatures(f"model.{slot}").items()
    return " and ".join(f"component.{name}{arguments}".replace(".__call__", "") for name, arguments in methods)


def check_classes(config: Model | Sizes) -> None:
    """Raise an InputError for components that are no modules of torch, and an architecture that is no `Transformer`."""
    messages = []
    for slot, component in custom_components(config).items():
        component_class = import_component(component.path)
        base, name = (Transformer, "transformer_pl.model.Transformer") if slot == "architecture" else MODULE
        if not issubclass(component_class, base):
            rule = f"must be a {name}, but is another class; derive one"
            messages.append(f"{named(slot, component_class)}: {rule}")
    if messages:
        raise InputError(*messages)


def _device(config: Sizes) -> str:
    """The device on which the model runs."""
    try:
        _run(config, "cpu")
        return "cpu"
    except Exception:
        if not torch.cuda.is_available():
            raise
    set_up_gpu()
    _run(config, "cuda")
    return "cuda"


def _run(config: Sizes, device: str) -> None:
    """Run the model forward and backward. Components must return the shape and the type of their slot."""
    with torch.random.fork_rng(devices=[]), torch.device(device):
        _, model, source, target = small_model(config)
        embedding = model.embedding
        for site, ids in (("encoder", source), ("decoder", target))[0 if config.N_encoder else 1 :]:
            shape = (*ids.shape, config.d_model)
            _check("embedding", type(embedding), embedding.embed(ids, site), shape, "from embed")
        for slot, component in custom_components(config).items():
            for module in model.modules():
                if type(module) is import_component(component.path):
                    module.register_forward_hook(partial(_check_slot, slot))
        if "residual" in custom_components(config):
            _check_residuals(model, config.d_model)
        states = model.states(source, target)
        auxiliary = [(module, dict(module.auxiliary)) for module in modules_with(model, Auxiliary)]
        logits = embedding.logits(states)
        _check("embedding", type(embedding), logits, (*target.shape, config.vocab_size), "from logits")
        for module, losses in auxiliary:
            if any(module.auxiliary[name] is not loss for name, loss in losses.items()):
                rule = "must set `auxiliary` in embed, but does in logits, which is called for parts of a batch"
                raise InputError(f"{named('embedding', type(embedding))}: {rule}")
        smoothed = smoothed_loss(embedding, states, target, eps_ls=0.1)  # as in training: a few sentences at a time
        (smoothed + sum(model.auxiliary().values())).backward()


def _check_slot(slot: str, component: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """A forward hook: the output must have the shape of the input x, or (B, h, Lq, d_v) if it is an attention's.

    A residual's output may have a shape of its own, which `_check_residuals` allows for; an architecture's is logits.
    """
    if slot in ("residual", "architecture"):
        return
    x = inputs[0]
    shape = tuple(x.shape)
    if slot == "attention":
        V = inputs[2]
        shape = (*x.shape[:-1], V.shape[-1])
    _check(slot, type(component), output, shape, f"where it is given {tuple(x.shape)}", LARGER)


def _check_residuals(model: Transformer, d_model: int) -> None:
    """Let hooks check that residuals give sub-layers, and return by their final norm, (B, L, d_model) of float32.

    Between two residuals the state may have a shape of its own.
    """

    def given(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        check(inputs[0], "give its sub-layer")

    def returned(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        check(output, "return with final_norm")

    def check(x: Any, must: str) -> None:
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != d_model or x.dtype != torch.float32:
            raise InputError(f"{residual}: must {must} (B, L, {d_model}) of float32, but {_described(x)}")

    layers: list[Any] = [*model.encoder, *model.decoder]
    residual = named("residual", type(layers[0].residual[0]))
    for layer in layers:
        for name, sublayer in layer.named_children():
            if name != "residual":
                sublayer.register_forward_pre_hook(given)
    for norm in (model.encoder_norm, model.decoder_norm):
        if norm is not None:  # there is an encoder
            norm.register_forward_hook(returned)


def _described(output: Any) -> str:
    """A tensor by its shape and type, anything else by its class."""
    return f"{tuple(output.shape)} of {output.dtype}" if isinstance(output, Tensor) else type(output).__name__


def _check(slot: str, component: type, output: Any, shape: tuple[int, ...], where: str, remedy: str = "") -> None:
    """Raise an InputError unless the output of a component is a float32 tensor of this shape.

    slot and component: what the message names. where: from which method, or for which input. remedy: its end.
    """
    if not isinstance(output, Tensor) or output.shape != shape or output.dtype != torch.float32:
        returned = _described(output)
        raise InputError(
            f"{named(slot, component)}: must return {shape} of float32 {where}, but returns {returned}{remedy}"
        )
