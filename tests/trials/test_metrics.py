"""The lines of metrics.jsonl."""

import json

import pytest

from transformer_pl.trials.metrics import line_kind, read_metrics


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [
        ({"train/loss": 1.0, "lr": 0.1, "tokens_per_s": 9.0}, "train"),
        ({"val/loss": 1.0, "val/ppl": 2.7}, "validation"),
        ({"val/bleu_sample": 3.0}, "validation"),
        ({"val/loss": 1.0, "val/bleu": 20.0, "val/bleu_sample": 3.0}, "final"),
    ],
)
def test_a_line_states_its_kind_and_an_older_one_is_known_by_its_metrics(tmp_path, metrics, kind):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 1, **metrics}, {"step": 1, "kind": kind, **metrics}, {"step": 1, "kind": "other", **metrics}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_metrics(path) == lines[:2]  # a kind that is not known is damage
    assert [line_kind(line) for line in lines[:2]] == [kind, kind]
