"""Run every check of a model's components, once for each version of their code; what passed is kept in the runs folder.

The components run in a child process, because they may hang, crash or exit.
"""

import importlib.metadata
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from shlex import join
from typing import Any, Literal

from transformer_pl.config import Component, Config, Model, custom_components, sizes
from transformer_pl.config.component_sources import source_digests
from transformer_pl.config.components import build, component_names, import_component
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError, collect_errors, described
from transformer_pl.runtime.files import read_json, write_json
from transformer_pl.runtime.isolated import isolated

ENOUGH_SUBWORDS = 1000  # for all but embeddings: no other property depends on the vocabulary
CHECKS_REVISION = 4  # raised when a check becomes stricter: then every component is checked again

CAUSES = {  # of each property, in the order in which they are measured: what usually breaks it
    "the_logits_are_finite": "a division by zero, a root or logarithm of zero, or a softmax over no keys",
    "the_future_is_hidden": "`mask` is not applied or is inverted (True: may look), or positions are mixed",
    "padding_changes_nothing": "`mask.keys` is not applied or is inverted (True: a token), or sentences are mixed",
    "every_token_is_read": "`mask` hides too much, or `x` or the output of `sublayer` is left out",
    "every_weight_gets_a_gradient": "an unused parameter, `detach`, a choice without gradient, an infinite derivative",
    "decoding_step_by_step_equals_decoding_at_once": "`start` is ignored, or `cache` misses what later steps need "
    "(where that is the whole prefix, write `incremental = False`)",
    "weights_are_what_attention_computes": "`weights` misses a mask, a bias or `start` that `forward` has",
    "evaluation_repeats": "dropout or noise that `eval()` does not switch off, or a state that is kept",
    "saved_weights_are_all": "a tensor in a plain attribute in place of a buffer or a parameter",
    "it_runs_on_the_device_of_its_input": "a tensor in a plain attribute, or made without `device=x.device`",
    "bfloat16_is_close": "long sums or positions in bfloat16, or a mask value that float32 alone can hold",
}

Exemptions = dict[str, dict[str, str]]  # by the path of a component: the reasons by the names of properties


def check_model(model: Model, vocab_size: int, runs: Path) -> Exemptions:
    """Check the components of a model that are not the paper's; return the properties that they are exempt from.

    What passed is kept in `runs/checks`, so that it is checked once for each source, sizes and version of torch.
    Raises an InputError for each property that is broken, and for a component that does not run.
    """
    if not custom_components(model):
        return {}
    path = runs / "checks" / f"{_digest(model, vocab_size)}.json"
    if passed := read_json(path, dict[Literal["exempt"], Exemptions]):
        return passed["exempt"]
    exemptions = isolated(component_names(model), _checked, model, vocab_size)
    with suppress(OSError):  # it is checked again where nothing can be written
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"exempt": exemptions})
    return exemptions


def check_models(configs: Iterable[Config], runs: Path) -> None:
    """Check the components of several configs. Raises one InputError for all that is broken."""
    different = {}  # configs that differ in what a check depends on
    for config in configs:
        different[sizes(config.model, config.data.vocab_size).with_layers(1)._replace(p_drop=0.0)] = config
    collect_errors(lambda key: check_model(different[key].model, different[key].data.vocab_size, runs), different)


def exempt(component: Component) -> dict[str, str]:
    """The properties that a component breaks on purpose, each with the reason: the attribute `exempt` of its class."""
    from transformer_pl.model.slots import Exempt  # imports torch, as the component does

    component_class: Any = import_component(component.path)
    reasons = component_class.exempt if isinstance(component_class, Exempt) else {}
    if not isinstance(reasons, dict) or not all(
        name in CAUSES and isinstance(why, str) and why.strip() for name, why in reasons.items()
    ):
        law = f"must give a reason for each property that it names, of {', '.join(CAUSES)}"
        raise InputError(f"{component.path}.exempt = {reasons!r}: {law}")
    return reasons


# ---------------------------------------------------------------------------------------------------------------------
# In the child


def _checked(model: Model, vocab_size: int) -> Exemptions:
    """The exemptions of a model's components. Raises an InputError for each property that is broken."""
    broken = {name: how for name, how in measured_properties(model, vocab_size).items() if how}
    if broken:
        raise InputError(*(_message(model, name, how) for name, how in broken.items()))
    reasons = {component.path: exempt(component) for component in custom_components(model).values()}
    return {path: exemptions for path, exemptions in reasons.items() if exemptions}


def measured_properties(model: Model, vocab_size: int) -> dict[str, str | None]:
    """How each property is broken, by its name; None where it holds.

    The properties that a component is exempt from are left out. Where the logits are not finite, nothing else can be
    measured. Raises an InputError for a component that cannot be called or returns something else than it must. An
    error of the component's own, in a pass of a model with one layer, is passed on.
    """
    import torch

    from transformer_pl.check import properties
    from transformer_pl.check.dry_run import dry_run
    from transformer_pl.check.small_model import small_model

    if "embedding" not in custom_components(model):
        vocab_size = min(vocab_size, ENOUGH_SUBWORDS)
    config = sizes(model, vocab_size)
    device = dry_run(config)
    config = config.with_layers(2)._replace(p_drop=0.0)
    gpus = [] if device == "cpu" else [torch.cuda.current_device()]
    exempted = {name for component in custom_components(model).values() for name in exempt(component)}
    measured: dict[str, str | None] = {}
    for name in CAUSES:
        if name in exempted:
            continue
        with torch.random.fork_rng(gpus), torch.device(device):
            try:
                measured[name] = getattr(properties, name)(small_model(config))
            except Exception as error:  # the others are measured all the same
                measured[name] = f"it fails at {described(error)}"
        if measured[name] and name == "the_logits_are_finite":
            break
    return measured


def frozen_weights(model: Model, vocab_size: int) -> dict[str, int]:
    """The weights of a model with one layer a stack that require no gradient, each with its size."""
    config = sizes(model, vocab_size).with_layers(1)
    weights = build(config.architecture, config).named_parameters()
    return {name: weight.numel() for name, weight in weights if not weight.requires_grad}


def _message(model: Model, name: str, how: str) -> str:
    """The error for a broken property, with what usually breaks it and the command that measures it again."""
    components = custom_components(model)
    first_slot, first_component = next(iter(components.items()))
    words = [f"model.{slot}={component.path}" for slot, component in components.items() if slot != first_slot]
    for slot, component in components.items():
        words += [f"model.{slot}.{key}={value}" for key, value in component.options.items()]
    words += ["--slot", first_slot] + ([] if model.N_encoder != 0 else ["--scale", "demo-lm"])  # of a language model
    command = join(["python", "-m", "transformer_pl.check", first_component.path, *words])
    return (
        f"{component_names(model)}: must keep the property {name}, but {how}; usual cause: {CAUSES[name]}; to check it "
        f"again run `{command}`"
        f'; to declare an exception write `exempt = {{"{name}": "the reason"}}` in the class'
    )


# ---------------------------------------------------------------------------------------------------------------------


def _digest(model: Model, vocab_size: int) -> str:
    """What a result depends on, as 12 hexadecimal digits."""
    inputs: dict[str, Any] = {
        "sizes": sizes(model, vocab_size).with_layers(1)._replace(p_drop=0)._asdict(),
        "sources": source_digests(custom_components(model)),
        "revision": CHECKS_REVISION,
        "torch": importlib.metadata.version("torch"),  # without importing it
    }
    return value_digest(inputs, default=Component.model_dump)
