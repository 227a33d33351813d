"""Why a trial is new: how it differs from a finished trial that resembles it."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_pl.config import COMPONENTS, KEYS
from transformer_pl.trials.identity import mapping_difference
from transformer_pl.trials.trial import Trial

MOST_DIFFERENCES = 3  # between trials that resemble each other
Inputs = Mapping[str, Any]  # of `Identity.inputs`; keys at their default are left out


def reasons_by_names(new: Mapping[str, Inputs], planned: Collection[Inputs], runs: Path) -> dict[str, list[str]]:
    """Why the new trials of a plan are new: the names of the trials by their reason.

    They are compared with finished trials of the same seed that agree in all that the rows of the plan vary. new: the
    inputs of new trials by name. planned: the inputs of all trials of the plan.
    """
    keys = dict.fromkeys(key for inputs in planned for key in inputs if key not in ("parts", "data"))
    varied = [key for key in keys if len({repr(_value(inputs, key)) for inputs in planned}) > 1]
    finished: dict[str, list[tuple[Trial, Inputs]]] = {}  # by row and seed

    def row_and_seed(inputs: Inputs) -> str:
        return repr([_value(inputs, key) for key in ("seed", *varied)])

    for path in sorted((runs / "trials").glob("*/identity.json")) if new else ():
        trial = Trial(path.parent)
        if trial.result() and (others := trial.identity_inputs()):
            finished.setdefault(row_and_seed(others), []).append((trial, others))
    reasons: dict[str, list[str]] = {}
    for name, inputs in new.items():
        if reason := why_new(inputs, finished.get(row_and_seed(inputs), ())):
            reasons.setdefault(reason, []).append(name)
    return reasons


def why_new(inputs: Inputs, finished: Iterable[tuple[Trial, Inputs]]) -> str | None:
    """How a new trial differs from the most similar finished one; None where each has more than MOST_DIFFERENCES.

    finished: trials, each with the inputs of its identity. Such as
    `the code of ffn changed since demo-ffn-GatedFeedForward-s1-0123456789ab; optim.warmup 400 -> 800`.
    """
    told = sorted((_differences(inputs, others, trial) for trial, others in finished), key=len)
    similar = next((one for one in told if one), [])
    return "; ".join(similar) if 0 < len(similar) <= MOST_DIFFERENCES else None


def _differences(inputs: Inputs, others: Inputs, trial: Trial) -> list[str]:
    """How inputs differ from those of a finished trial (`others`)."""
    told = []

    def same_class(part: str) -> bool:
        (key,) = [key for key in (*COMPONENTS, "data.task") if key.endswith(f".{part}")]
        return inputs[key] == others[key]

    for key, (new, old) in mapping_difference(inputs, others).items():
        if key == "core":
            told.append(f"core revision {old} -> {new}")
        elif key == "data":
            told.append("the dataset or its preparation changed")
        elif key != "parts":
            told.append(f"{key.removeprefix('effective.')} {_value(others, key)} -> {_value(inputs, key)}")
        elif parts := [part for part in new if part in old and new[part] != old[part] and same_class(part)]:
            told.append(f"the code of {', '.join(parts)} changed since {trial.folder.name}")
    return told


def _value(inputs: Inputs, key: str) -> Any:
    return KEYS.get(key) if inputs.get(key) is None else inputs[key]
