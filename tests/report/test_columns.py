"""The table of a sweep: what its cells say, what stands beside it, its notes and its formats."""

import csv
import io
import json
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np
import pytest
from chance import drawn
from helpers import ROOT, a_result
from rich.console import Console

from transformer_pl.config.levels import Level, resolve, scale_level, scale_names
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import cells
from transformer_pl.report import columns as tables
from transformer_pl.report import statistics as stats
from transformer_pl.report.html import page_columns
from transformer_pl.report.published import paper_table, read_published
from transformer_pl.report.rows import RowResults, TableRow, mean, read_row
from transformer_pl.report.statistics import compare_rows, of_measure
from transformer_pl.tasks.translation import Translation, bleu
from transformer_pl.trials.convergence import Convergence
from transformer_pl.trials.trial import Trial

pytestmark = pytest.mark.core
BLEU = of_measure(Translation.measure)
TABLE3 = read_published().rows
SIGNATURE = "nrefs:1|case:mixed|tok:13a"
LEARNED = {"model.position": "ablations.learned_position.LearnedPosition"}


def config(scale="demo", /, **keys):
    """A config at a scale; `model__h` stands for `model.h`."""
    return resolve([scale_level(scale), Level("test", {key.replace("__", "."): value for key, value in keys.items()})])


def result(trained, bleu, ppl=3.0, **more):
    metrics = {"val/ppl": ppl, "val/bleu": bleu, "val/chrf": 50.0, "test/bleu": bleu - 1}
    made = {"params": 1_490_000, "signature": SIGNATURE, "steps": trained.steps, "flops": 1e15}
    return a_result(metrics=metrics, **(made | more))


def row(config, *bleus, state="new"):
    """A row with one seed per BLEU; None stands for a seed without a result whose trial is in this state."""
    results = [None if bleu is None else result(config, bleu) for bleu in bleus]
    return RowResults(config, results, [state if r is None else "done" for r in results])


def build_table(rows, base=None, shown=None, names=()):
    """The table of these rows, beside the paper's."""
    rows = [one._replace(name=name) for one, name in zip(rows, names or [""] * len(rows), strict=True)]
    return tables.build_table(rows, base, paper_table(rows[0].config.data, shown=shown))


def column(table, name):
    return next(column.cells for column in table.columns if column.name == name)


def names(table):
    return [column.name for column in table.columns]


def read_csv(table):
    return list(csv.DictReader(io.StringIO(table.csv())))


def said(table):
    """Summary and notes as one text. There are at most six notes, and where the rest is explained."""
    assert len(table.notes) <= 7
    text = "\n".join([table.summary, *table.notes])
    assert not re.search(r"[,;:(] ?[.,;:)]| [.,;:)]|  |\.\.", text), text
    return text


# --- The published tables


@pytest.mark.parametrize(
    "scale", [name for name in scale_names() if scale_level(name).values.get("model.N_encoder") != 0]
)
def test_every_published_row_resolves_and_is_found_at_every_scale(scale):
    for one in TABLE3:
        printed = resolve([scale_level(scale), Level("published", one.differs)])
        assert read_published().find(printed).model_dump() == one.model_dump()
    rows = [row(config(scale), 60.0), row(config(scale, model__h=1), 59.0)]
    assert column(build_table(rows, rows[0].config), "row") == ["base", "(A)"]
    assert column(build_table(rows, rows[0].config, shown=False), "row") == ["base", ""]


def test_rows_are_matched_by_nominal_settings():
    assert read_published().find(config(model__d_k=64, model__d_v="64")).label == "base"  # base, spelled out
    assert read_published().find(config(model__d_k=512, model__d_v=512, model__h=1)).label == "A"
    assert read_published().find(config(decode__beam=1, optim__duration=3, seed=7)).label == "base"  # not of the model
    assert read_published().find(config(model__h=2)) is None
    assert read_published().find(config(model__h=1, model__p_drop=0.0)) is None
    assert read_published().find(config(model__attention="ablations.local.LocalAttention")) is None


@pytest.mark.parametrize(("scale", "base", "big", "others"), [("wmt14", 27.3, 28.4, 6), ("wmt14-fr", 38.1, 41.8, 7)])
def test_a_sweep_named_table2_stands_beside_table_2(scale, base, big, others):
    """The score of the test set, and the cost of the training."""
    dropout = {} if scale == "wmt14" else {"model.p_drop": "0.1"}
    sweep = read_sweep(ROOT / "sweeps" / "table2.yaml", scale, sets=dropout)
    paper = paper_table(sweep.base.data, sweep.name)
    configs = [one.configs[0] for one in sweep.rows]
    assert len(paper.others) == others and paper_table(sweep.base.data, "mine") == read_published()
    table = tables.build_table([row(one, 26.0) for one in configs], sweep.base, paper)
    assert column(table, "paper test BLEU") == [f"{base}", f"{big}"] and column(table, "test BLEU") == ["25.0"] * 2
    assert column(table, "paper FLOPs") == ["3.3e18", "2.3e19"] and column(table, "FLOPs") == ["1.0e15"] * 2
    assert "paper Δ BLEU" not in names(table)  # ours is of the validation set
    lines = read_csv(table)
    assert [float(line["paper/test/bleu"]) for line in lines] == [base, big] and float(lines[0]["flops"]) == 1e15
    (paper_column,) = [one for one in table.columns if one.name == "paper test BLEU"]
    assert "ConvS2S" in paper_column.meaning


# --- Settings


def test_only_differing_settings_are_shown_in_the_paper_s_order():
    changes = [{}, {"decode__beam": 1}, LEARNED, {"optim__eps_ls": 0.2}, {"model__p_drop": 0.0}, {"model__N": 2}]
    rows = [row(config(**keys), 60.0) for keys in changes]
    table = build_table(rows, config())
    shown = ["N", "P_drop", "eps_ls", "position", "beam"]
    assert names(table)[1:6] == shown
    assert {"params", "width", "d_k", "max_steps"} & set(names(table)) == {"params"}
    base, *others = zip(*(column(table, name) for name in shown), strict=True)
    assert base == ("6", "0.1", "0.1", "SinusoidalPosition", "4")
    assert ["".join(cells) for cells in others] == ["1", "LearnedPosition", "0.2", "0.0", "2"]  # a cell a row


def test_component_options_are_columns():
    local = {"model__attention": "ablations.local.LocalAttention"}
    rows = [row(config(), 60.0), *(row(config(**local, model__attention__window=w), 59.0) for w in (4, 16))]
    table = build_table(rows, config())
    assert column(table, "attention") == ["ScaledDotProductAttention", "LocalAttention", "LocalAttention"]
    assert column(table, "attention.window") == ["", "4", "16"]


def test_without_a_base_row_every_cell_is_filled_and_there_are_no_differences():
    rows = [row(config(model__h=h), 60.0 + h) for h in (1, 2, 4)]
    for table in (build_table(rows), build_table(rows, config())):
        assert column(table, "row") == ["(A)", "", "(A)"]
        assert column(table, "h") == ["1", "2", "4"]
        assert "Δ BLEU" not in names(table)
        assert {line["val/bleu.difference"] for line in read_csv(table)} == {""}


def test_a_printed_row_stands_once_beside_the_row_that_is_trained_as_base_is():
    rows = [row(config(model__h=1, optim__lr_scale=scale), 60.0) for scale in (0.2, 0.7, 0.9)]  # demo: 0.7
    table = build_table([row(config(), 61.0), *rows], config(), names=["base", "slow", "h=1", "fast"])
    assert column(table, "row") == ["base", "slow", "(A) h=1", "fast"]
    assert column(build_table([row(config(), 61.0), *rows[::2]], config()), "row") == ["base", "(A)", ""]
    table = build_table([row(config(), 61.0), row(config(optim__warmup=1), 60.0)], config())
    assert column(table, "row") == ["base", ""] and column(table, "paper BLEU") == ["25.8", ""]
    for another in ({"optim__optimizer": "torch.optim.AdamW"}, {"data__vocab_size": 500}):
        table = build_table([row(config(), 61.0), row(config(model__h=1, **another), 60.0)], config())
        assert column(table, "paper BLEU") == ["25.8", ""]
    table = build_table([row(config(model__h=4), 60.0), row(config(), 61.0)], config(model__h=4))
    assert column(table, "row") == ["base (A)", "base"] and column(table, "Δ BLEU") == ["", "+1.0"]


# --- Results


def test_cells_of_means_deviations_and_differences():
    table = build_table([row(config(), 60.0, 62.0, 64.0), row(config(model__h=1), 61.0, 60.0, 59.0)], config())
    assert column(table, "BLEU") == ["62.0 ± 2.0", "60.0 ± 1.0"]
    assert column(table, "Δ BLEU") == ["", "-2.0"]
    assert column(table, "seeds") == ["3", "3"]
    assert column(table, "params") == ["1.49M", "1.49M"]
    assert column(table, "paper BLEU") == ["25.8", "24.9"]
    assert column(table, "paper Δ BLEU") == ["", "-0.9"]
    assert column(table, "paper params") == ["65M", ""]
    assert "3 seeds" in said(table)


@pytest.mark.parametrize(
    ("p", "cell"),
    [(0.0004, "<0.001"), (0.001, "0.001"), (0.0494, "0.049"), (0.0496, "<0.050"), (0.05, "0.050"), (None, "")],
)
def test_a_p_value_below_a_limit_looks_so(p, cell):
    comparison = p and stats.RowComparison(estimate(0, -1, 1), None, p)
    assert cells.p_value(TableRow(row(config()), {}, None, False, None, comparison, None)) == cell


def test_unmeasured_values_are_never_numbers():
    rows = [
        row(config(), 60.0, 62.0),
        row(config(model__h=1), None, None, state="failed"),
        row(config(model__h=4), None, None),
        row(config(model__h=16), 61.0, None, state="failed"),
        row(config(model__h=32), 61.0, None, 63.0, None, state="diverged"),
        RowResults(config(model__h=2), [None] * 2, ["failed", "diverged"]),
    ]
    table = build_table(rows, config())
    assert column(table, "BLEU") == ["61.0 ± 1.4", "failed", "-", "61.0", "62.0 ± 1.4", "diverged"]
    assert column(table, "PPL") == ["3.00", "failed", "-", "3.00", "3.00", "diverged"]
    assert column(table, "params")[1:3] == column(table, "Δ BLEU")[1:3] == ["-", "-"]
    assert column(table, "Δ BLEU")[4] == "+1.0"
    counts = ["2", "0/2, 2 failed", "0/2", "1/2, 1 failed", "2/4, 2 diverged", "0/2, 1 failed, 1 diverged"]
    assert column(table, "seeds") == counts and "3 trials diverged" in said(table)
    lines = read_csv(table)
    assert [line["failed"] for line in lines] == ["0", "2", "0", "1", "0", "1"]
    assert [(line["done"], line["diverged"]) for line in lines[3:]] == [("1", "0"), ("2", "2"), ("0", "1")]
    assert {lines[1][name] for name in ("params", "val/bleu.mean", "val/bleu.sd", "val/bleu.difference")} == {""}


# --- Notes


def test_the_first_note_says_how_the_rows_were_trained():
    c = config("multi30k", model__N=10)
    note = build_table([row(c, 60.0)], c).notes[0]  # the paper has no such row
    for value in (f"{c.steps:,}", f"{c.data.batch_tokens:,}", c.data.hub, "N 10", f"width {c.model.width:g}"):
        assert value in note
    assert f"last {c.decode.average} checkpoints" in note and "other" not in note
    few = config("multi30k", optim__max_steps=1000)  # three validations: at steps 425 and 850, and at the end
    assert "last 3 checkpoints" in build_table([row(few, 60.0)], few).notes[0]


def test_a_table_that_has_everything_to_say_says_it_in_four_notes():
    """Rows that diverged, lack seeds, had not converged, on another dataset; a component that breaks a property."""
    rows = [
        *ended(measured([0.0, 0.3, 0.0]), FALLING, FLAT, None),
        row(config(model__h=2), 60.0),
        row(config(model__h=16), None, 61.0, state="diverged"),
        row(config(data__path="elsewhere"), 61.0),
    ]
    rows[1].results[0].exempt["mine.Attention"] = {"future_is_hidden": "it looks ahead on purpose"}
    table = build_table(rows, config())
    assert len(table.notes) == 4
    assert all(len(note) < 900 for note in table.notes)
    for word in ("mine.Attention", "future_is_hidden", "1 trial", "trainer.val_every", "4 rows"):
        assert word in said(table)


def test_a_row_that_is_exempt_from_a_property_is_marked_in_every_format():
    """By its name, and one note has the property and the reason. In CSV and JSON these stand in the row."""
    table = build_table(rows := [row(config(), 60.0), row(config(model__h=1), 61.0)], config())
    assert cells.EXEMPT not in table.markdown() and read_csv(table)[1]["exempt"] == ""
    rows[1].results[0].exempt["mine.Attention"] = {"the_future_is_hidden": "on purpose"}
    table = build_table(rows, config(), names=["base", "h=1"])
    assert [cells.EXEMPT in name for name in column(table, "row")] == [False, True]
    on_page = page_columns(table)[0].column
    assert [cells.EXEMPT in name for name in on_page.cells] == [False, True]
    (note,) = [note for note in table.notes if cells.EXEMPT in note]
    assert all(word in note for word in ("mine.Attention", "the_future_is_hidden", "on purpose"))
    assert table.latex().count(r"$\ddagger$") == table.markdown().count(cells.EXEMPT) == 2
    for base, exempt in (read_csv(table), json.loads(table.json())["rows"]):
        assert not base["exempt"] and "on purpose" in exempt["exempt"] and "the_future_is_hidden" in exempt["exempt"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("packages", {"torch": "9.9.9"}), ("gpus", ["H100"]), ("cpu", "Zen"), ("threads", 77)),
        *(("trainer.devices", 88), ("trainer.num_nodes", 66)),
    ],
)
def test_a_note_tells_in_what_trials_differ_beside_their_identity(tmp_path, key, value):
    trials = []
    for place, more in enumerate(({}, {key: value})):
        trials.append(Trial(tmp_path / f"{place}"))
        trials[-1].make()
        trials[-1].finish(result(config(), 60.0, config={"trainer.devices": 1} | more))
        written = {"packages": {"torch": "2.9.0"}, "gpus": [], "cpu": "EPYC", "threads": 1} | more
        (trials[-1].folder / "env.json").write_text(json.dumps(written))
    word = re.search(r"\w[\w.]+", str(value).removeprefix("{'torch'"))[0]
    for of_row in (trials, [trials[1], trials[1]]):
        assert (word in said(build_table([read_row(config(), of_row)], config()))) == (of_row is trials)


# --- Statistics


def measured(gaps, seeds=3, spread=0.02):
    """Rows with h = 8 (base), 1, 4, ... on 400 sentences. A gap is the share of base's mistakes that a row avoids."""
    rng, rows = np.random.default_rng(1), []
    shared = drawn(rng, len(gaps), seeds, 400, spread)  # the same sentences for all
    for heads, gap, own in zip((8, 1, 4, 16, 32, 2, 64), gaps, shared, strict=False):
        matching = np.minimum(own[..., 4:8], own[..., :4] + rng.binomial(own[..., 4:8] - own[..., :4], gap))
        nats = np.stack([own[..., 8] * (1 - gap) + rng.normal(0, 1, own.shape[:2]), own[..., 8]], -1)
        sentences = np.concatenate([matching, own[..., 4:], nats], -1)
        c = config(model__h=heads)
        scores = [float(bleu(one[:, :10].sum(0))) for one in sentences]
        results = [result(c, score, weights_id=f"{heads:06x}{seed:06x}") for seed, score in enumerate(scores)]
        rows.append(RowResults(c, results, ["done"] * seeds, sentences))
    return rows


def test_significant_differences_are_marked():
    rows = measured([0.0, 0.3, 0.0])
    table = build_table(rows, config())
    base, better, same = zip(column(table, "Δ BLEU"), column(table, "p"), strict=True)
    assert base == ("", "") and better[0].endswith("*") and better[1] == "<0.001"
    assert not same[0].endswith("*") and float(same[1]) > 0.05
    assert [cell.endswith("*") for cell in column(table, "PPL")] == [False, True, False]
    for line, row in zip(read_csv(table), rows, strict=True):
        assert float(line["val/bleu.low"]) < mean(row.values("val/bleu")) < float(line["val/bleu.high"])
    line, verdict = read_csv(table)[1], compare_rows([row.sentences for row in rows], 0, BLEU)[1]
    assert float(line["val/bleu.difference.p"]) == pytest.approx(verdict.p_value)
    assert float(line["val/bleu.difference.low"]) == pytest.approx(verdict.difference.interval()[0])


def test_a_row_that_shares_the_weights_of_base_is_compared_with_it_within_each_seed():
    """A note says so. The same outputs of trainings of its own would say less."""
    base, other, *_ = measured([0.0, 0.0], spread=0.2)
    worse, c = base.sentences.copy(), config(decode__beam=1)
    worse[:, ::9, 3] = np.maximum(0, worse[:, ::9, 3] - 1)  # a matching 4-gram less
    scores = [float(bleu(one[:, :10].sum(0))) for one in worse]
    for ids in ([one.weights_id for one in base.results], ["00000000000a", "00000000000b", "00000000000c"]):
        results = [result(c, score, weights_id=one) for score, one in zip(scores, ids, strict=True)]
        table = build_table([base, other, RowResults(c, results, ["done"] * 3, worse)], config())
        note = "1 row shares the trained weights of base: it is compared with it within each seed."
        shares = ids[0] == base.results[0].weights_id
        assert (note in " ".join(table.notes)) == shares == column(table, "Δ BLEU")[2].endswith("*")


def test_nothing_is_compared_with_a_base_that_has_learned_nothing():
    rows = measured([0.0, 0.3])
    for result in rows[0].results:
        result.metrics["val/bleu"] = 0.9
    table = build_table(rows, config())
    assert not {"Δ BLEU", "Δ 95 %", "p"} & set(names(table)) and "*" not in "".join(column(table, "PPL"))
    assert read_csv(table)[1]["val/bleu.difference"] == read_csv(table)[1]["val/bleu.difference.p"] == ""
    assert len(column(table, "BLEU 95 %")) == 2 and "BLEU below 1" in said(table)
    rows = measured([0.3, 0.0])  # a row below 1 is compared with a base above it
    rows[1].results[0].metrics["val/bleu"] = 0.9
    assert column(build_table(rows, config()), "p")[1]


def estimate(value, low, high):
    """An estimate with this interval."""
    half = (high - low) / 2 / 1.959964
    return stats.Estimate(value, (), half**2, float("inf"))


@pytest.mark.parametrize(
    ("low", "high", "cell"),
    [
        (-0.02, 0.05, "-0.02 to +0.05"),
        (-6.3, 7.5, "-6.3 to +7.5"),
        (-0.036, -0.004, "-0.036 to -0.004"),
        (0.04, 3.21, "+0.04 to +3.21"),
        (-2e-4, 12.34, "-0.0002 to +12.3400"),
        (0.0, 0.0, "+0.0 to +0.0"),
    ],
)
def test_no_bound_of_an_interval_looks_like_zero_unless_it_is(low, high, cell):
    comparison = stats.RowComparison(estimate(0, -1, 1), estimate((low + high) / 2, low, high), None)
    assert cells.difference_interval(TableRow(row(config()), {}, None, False, None, comparison, None)) == cell


@pytest.mark.parametrize(
    ("difference", "half", "cell", "ends"),
    [
        (-0.036, 0.033, "-0.036*", "-0.069 to -0.003"),
        (0.0004, 0.0003, "+0.0004*", "+0.0001 to +0.0007"),
        (2.04, 0.95, "+2.0*", "+1.1 to +3.0"),
        (-0.036, 1.0, "+0.0", "-1.0 to +1.0"),
    ],
)
def test_a_number_has_the_digits_of_its_interval(difference, half, cell, ends):
    """So no significant difference looks like zero, and none lies outside of its interval."""
    base, other = row(config(), 1.0), row(config(model__h=4), 1 + difference)
    its = estimate(difference, difference - half, difference + half)
    comparison = stats.RowComparison(estimate(1, 0.004, 1.996), its, 0.01 if half < abs(difference) else 0.3)
    table_row = TableRow(other, {}, None, False, base, comparison, None)
    assert cells.score_difference(table_row) == cell and cells.difference_interval(table_row) == ends
    assert cells.score(table_row) == f"{1 + difference:.3f}"


# --- Rows that have not converged


FALLING, FLAT = Convergence(0.05, 0.004, 9), Convergence(0.003, 0.004, 9)


def ended(rows, *convergences):
    return [one._replace(endings=[how] * 3) for one, how in zip(rows, convergences, strict=True)]


def marked(table, name):
    return ["†" in cell for cell in column(table, name)]


def test_a_row_that_still_falls_is_marked():
    rows = measured([0.0, 0.3, 0.3, 0.0])
    table = build_table(ended(rows, FLAT, FALLING, FLAT, None), config())
    assert marked(table, "BLEU") == marked(table, "PPL") == [False, True, False, False]
    assert not any(marked(table, "Δ BLEU"))
    assert "4.9%" in said(table) and "trainer.val_every" in said(table)
    assert float(read_csv(table)[1]["val/loss.fall"]) == pytest.approx(0.05)
    assert read_csv(table)[3]["val/loss.fall"] == ""
    assert float(read_csv(table)[1]["val/loss.fall.noise"]) == pytest.approx(0.004 / 3**0.5)


def test_a_table_of_best_validations_has_their_steps_and_names_the_test_set():
    """One such row is enough. The mark is gone where the best validation, as the mean of seeds, lies early."""
    early = FALLING._replace(scored=0.5)
    rows = ended(measured([0.0, 0.3, 0.3]), FLAT, early, FALLING)
    assert "--split test" not in said(build_table(rows, config()))
    results = [a_result(steps=1000, best_step=step) for step in (400, 500, 750)]
    rows[1] = rows[1]._replace(config=config(model__h=2, decode__select="best"), results=results)
    table = build_table(rows, config())
    assert "--split test" in said(table)
    assert column(table, "step")[1] == "550" and float(read_csv(table)[1]["scored_step"]) == 550
    assert marked(table, "BLEU") == [False, False, True]


# --- The summary and what was planned


def test_the_summary_says_which_rows_differ_and_what_the_others_could_have_shown():
    rows = measured([0.0, 0.3, 0.0])
    table = build_table(rows, config(), names=["base", "h=1", "h=4"])
    line = read_csv(table)[1]
    low, high = float(line["val/bleu.difference.low"]), float(line["val/bleu.difference.high"])
    assert f"(A) h=1 is {low / 2 + high / 2:.1f} BLEU higher than base (95 %: {low:.1f} to {high:.1f})" in table.summary
    found = column(table, "detectable Δ")[2]
    assert f"(A) h=4 cannot be told apart from base in BLEU with 3 seeds; a difference of {found} " in table.summary
    console = Console(width=200, file=io.StringIO())
    console.print(table.terminal(200))
    for text in (table.markdown(), console.file.getvalue()):
        assert text.startswith("(A) h=1 is")
    assert json.loads(table.json())["summary"] == table.summary and "h=1 is" in table.latex()
    assert "not a row" in build_table(rows[1:], config()).summary


def test_the_summary_says_how_much_rows_of_unlike_spread_could_have_shown():
    table = build_table([*measured([0.0, 0.0]), measured([0.0] * 3, spread=0.3)[2]], config())
    least, most = column(table, "detectable Δ")[1:]
    assert float(most) > 2 * float(least) and f" {least} to {most}, " in table.summary


def test_the_summary_says_what_a_row_that_is_set_apart_could_have_shown():
    table = build_table([*measured([0.0] * 6), measured([0.0] * 7, spread=1.0)[6]], config())
    *others, wild = map(float, column(table, "detectable Δ")[1:])
    assert wild > 5 * max(others) and f"{max(others)} would" in table.summary and f" {wild} in " in table.summary


# --- Beside the paper

OWN = [{"data__path": "mine"}, {"data__hub": "some/one"}, {"data__target": "fr"}]


@pytest.mark.parametrize("keys", OWN, ids=str)
def test_a_text_of_one_s_own_is_not_shown_beside_the_paper(keys):
    rows = [row(config(**keys), 60.0), row(config(model__h=1, **keys), 59.0)]
    for table in (build_table(rows, rows[0].config), build_table(rows, rows[0].config, shown=False)):
        assert not any("paper" in name for name in names(table)) and column(table, "row") == ["base", ""]
    table = build_table(rows, rows[0].config, shown=True)
    assert column(table, "row") == ["base", "(A)"] and column(table, "paper BLEU") == ["25.8", "24.9"]


def test_differing_text_or_vocabulary_has_a_note():
    rows = measured([0.0, 0.3])  # as where the training text differs alone: the references are the same
    rows[1] = rows[1]._replace(config=config(data__path="elsewhere"))
    table = build_table(rows, config())
    assert not {"Δ BLEU", "Δ 95 %", "p"} & {*names(table)} and "*" not in table.markdown()
    assert "different datasets" in said(table) and read_csv(table)[1]["val/bleu.difference.low"] == ""
    table = build_table([row(config(), 60.0), row(config(data__vocab_size=900), 61.0)], config())
    assert "different vocabularies" in said(table) and column(table, "Δ BLEU") == ["", "+1.0"]


# --- Output formats


def all_rows():
    """With names as a sweep gives them."""
    names = [" ".join(f"{key}={value}" for key, value in printed.differs.items()) for printed in TABLE3]
    rows = [row(config(**printed.differs), 60 + i / 3, 61 + i / 7, 63.0) for i, printed in enumerate(TABLE3)]
    return [one._replace(name=name) for one, name in zip(rows, names, strict=True)]


def test_csv_has_full_precision():
    rows = all_rows()
    for one in rows:
        one.results[2] = one.results[2].model_copy(update={"flops": 4e15})
    lines = read_csv(build_table(rows, config()))
    base = statistics.mean(rows[0].scores)
    for line, one, printed in zip(lines, rows, TABLE3, strict=True):
        assert float(line["val/bleu.mean"]) == pytest.approx(statistics.mean(one.scores), abs=1e-12)
        assert float(line["val/bleu.sd"]) == pytest.approx(statistics.stdev(one.scores), abs=1e-12)
        assert (int(line["val/bleu.n"]), int(line["seeds"]), float(line["flops"])) == (3, 3, 2e15)
        assert (float(line["paper/ppl"]), float(line["paper/bleu"])) == (printed.ppl, printed.score)
        assert line["paper/params"] == (f"{printed.params * 1e6:.0f}" if printed.params else "")
        assert int(line["model.h"]) == one.config.model.h  # filled in where it equals base, too
        if printed.label != "base":
            difference = statistics.mean(one.scores) - base
            assert float(line["val/bleu.difference"]) == pytest.approx(difference, abs=1e-12)


def test_json_equals_csv_and_has_no_infinity():
    rows = [*all_rows(), RowResults(config(), [result(config(), 1.0, ppl=float("inf"))], ["done"])]
    table = build_table(rows, config())
    content = json.loads(table.json(), parse_constant=lambda name: pytest.fail(name))
    assert content["notes"] == table.notes and SIGNATURE in content["columns"]["BLEU"]
    assert content["rows"][-1]["val/ppl.mean"] is None and column(table, "PPL")[-1] == "inf"
    for line, record in zip(read_csv(table), content["rows"], strict=True):
        assert line.keys() == record.keys() and line["val/bleu.mean"] == str(record["val/bleu.mean"])


def test_latex_compiles(tmp_path):
    """With every special character and all of the paper's columns."""
    if not shutil.which("pdflatex"):
        pytest.skip("no pdflatex: apt-get install texlive-latex-recommended")
    odd = row(config(data__path="a_b&c%d#e~f^g\\h|i{j}"), 60.0)
    table = build_table([*measured([0.0, 0.3, 0.0]), *all_rows(), odd], config())
    (tmp_path / "table.tex").write_text(table.latex())
    page = r"\documentclass{article}\usepackage[landscape,margin=1cm]{geometry}\usepackage{booktabs}\usepackage[utf8]"
    page += r"{inputenc}\begin{document}\input{table.tex}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    words = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size > 10_000 and "Missing character" not in done.stdout


@pytest.mark.parametrize("width", [80, 200])
def test_terminal_output_fits_the_width_with_all_rows(width):
    table = build_table(all_rows(), config())
    console = Console(width=width, file=io.StringIO())
    console.print(table.terminal(width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    kept, words = [one for one in table.columns if one.drop_rank is None], text.split()
    assert {one.name for one in kept} >= {"row", "BLEU", "Δ BLEU"}
    assert all(word in words for one in kept for cell in one.cells for word in cell.split())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 250])
def test_what_a_terminal_hides_is_named_and_the_paper_goes_first(width):
    table = build_table(measured([0.0, 0.3, 0.0, 0.1, 0.2]), config())
    lines = table.terminal(width).renderables
    (place,) = [place for place, one in enumerate(lines) if hasattr(one, "columns")]
    grid, texts = lines[place], lines[place + 1 :]
    shown, notes = [str(one.header).replace("\n", " ") for one in grid.columns], [one.plain for one in texts]
    hidden = [one.name for one in table.columns if one.name not in shown]
    assert all(name in notes[-1] for name in hidden) and len(notes) == len(table.notes)
    papers = [name for name in shown if name.startswith("paper")]
    assert not papers or all(name.startswith("paper") or name in ("h", "d_k", "d_v") for name in hidden)


def test_tables_need_no_torch():
    code = "import sys, transformer_pl.report.columns; "
    code += "sys.exit(bool({'torch', 'lightning', 'sacrebleu'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
