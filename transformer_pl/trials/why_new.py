"""Why a trial is new: how it differs from a finished trial of the same row and seed."""

from collections.abc import Mapping
from typing import Any

from transformer_pl.config import KEYS
from transformer_pl.trials.identity import mapping_difference
from transformer_pl.trials.trial import Trial

MOST_DIFFERENCES = 3  # between trials that resemble each other
Inputs = Mapping[str, Any]  # as in `Identity.inputs`; keys at their default are left out


def why_new(trial: Trial) -> str | None:
    """How a new trial differs from the most similar finished trial of the same row and seed.

    The result reads `the code of ffn changed; optim.warmup 400 -> 800`. It is None where every such trial has more than
    MOST_DIFFERENCES differences, or where there is none.
    """
    name = trial.folder.name.rpartition("-")[0]
    others = [Trial(path.parent) for path in trial.folder.parent.glob(f"{name}-*/identity.json")]
    finished = [other.identity.inputs for other in others if other.result()]
    described = [differences(trial.identity.inputs, inputs) for inputs in finished if inputs]
    fewest = min(filter(None, described), key=len, default=[])
    return "; ".join(fewest) if 0 < len(fewest) <= MOST_DIFFERENCES else None


def differences(inputs: Inputs, others: Inputs) -> list[str]:
    """How the inputs of an identity differ from those of another, a text for each difference."""
    different, texts = mapping_difference(inputs, others), []
    replaced = {key.rpartition(".")[2] for key in different}  # slots with another class, which has a text of its own
    for key, (new, old) in different.items():
        if key == "core":
            texts.append(f"core revision {old} -> {new}")
        elif key == "data":
            texts.append("the dataset or its preparation changed")
        elif key == "parts":
            parts = [part for part in new if part in old and new[part] != old[part] and part not in replaced]
            if parts:
                texts.append(f"the code of {', '.join(parts)} changed")
        elif isinstance(new, dict) and isinstance(old, dict):  # the contents of a file that an option names
            texts.append(f"the content of {key} changed")
        else:
            before, now = (KEYS.get(key) if value is None else value for value in (old, new))
            texts.append(f"{key.removeprefix('effective.')} {before} -> {now}")
    return texts
