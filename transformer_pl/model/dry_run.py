"""A small model that is built around components: it runs before anything starts, so that mistakes show at once."""

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transformer_pl.config import PAD, Model, Sizes, custom_components
from transformer_pl.config.components import before_options, build, carrying, component_names, import_component, named
from transformer_pl.config.option_files import file_contents
from transformer_pl.model import Transformer
from transformer_pl.model.kernels import set_up_gpu
from transformer_pl.model.loss import smoothed_loss
from transformer_pl.model.slots import Auxiliary, Carrying, auxiliary_losses, call_signatures, parts_with
from transformer_pl.runtime.errors import InputError, described

MODULE = (nn.Module, "torch.nn.Module")
SPECIAL_TOKENS = 4  # ids below are special tokens
SENTENCES, SOURCE_LENGTH, TARGET_LENGTH = 3, 23, 19  # longer than 16, which is a usual block of positions
SEED = 1


class Subject(NamedTuple):
    """A model to measure, and sentences for it."""

    config: Sizes
    model: Transformer
    source: Tensor  # (SENTENCES, SOURCE_LENGTH) ids; the second sentence is padded
    target: Tensor  # (SENTENCES, TARGET_LENGTH) ids; the third sentence is padded


def small_model(config: Sizes, seed: int = SEED) -> Subject:
    """A model with these sizes and random sentences."""
    torch.manual_seed(seed)
    model = build(config.architecture, config)
    move_zeros(model)
    source, target = (
        torch.randint(min(SPECIAL_TOKENS, config.vocab_size - 1), config.vocab_size, (SENTENCES, length))
        for length in (SOURCE_LENGTH, TARGET_LENGTH)
    )
    source[1, SOURCE_LENGTH - 6 :] = PAD
    target[2, TARGET_LENGTH - 5 :] = PAD
    return Subject(config, model, source, target)


@torch.no_grad()
def move_zeros(module: nn.Module) -> None:
    """Replace the weights that are zero by random numbers."""
    for parameter in module.parameters():
        parameter[parameter == 0] = 0.1 * torch.randn(int((parameter == 0).sum()))


def can_be_built(config: Sizes) -> bool:
    """Whether a model has these sizes: an architecture that loads weights, for one, has those of its file alone."""
    try:
        with torch.random.fork_rng(devices=[]):
            build(config.architecture, config)
    except Exception:
        return False
    return True


def without_files(config: Sizes) -> Sizes:
    """The same sizes; where no model has them because of its weights, without the files that its architecture names."""
    own = config.architecture
    files = file_contents(own, before_options("model.architecture")) if not can_be_built(config) else {}
    options = {name: value for name, value in own.options.items() if name not in files}
    without = config._replace(architecture=own.model_copy(update={"options": options}))
    return without if files and can_be_built(without) else config


def dry_run(config: Sizes) -> str:
    """Run a model forward and backward: with one layer per stack, or as it is where it cannot be built with one.

    Returns the device on which it runs: `cpu`, or `cuda` for a component that does not run on a CPU. Raises an
    InputError where a component cannot be called, or where what it returns does not fit.
    """
    check_classes(config)
    if "architecture" in custom_components(config) and carrying(config):
        _check_carrying(config)
    if "architecture" not in custom_components(config) or can_be_built(config.with_layers(1)):
        config = config.with_layers(1)
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        try:
            _run(config, device)
            return device
        except Exception as error:
            failure = error
    if isinstance(failure, InputError):
        raise failure
    calls = "; ".join(f"model.{slot} is called as {_call(slot)}" for slot in custom_components(config))
    raise InputError(f"{component_names(config)}: must run, but fails at {described(failure)}; {calls}")


def _call(slot: str) -> str:
    """How a component of a slot is called, such as `component(x, sublayer) and component.final_norm()`."""
    built = "CLASS(config, site)" if before_options(f"model.{slot}") == 2 else "CLASS(config)"
    methods = call_signatures(f"model.{slot}").items()
    return " and ".join(f"{built}.{name}{arguments}".replace(".__call__", "") for name, arguments in methods)


def check_classes(config: Model | Sizes) -> None:
    """Raise an InputError for components that are no modules of torch, and an architecture that is no `Transformer`."""
    messages = []
    for slot, component in custom_components(config).items():
        component_class = import_component(component.path)
        base, name = (Transformer, "transformer_pl.model.Transformer") if slot == "architecture" else MODULE
        if not issubclass(component_class, base):
            messages.append(f"{named(slot, component_class)}: must be a {name}, but is another class; derive one")
    if messages:
        raise InputError(*messages)


def _run(config: Sizes, device: str) -> None:
    """Run the model forward and backward, and look at what it returns."""
    if device == "cuda":
        set_up_gpu()
    with torch.random.fork_rng(devices=[]), torch.device(device):
        _, model, source, target = small_model(config)
        names = auxiliary_losses(model).keys()
        states = model.states(source, target)
        check_names(component_names(config), names, model)
        auxiliary = [(module, dict(module.auxiliary)) for module in parts_with(Auxiliary, model)]
        logits, shape = model.embedding.logits(states), (*target.shape, config.vocab_size)
        if logits.shape != shape or logits.dtype != torch.float32:
            rule = f"must lead to logits {shape} of float32, but leads to {tuple(logits.shape)} of {logits.dtype}"
            raise InputError(f"{component_names(config)}: {rule}")
        if any(module.auxiliary[name] is not loss for module, losses in auxiliary for name, loss in losses.items()):
            rule = "must set `auxiliary` in embed, but does in logits, which is called for parts of a batch"
            raise InputError(f"{named('embedding', type(model.embedding))}: {rule}")
        loss = smoothed_loss(model.embedding, states, target, eps_ls=0.1)  # as in training: some sentences at a time
        (loss + sum(auxiliary_losses(model).values())).backward()


def _check_carrying(config: Sizes) -> None:
    """Raise an InputError where an architecture has a part that carries a state in several places: it has one state."""
    with torch.random.fork_rng(devices=[]):
        model = build(config.architecture, config)
    everywhere = [part for _, part in model.named_modules(remove_duplicate=False) if isinstance(part, Carrying)]
    if len(everywhere) > len([*parts_with(Carrying, model)]):
        rule = f"must not share {type(everywhere[0]).__qualname__} between layers, as it carries one state"
        raise InputError(f"model.architecture = {config.architecture.path}: {rule}; choose another architecture")


def check_names(what: str, names: Collection[str], *parts: Any) -> None:
    """Raise an InputError unless the auxiliary losses of these parts still have the names that they began with."""
    if (after := auxiliary_losses(*parts).keys()) != names:
        rule = f"must name the losses of `auxiliary` in its constructor, but begins with {sorted(names)}"
        raise InputError(f"{what}: {rule}, and has {sorted(after)} after a pass; set it there, to zeros")
