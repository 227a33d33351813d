"""Perplexity, and the lines of metrics.jsonl.

A line is a JSON object: `step` (optimiser steps done), `kind` (`train`, `validation` or `final`), the metrics by name,
and `time` (seconds since 1970). Callbacks may add lines of their own. A line without `kind` is one of training.
"""

import math
from pathlib import Path
from typing import Any, Literal

from transformer_pl.runtime.errors import shown, warn
from transformer_pl.runtime.files import check_regular, parse_json
from transformer_pl.trials.records import MetricsLine, null_as_infinite

Kind = Literal["train", "validation", "final"]

# The numbers of a sentence: those of the task's measure (BLEU has ten), then nats and tokens.
# The last number of each group depends on the reference alone.
SCORE_COLUMNS, LOSS_COLUMNS = slice(0, -2), slice(-2, None)


def perplexity(loss: float) -> float:
    """exp of a loss in nats per token; infinite above 709 nats, where a float overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file."""
    return [line for _, line in metrics_lines(path)]


def metrics_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Each line as it is written, and what it says: the metrics, step, time and kind.

    An unfinished last line is left out. So are lines that do not have the form of `MetricsLine`, with one warning.
    """
    lines: list[tuple[bytes, dict[str, Any]]] = []
    damaged: list[str] = []
    try:
        check_regular(path)
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                try:
                    if text.endswith(b"\n"):
                        lines.append((text, {"kind": "train"} | null_as_infinite(parse_json(text, MetricsLine))))
                except ValueError as error:
                    damaged.append(f"line {number}: {error}")
    except FileNotFoundError:
        pass
    except OSError as error:
        damaged.append(error.strerror or str(error))
    if damaged:
        others = f", and {len(damaged) - 1} more lines" if damaged[1:] else ""
        warn(f"{path}: what cannot be read is left out: {shown(damaged[0])}{others}")
    return lines
