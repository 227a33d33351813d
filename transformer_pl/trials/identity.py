"""The identity of a trial, which keys enter it, and how two configs differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformer_pl.config import (
    COMPONENTS,
    CORPUS,
    KEYS,
    SIZE_NAMES,
    STACKS,
    Callback,
    Component,
    Config,
    custom_components_by_key,
    effective_sizes,
    without_section,
)
from transformer_pl.config.component_sources import Code
from transformer_pl.config.components import before_options, with_components
from transformer_pl.config.option_files import file_contents, missing_files
from transformer_pl.runtime.digests import value_digest
from transformer_pl.task import training_fingerprint

# These keys of the trainer change a result. precision changes its numbers. So does val_every, because a validation
# draws a number from the generator of a CPU's dropout, and decode.average averages over validations. val_sample
# changes what is measured.
RESULT_TRAINER_KEYS = ("trainer.precision", "trainer.val_every", "trainer.val_sample")
# And these where a callback counts, whose hooks see parts of batches, processes and log lines.
SEEN_BY_CALLBACKS = ("trainer.accumulate", "trainer.devices", "trainer.num_nodes", "trainer.log_every")
CORE_REVISION = 5  # raised whenever the core's numerics change: older results are then no longer reused


def config_difference(config: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with the value of each; None where a key is not set."""
    return mapping_difference(config.flat(), base.flat())


def mapping_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys in which two mappings differ, with both values; None where a key is missing."""
    return {
        key: (ours.get(key), theirs.get(key))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    }


def describe_difference(config: Config, base: Config) -> str:
    """How a config differs from the base, in short: `h=4`, `N=2 position=LearnedPosition`; `base` where it does not."""
    changes = []
    for key, (value, _) in config_difference(config, base).items():
        if key in _HUB_KEYS and value is None:
            continue
        if key in _CORPUS_NAME_KEYS:
            corpus = f"data={config.data.short_name}"
            if corpus not in changes:
                changes.append(corpus)
        elif key == "trainer.callbacks":
            ours, theirs = identity_callbacks(config), identity_callbacks(base)
            if ours != theirs:
                changes.append(f"callbacks={'+'.join(map(_short, ours)) or None}")
        elif key != "seed" and _changes_results(key, config):
            is_class = key in (*COMPONENTS, "data.task")
            shown = str(value).rpartition(".")[2] if is_class else value
            changes.append(f"{without_section(key)}={'+'.join(config.data.further) if key == 'data.sets' else shown}")
    return " ".join(changes) or "base"


def identity_callbacks(config: Config) -> list[Callback]:
    """The callbacks that are part of the identity: all but those that only watch (in_identity: false)."""
    return [callback for callback in config.trainer.callbacks if callback.in_identity]


def _changes_results(key: str, config: Config) -> bool:
    """Whether a key changes results, other than by the callbacks that it names."""
    counting = (*RESULT_TRAINER_KEYS, *(SEEN_BY_CALLBACKS if identity_callbacks(config) else ()))
    return key in counting or not key.startswith("trainer.")


def _short(callback: Callback) -> str:
    """A callback in short, such as `StopAt(step=5)`."""
    options = ",".join(f"{name}={value}".replace(" ", "") for name, value in callback.options.items())
    name = callback.path.rpartition(".")[2]
    return f"{name}({options})" if options else name


@dataclass(frozen=True)
class Identity:
    """What a trial depends on, and hashes of it, as 12 hexadecimal digits."""

    inputs: Mapping[str, Any]

    @cached_property
    def trial(self) -> str:
        """The hash of all inputs. Machines and packages are no inputs, because they only change how numbers round."""
        return value_digest(self.inputs)

    @cached_property
    def weights(self) -> str:
        """The hash without what only evaluation reads: keys, their options, the code of their classes, the test set."""
        inputs = {key: value for key, value in self.inputs.items() if _without_option(key) not in _OF_EVALUATION}
        if parts := inputs.get("parts"):
            inputs["parts"] = {slot: code for slot, code in parts.items() if f"decode.{slot}" not in _OF_EVALUATION}
        if data := inputs.get("data"):
            inputs["data"] = training_fingerprint(data)
        return value_digest(inputs)


# Keys that only name the dataset are left out, because the fingerprint of the data identifies it. So are the keys of
# sizes and steps, which enter as the effective values that they give.
_CORPUS_KEYS = tuple(f"data.{key}" for key in CORPUS)
_CORPUS_NAME_KEYS = ("data.path", "data.hub", "data.name")
_HUB_KEYS = ("data.subset", "data.revision")  # None for a corpus that has none, such as a folder
_PRODUCT_KEYS = (*(f"model.{k}" for k in (*SIZE_NAMES, *STACKS, "width", "depth")), "optim.max_steps", "optim.duration")
_LEFT_OUT_KEYS = {*_CORPUS_KEYS, "data.name", "data.sets", "data.vocabulary_from", *_PRODUCT_KEYS}
_OF_WEIGHTS = ("decode.average", "decode.select")
_OF_EVALUATION = ("data.test", "data.bleu", *(k for k in KEYS if k.startswith("decode.") and k not in _OF_WEIGHTS))


def _without_option(key: str) -> str:
    """The key of a slot for an option's key, such as `decode.intervention`; any other key as it is."""
    return ".".join(key.split(".")[:2])


def identity(config: Config, fingerprint: Mapping[str, Any], component_sources: Mapping[str, Code]) -> Identity:
    """The identity of a trial. Equal identities give equal results and are trained once.

    Keys at their default are left out, so that results stay valid when a key is added. Sizes enter as effective sizes,
    and files that options name by their content.

    fingerprint: identifies the text.
    component_sources: for each slot whose component is not the core's, digests of its code.
    """
    contents = {"data": dict(fingerprint), "parts": dict(component_sources)}
    return Identity(_inputs(with_components(config, _with_contents)) | contents)


def _with_contents(key: str, component: Component) -> Component:
    contents = file_contents(component, before_options(key))
    return component.model_copy(update={"options": component.options | contents})


def _inputs(config: Config) -> dict[str, Any]:
    """The inputs of an identity that the config decides."""
    inputs = {
        key: value
        for key, value in config.flat().items()
        if value != KEYS.get(key, ...) and key not in _LEFT_OUT_KEYS and _changes_results(key, config)
    }
    if callbacks := identity_callbacks(config):
        inputs["trainer.callbacks"] = [callback.as_written for callback in callbacks]
    return inputs | effective_sizes(config) | {"seed": config.seed, "core": CORE_REVISION}


def path_notes(configs: Iterable[Config]) -> list[str]:
    """What a plan says of paths in the options of components and callbacks where nothing lies."""
    notes = []
    for config in configs:
        callbacks = [("trainer.callbacks", callback) for callback in identity_callbacks(config)]
        for key, part in [*custom_components_by_key(config).items(), *callbacks]:
            rule = "does not exist, and counts as it is written; once something lies there, it is another trial; "
            rule += "where the class writes it, declare the option as str, which always counts as it is written"
            notes += [f"{key} = {part.path}: {path} {rule}" for path in missing_files(part, before_options(key))]
    return list(dict.fromkeys(notes))


def row_identity(config: Config) -> str:
    """The identity of a config without its seed. Rows are equal if their effective sizes and other keys are.

    Files count by their paths, so that no class is imported, which a stranger's result may name.
    """
    inputs = _inputs(config.model_copy(update={"seed": 0}))
    return value_digest(inputs | {key: getattr(config.data, key) for key in (*CORPUS, "sets")})


def same_row(config: Config, other: Config) -> bool:
    """Whether two configs are the same row of a table, whatever their seeds: base, if `other` is base."""
    return row_identity(config) == row_identity(other)
