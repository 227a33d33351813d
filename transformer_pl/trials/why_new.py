"""Why a trial is new: how it differs from a finished trial of the same row and seed."""

from collections.abc import Mapping
from typing import Any

from transformer_pl.config import KEYS
from transformer_pl.config.component_sources import Code
from transformer_pl.runtime.errors import shown
from transformer_pl.trials.identity import mapping_difference
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Trial

MOST_DIFFERENCES = 3  # between trials that resemble each other
Inputs = Mapping[str, Any]  # as in `Identity.inputs`; keys at their default are left out


def why_new(trial: Trial, runs: RunsFolder) -> str | None:
    """How a new trial differs from the most similar finished trial of the same row and seed.

    The result reads `the code of ffn changed in ops.py; optim.warmup 400 -> 800`. It is None where every such trial has
    more than MOST_DIFFERENCES differences, or where there is none.
    """
    finished = [other.identity() for other in runs.like(trial.folder) if other.result()]
    described = [differences(trial.identity.inputs, inputs) for inputs in finished if inputs]
    fewest = min(filter(None, described), key=len, default=[])
    return "; ".join(map(shown, fewest)) if 0 < len(fewest) <= MOST_DIFFERENCES else None


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
            texts += _changed_code(*({part: of[part] for part in of if part not in replaced} for of in (new, old)))
        elif isinstance(new, dict) and isinstance(old, dict):  # the contents of a file that an option names
            texts.append(f"the content of {key} changed")
        else:
            before, now = (KEYS.get(key) if value is None else value for value in (old, new))
            texts.append(f"{key.removeprefix('effective.')} {before} -> {now}")
    return texts


def _changed_code(new: Mapping[str, Code], old: Mapping[str, Code]) -> list[str]:
    """In which files the code of parts has changed, at most one text. A class of an installed package has no files."""
    parts = [part for part in new if part in old and new[part] != old[part]]
    codes = ([code if isinstance(code, dict) else {} for code in (new[part], old[part])] for part in parts)
    files = sorted({file for pair in codes for file in mapping_difference(*pair)})
    return [f"the code of {', '.join(parts)} changed in {', '.join(files)}"] if parts else []
