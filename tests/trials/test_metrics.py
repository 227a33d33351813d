"""The lines of metrics.jsonl."""

import json
import math

import pytest

from transformer_pl.trials.metrics import line_kind, metrics_to_json, read_metrics


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [
        ({"train/loss": 1.0, "lr": 0.1, "tokens_per_s": 9.0}, "train"),
        ({"val/loss": 1.0, "val/ppl": math.inf}, "validation"),
        ({"val/bleu_sample": 3.0}, "validation"),
        ({"val/loss": 1.0, "val/bleu": 20.0, "val/bleu_sample": 3.0}, "final"),
    ],
)
def test_a_line_states_its_kind_and_is_read_as_it_was_written(tmp_path, metrics, kind):
    """Without one that a process left unfinished."""
    assert line_kind(metrics) == line_kind({"kind": kind}) == kind
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    lines = [{"step": step, "kind": kind, **metrics, "time": 1.5} for step in range(100)]
    path.write_text("".join(json.dumps(metrics_to_json(line)) + "\n" for line in lines) + '{"step": 7, "va')
    assert read_metrics(path) == lines
