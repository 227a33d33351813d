"""Why a trial is new: how it differs from a finished trial of the same row and seed."""

from collections.abc import Mapping
from typing import Any

from transformer_pl.config import KEYS
from transformer_pl.trials.identity import mapping_difference
from transformer_pl.trials.trial import Trial

MOST_DIFFERENCES = 3  # between trials that resemble each other
Inputs = Mapping[str, Any]  # of `Identity.inputs`; keys at their default are left out


def why_new(inputs: Inputs, trial: Trial) -> str | None:
    """How a new trial differs from the most similar finished one whose folder is named alike, before the id.

    inputs: of its identity. Such as `the code of ffn changed; optim.warmup 400 -> 800`. None where there is none with
    at most MOST_DIFFERENCES.
    """
    name = trial.folder.name.rpartition("-")[0]
    others = [Trial(path.parent) for path in trial.folder.parent.glob(f"{name}-*/identity.json")]
    known = [other.identity_inputs() for other in others if other.result()]
    told = [differences(inputs, of_other) for of_other in known if of_other]
    similar = min(filter(None, told), key=len, default=[])
    return "; ".join(similar) if 0 < len(similar) <= MOST_DIFFERENCES else None


def differences(inputs: Inputs, others: Inputs) -> list[str]:
    """How the inputs of an identity differ from those of another."""
    different, told = mapping_difference(inputs, others), []
    replaced = {key.rpartition(".")[2] for key in different}  # by another class, which is told itself
    for key, (new, old) in different.items():
        if key == "core":
            told.append(f"core revision {old} -> {new}")
        elif key == "data":
            told.append("the dataset or its preparation changed")
        elif isinstance(new, dict) and isinstance(old, dict) and key != "parts":  # of a file that an option names
            told.append(f"the content of {key} changed")
        elif key != "parts":
            shown = [KEYS.get(key) if value is None else value for value in (old, new)]
            told.append(f"{key.removeprefix('effective.')} {shown[0]} -> {shown[1]}")
        elif parts := [part for part in new if part in old and new[part] != old[part] and part not in replaced]:
            told.append(f"the code of {', '.join(parts)} changed")
    return told
