"""Why a trial is new: how it differs from a finished trial that resembles it."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.component_sources import changed_files
from transformer_pl.config import KEYS, Component
from transformer_pl.trials.identity import mapping_difference
from transformer_pl.trials.trial import Trial

MOST_DIFFERENCES = 3  # between trials that resemble each other


class Finished(NamedTuple):
    """A finished trial, and what its identity was made from."""

    trial: Trial
    inputs: Mapping[str, Any]


def finished_trials(runs: Path) -> list[Finished]:
    """The finished trials in a runs folder that kept what their identity was made from; older versions did not."""
    trials = (Trial(path.parent) for path in sorted((runs / "trials").glob("*/identity.json")))
    return [Finished(trial, inputs) for trial in trials if trial.result() and (inputs := trial.identity_inputs())]


def why_new(inputs: Mapping[str, Any], finished: Iterable[Finished]) -> str | None:
    """How a new trial differs from the most similar finished one; None where each has more than MOST_DIFFERENCES.

    inputs: `Identity.inputs` of the new trial. finished: those of the same row and seed. Such as
    `ablations/gated_ffn.py was edited since demo-ffn-GatedFeedForward-s1-0123456789ab; optim.warmup 400 -> 800`.
    """
    best: list[str] | None = None
    for trial, other in finished:
        differences = describe_inputs(inputs, other, trial)
        if 0 < len(differences) <= MOST_DIFFERENCES and (best is None or len(differences) < len(best)):
            best = differences
    return None if best is None else "; ".join(best)


def describe_inputs(inputs: Mapping[str, Any], other: Mapping[str, Any], trial: Trial) -> list[str]:
    """How the inputs of an identity differ from those of a finished trial (`other`), one entry per difference."""
    differences = []
    for key, (new, old) in mapping_difference(inputs, other).items():
        if key == "core":
            differences.append(f"core revision {old} -> {new}")
        elif key == "data":
            differences.append("the text or its preparation changed")
        elif key == "parts":
            edited = {part for part in new.keys() & old.keys() if new[part] != old[part]}
            edited = {part for part in edited if inputs[_key_of(part)] == other[_key_of(part)]}
            names = [inputs["data.task"]] if "task" in edited else []  # a trial keeps no copy of its task
            if edited - {"task"}:
                components = [Component(path=inputs[_key_of(part)]) for part in new if part != "task"]
                names += map(str, changed_files(components, trial.sources))
            if names:
                verb = "were" if len(names) > 1 else "was"
                differences.append(f"{', '.join(names)} {verb} edited since {trial.folder.name}")
        else:
            name = key.removeprefix("effective.")
            differences.append(f"{name} {_shown(key, old)} -> {_shown(key, new)}")
    return differences


def _key_of(part: str) -> str:
    """The key that names a part with code of its own: a slot of the model, or the task."""
    return "data.task" if part == "task" else f"model.{part}"


def _shown(key: str, value: Any) -> Any:
    return KEYS.get(key) if value is None else value  # keys at their default are left out of the inputs


def reasons_by_names(
    new: Mapping[str, Mapping[str, Any]], planned: Collection[Mapping[str, Any]], runs: Path
) -> dict[str, list[str]]:
    """Why the new trials of a plan are new: the names of the trials by their reason.

    They are compared with finished trials of the same seed that agree in all that the rows of the plan vary. new: the
    inputs of new trials by name. planned: the inputs of all trials of the plan.
    """
    keys = dict.fromkeys(key for inputs in planned for key in inputs if key not in ("parts", "data"))
    varied = [key for key in keys if len({repr(inputs.get(key, KEYS.get(key))) for inputs in planned}) > 1]
    finished: dict[str, list[Finished]] = {}  # by row and seed
    for one in finished_trials(runs) if new else ():
        finished.setdefault(_row_and_seed(one.inputs, varied), []).append(one)
    reasons: dict[str, list[str]] = {}
    for name, inputs in new.items():
        if reason := why_new(inputs, finished.get(_row_and_seed(inputs, varied), ())):
            reasons.setdefault(reason, []).append(name)
    return reasons


def _row_and_seed(inputs: Mapping[str, Any], varied: Collection[str]) -> str:
    return repr([inputs.get(key, KEYS.get(key)) for key in ("seed", *varied)])
