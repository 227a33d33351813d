"""Parsing as a task: a trial on trees is trained, decoded, scored and reported beside the paper's Table 4."""

import json

import pytest
from helpers import ROOT
from tiny_trials import train

from transformer_pl.data import synthetic
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import resolve, scale_level
from transformer_pl.reporting.published import read_published
from transformer_pl.reporting.rows import RowResults
from transformer_pl.reporting.table import build_table
from transformer_pl.task import task_of

SWEEP = read_sweep(ROOT / "sweeps" / "table4.yaml")
PARSING = SWEEP.base.data.task


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A tiny trial on a folder with a few trees of the grammar."""
    folder = tmp_path_factory.mktemp("parsing")
    (folder / "trees").mkdir()
    for split, count in (("train", 200), ("val", 12), ("test", 9)):
        (folder / "trees" / f"{split}.mrg").write_text("\n".join(synthetic.trees(split)[:count]))
    keys = {"data.path": folder / "trees", "data.task": PARSING, "data.vocab_size": 400, "decode.extra": 20}
    code, trial = train(folder / "runs", keys | {"model.h": 4})
    assert code == 0
    return trial


def test_a_trial_on_trees_is_scored_by_f1(trial):
    result = trial.result()
    names = ("loss", "ppl", "f1", "precision", "recall", "malformed")
    assert result["metrics"].keys() == {f"{split}/{name}" for split in ("val", "test") for name in names}
    assert result["score"] == "f1" and result["signature"].startswith("evalb:COLLINS.prm")
    prepared = json.loads((trial.folder / "env.json").read_text())["data"]
    references = (trial.folder.parents[1] / "data" / prepared / "val.target.txt").read_text().splitlines()
    assert all(line.startswith("(S") and " )S" in line for line in references) and len(references) == 12
    scores = task_of(SWEEP.base.data).score(trial.hypotheses("val"), references, SWEEP.base)
    assert scores.metrics["f1"] == pytest.approx(result["metrics"]["val/f1"])


def test_the_sweep_decodes_as_section_6_3_says():
    decode = SWEEP.base.decode
    assert (decode.beam, decode.alpha, decode.extra) == (21, 0.3, 300)
    assert (SWEEP.base.model.N, SWEEP.base.model.d_model) == (4, 1024)


def test_the_parser_is_trained_as_the_base_of_its_scale():
    base = resolve([scale_level("demo")])
    assert SWEEP.base.optim == base.optim and SWEEP.base.model.p_drop == base.model.p_drop == 0.1


def test_the_paper_s_table_4_stands_beside_it():
    table4 = read_published("table4")
    ours = [table4.find(row.configs[0]) for row in SWEEP.rows]
    assert ours[0].score == 91.3 and not any(ours[1:])
    assert [row.score for row in table4.others if row.label.startswith("Transformer")] == [92.7]
    metrics = {"val/f1": 95.0, "val/ppl": 1.5, "val/precision": 94.0, "val/recall": 96.0}
    result = {"metrics": metrics, "signature": "evalb", "params": 1, "steps": 1, "flops": 1.0}
    table = build_table([RowResults(SWEEP.base, [result], ["done"])], SWEEP.base)
    cells = {column.name: column.cells for column in table.columns}
    assert cells["F1"] == ["95.0"] and cells["paper test F1"] == ["91.3"] and cells["precision"] == ["94.0"]
    assert not any("BLEU" in text or "chrF" in text for text in (*cells, *table.notes))
    assert any("semi-supervised 92.7" in column.meaning for column in table.columns)
