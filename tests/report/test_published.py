"""Printed numbers: which row of a sweep they stand beside; and what trials on disk say of their machines."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import ROOT, a_result, a_trial
from made_rows import column, names

from transformer_pl.config.levels import Level, resolve, scale_level, scale_names
from transformer_pl.plan.sweep_file import Sweep, SweepRow, read_sweep
from transformer_pl.report.facts import facts_of
from transformer_pl.report.published import read_published, read_rows_file
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.report.sweep_table import rows_and_about
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.table import make_table

pytestmark = pytest.mark.core
TRANSLATES = [name for name in scale_names() if scale_level(name).values.get("model.N_encoder") != 0]
VALUES = {"val/bleu": [60.0], "val/ppl": [3.0], "test/bleu": [25.0]}


def config(scale="demo", **keys):
    """A config at a scale; `model__h` stands for `model.h`."""
    return resolve([scale_level(scale), Level("test", {key.replace("__", "."): value for key, value in keys.items()})])


def table_of(folder, sweep, shown=None):
    """The table of a sweep, as if all of its trials had the same results."""
    planned = [a_trial(folder / "none", row.configs[0], place=place) for place, row in enumerate(sweep.rows)]
    grid = Grid(sweep, planned)
    rows, about = rows_and_about(grid, paper=shown)
    known = {"values": VALUES, "states": ["done"], "params": 1, "flops": 1e15}
    return make_table([replace(row, **known) for row in rows], about)


def beside_paper(folder, *configs, base=0, scale="demo", shown=None):
    """The table of rows with these configs, which are called by their places."""
    rows = [SweepRow(f"row {place}", [one], {}) for place, one in enumerate(configs)]
    return table_of(folder, Sweep("mine", "project", scale, configs[base], rows, Path("mine.yaml")), shown)


@pytest.mark.parametrize("scale", TRANSLATES)
def test_every_row_of_table_3_is_found_at_every_scale(tmp_path, scale):
    for one in read_published().rows:
        printed = resolve([scale_level(scale), Level("published", one.differs)])
        assert read_published().find(printed).model_dump() == one.model_dump()
    configs = config(scale), config(scale, model__h=1)
    assert column(beside_paper(tmp_path, *configs, scale=scale), "row") == ["base", "(A) row 1"]
    assert not any("paper" in name for name in names(beside_paper(tmp_path, *configs, scale=scale, shown=False)))


@pytest.mark.parametrize(
    ("keys", "label"),
    [
        ({"model__d_k": 64, "model__d_v": "64"}, "base"),  # base, spelled out
        ({"model__d_k": 512, "model__d_v": 512, "model__h": 1}, "A"),
        ({"decode__beam": 1, "optim__duration": 3, "seed": 7}, "base"),  # these are not of the model
        ({"model__h": 2}, None),
        ({"model__h": 1, "model__p_drop": 0.0}, None),
        ({"model__attention": "ablations.local.LocalAttention"}, None),
    ],
)
def test_rows_are_matched_by_the_settings_of_the_model(keys, label):
    assert getattr(read_published().find(config(**keys)), "label", None) == label


def test_a_printed_row_stands_once_beside_the_row_that_is_trained_as_base_is(tmp_path):
    base, *rows = config(), *(config(model__h=1, optim__lr_scale=scale) for scale in (0.2, 0.7, 0.9))  # demo: 0.7
    assert column(beside_paper(tmp_path, base, *rows), "paper BLEU") == ["25.8", "", "24.9", ""]
    assert column(beside_paper(tmp_path, base, *rows[::2]), "paper BLEU") == ["25.8", "24.9", ""]
    for another in ({"optim__warmup": 1}, {"model__h": 1, "optim__optimizer": "torch.optim.AdamW"}):
        assert column(beside_paper(tmp_path, base, config(**another)), "paper BLEU") == ["25.8", ""]
    assert column(beside_paper(tmp_path, base, config(model__h=1, data__vocab_size=500)), "row")[1] == "row 1"
    of_h_4 = beside_paper(tmp_path, base, config(model__h=4), base=1)
    assert column(of_h_4, "row") == ["base", "base (A)"] and column(of_h_4, "Δ BLEU") == ["+0.0", ""]


@pytest.mark.parametrize("keys", [{"data__path": "mine"}, {"data__hub": "some/one"}, {"data__target": "fr"}], ids=str)
def test_a_text_of_one_s_own_stands_beside_the_paper_only_if_asked(tmp_path, keys):
    configs = config(**keys), config(model__h=1, **keys)
    for shown in (None, False):
        made = beside_paper(tmp_path, *configs, shown=shown)
        assert not any("paper" in name for name in names(made)) and column(made, "row") == ["base", "row 1"]
    assert column(beside_paper(tmp_path, *configs, shown=True), "paper BLEU") == ["25.8", "24.9"]


@pytest.mark.parametrize(("scale", "base", "big"), [("wmt14", 27.3, 28.4), ("wmt14-fr", 38.1, 41.8)])
def test_a_sweep_named_table2_stands_beside_table_2(tmp_path, scale, base, big):
    """The score of the test set, and the cost of the training."""
    dropout = {} if scale == "wmt14" else {"model.p_drop": "0.1"}
    made = table_of(tmp_path, read_sweep(ROOT / "sweeps" / "table2.yaml", scale, sets=dropout))
    assert column(made, "paper test BLEU") == [f"{base}", f"{big}"] and column(made, "test BLEU") == ["25.0"] * 2
    assert column(made, "paper FLOPs") == ["3.3e18", "2.3e19"] and column(made, "FLOPs") == ["1.0e15"] * 2
    assert "paper Δ BLEU" not in names(made)  # ours is of the validation set
    assert [record["paper/test/bleu"] for record in made.records] == [base, big]
    assert "ConvS2S" in next(one for one in made.columns if one.name == "paper test BLEU").meaning


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("packages", {"torch": "9.9.9"}), ("gpus", ["H100"]), ("cpu", "Zen"), ("threads", 77)),
        *(("trainer.devices", 88), ("trainer.num_nodes", 66)),
    ],
)
def test_a_note_says_how_the_machines_of_trials_differ(tmp_path, key, value):
    planned = []
    for place, more in enumerate(({}, {key: value})):
        trial = a_trial(tmp_path / f"{place}", config())
        trial.folder.make()
        trial.folder.finish(a_result(metrics={"val/ppl": 3.0, "val/bleu": 60.0}, config={"trainer.devices": 1} | more))
        written = {"packages": {"torch": "2.9.0"}, "gpus": [], "cpu": "EPYC", "threads": 1} | more
        (trial.folder.path / "env.json").write_text(json.dumps(written))
        planned.append(trial)
    word = re.search(r"\w[\w.]+", str(value).removeprefix("{'torch'"))[0]
    sweep = Sweep("mine", "p", "demo", config(), [SweepRow("base", [config()], {})], Path("mine.yaml"))
    for of_row in (planned, [planned[1], planned[1]]):
        assert (word in " ".join(facts_of(Grid(sweep, of_row)).others)) == (of_row is planned)


@pytest.mark.parametrize(
    ("numbers", "said"), [("bleu: 25.8 ± 0.2", "alone, without a deviation"), ("ppl: 0, bleu: 25.8", "ppl = 0")]
)
def test_a_printed_number_stands_alone_and_can_be_one(tmp_path, numbers, said):
    path = tmp_path / "one.rows.yaml"
    path.write_text(f"source: X\nrows: [{{row: base, published: {{{numbers}}}}}]\n")
    with pytest.raises(InputError, match=said):
        read_rows_file(path)
