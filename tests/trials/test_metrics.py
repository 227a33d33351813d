"""The lines of metrics.jsonl."""

import json
import math

import pytest

from transformer_pl.trials.metrics import read_metrics
from transformer_pl.trials.records import infinite_as_null


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [({"train/loss": 1.0, "lr": 0.1, "tokens_per_s": 9.0}, "train"), ({"val/ppl": math.inf}, "validation")],
)
def test_a_line_is_read_as_it_was_written(tmp_path, metrics, kind):
    """Without one that a process left unfinished."""
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    lines = [{"step": step, "kind": kind, **metrics, "time": 1.5} for step in range(100)]
    path.write_text("".join(json.dumps(infinite_as_null(line)) + "\n" for line in lines) + '{"step": 7, "va')
    assert read_metrics(path) == lines
    path.write_text('{"step": 3, "mine": 1.0}\n')  # as a callback may write it
    assert read_metrics(path) == [{"step": 3, "mine": 1.0, "kind": "train"}]
