"""Table 2: what the paper printed, and the rows of a sweep beside it."""

import pytest
from helpers import ROOT, a_result

from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve, scale_level
from transformer_pl.reporting.cost_table import build_cost_table
from transformer_pl.reporting.published import read_costs
from transformer_pl.reporting.rows import RowResults

TABLE2 = ROOT / "sweeps" / "table2.yaml"
P100 = 9.5  # TFLOP/s
DAY = 24 * 3600


def config(scale="wmt14", **keys):
    return resolve([scale_level(scale), Level("test", {key.replace("__", "."): value for key, value in keys.items()})])


def row(config, wall_s=1.0, state="done", **metrics):
    metrics = {f"test/{name}": value for name, value in metrics.items()}
    result = a_result(config=config.flat(), wall_s=wall_s, flops=2e18, metrics=metrics) if metrics else None
    return RowResults(config, [result], [state])


def column(table, name):
    return next(column.cells for column in table.columns if column.name == name)


@pytest.mark.parametrize(
    ("scale", "systems", "best"), [("wmt14", 6, "ConvS2S ensemble"), ("wmt14-fr", 7, "ConvS2S ensemble")]
)
def test_published_table_2_is_complete(scale, systems, best):
    """As the paper says: big is the best of all, and base costs less than any other."""
    paper = read_costs(config(scale).data)
    assert [row.label for row in paper.rows] == ["base", "big"] and len(paper.others) == systems
    assert max(paper.others, key=lambda row: row.score).label == best
    assert paper.rows[1].score > max(row.score for row in paper.others)
    assert paper.rows[0].flops < min(row.flops for row in paper.others if row.flops)


def test_published_costs_are_those_of_the_paper_s_times():
    """12 hours of base and 3.5 days of big, on 8 P100."""
    runs = [(config(trainer__devices=8), DAY / 2), (config(trainer__devices=4, trainer__num_nodes=2), 3.5 * DAY)]
    rows = [row(config, seconds, bleu=27.0) for config, seconds in runs]
    table = build_cost_table(["base", "big"], rows, runs[0][0], P100)
    assert column(table, "FLOPs by time")[:2] == ["3.3e18", "2.3e19"]
    assert column(table, "paper FLOPs")[:2] == ["3.3e18", ""]  # of base, which both are here: it stands once
    assert column(table, "device hours")[:2] == ["96", "672"]
    assert column(table, "FLOPs counted")[:2] == ["2.0e18", "2.0e18"]


def test_a_row_that_differs_from_base_in_its_training_alone_is_not_the_paper_s():
    rows = [row(config(), DAY, bleu=27.0), row(config(optim__warmup=8000), 14 * DAY, bleu=27.0)]
    table = build_cost_table(["base", "warmup=8000"], rows, rows[0].config, P100)
    assert column(table, "paper BLEU")[:2] == ["27.3", ""]
    assert column(table, "device hours")[:2] == ["24", "336"]


def test_a_row_that_only_decoded_has_no_cost_of_training():
    """Its weights are those of a row that differs in decoding alone."""
    rows = [row(config(), DAY, bleu=27.0), row(config(decode__beam=1), 60, bleu=26.0)]
    rows[1].results[0]["weights_of"] = rows[0].results[0]["id"]
    table = build_cost_table(["base", "beam=1"], rows, rows[0].config, P100)
    assert column(table, "device hours")[:2] == ["24", "-"] and column(table, "FLOPs by time")[1] == "-"
    assert any(note.startswith("Trials that took over the weights") for note in table.notes)
    both = rows[0]._replace(results=[rows[0].results[0], rows[1].results[0]], states=["done", "done"])
    assert column(build_cost_table(["base"], [both], both.config, P100), "device hours")[0] == "24"


def test_many_hours_are_printed_whole():
    rows = [row(config(trainer__devices=8), 7 * DAY, bleu=27.0)]
    assert column(build_cost_table(["base"], rows, rows[0].config, P100), "device hours")[0] == "1,344"


def test_seeds_that_failed_or_diverged_are_counted():
    (of_base, diverged) = (row(config(), bleu=26.0), row(config(), state="diverged"))
    rows = [RowResults(config(), [*of_base.results, *diverged.results], ["done", "diverged"])]
    table = build_cost_table(["base"], rows, config(), P100)
    assert column(table, "seeds")[0] == "1/2, 1 diverged"
    assert any("1 trial diverged" in note for note in table.notes)


def test_the_rows_of_the_sweep_stand_beside_those_of_the_paper():
    base, big = read_sweep(TABLE2).rows
    rows = [row(base.configs[0], bleu=26.0, bleu_tokenised=27.5), row(big.configs[0], state="failed")]
    table = build_cost_table([base.name, big.name], rows, base.configs[0], P100)
    assert column(table, "test BLEU")[:3] == ["26.0", "failed", ""]
    assert column(table, "test BLEU tok.")[:2] == ["27.5", ""]
    assert column(table, "paper BLEU")[:3] == ["27.3", "28.4", "23.75"] and column(table, "row")[2] == "ByteNet"
    assert len(table.records) == 2 + 6 and {len(record) for record in table.records} == {len(table.records[0])}
    plain = build_cost_table([base.name, big.name], rows, base.configs[0], P100, beside="none")
    assert len(plain.records) == 2 and not any("paper" in column.name for column in plain.columns)


def test_big_of_the_french_table_has_dropout_0_1():
    found = [
        read_costs(one.configs[0].data).find(one.configs[0])
        for one in read_sweep(TABLE2, scale="wmt14-fr", sets={"model.p_drop": "0.1"}).rows
    ]
    assert [one.score for one in found] == [38.1, 41.8]


def test_other_languages_and_other_texts_have_no_row_in_it():
    assert read_costs(config(data__target="cs").data) is None
    base = config(data__path="mine")
    assert len(build_cost_table(["base"], [row(base, bleu=1.0)], base, P100).records) == 1


def test_checkpoints_are_ten_minutes_of_the_paper_s_training_apart():
    base, big = (one.configs[0] for one in read_sweep(TABLE2).rows)
    assert (base.decode.average, big.decode.average) == (5, 20)
    assert [base.trainer.val_every * 0.4, big.trainer.val_every * 1.0] == [600, 600]  # steps * seconds of a step
    assert (base.steps, big.steps) == (100_000, 300_000) and base.trainer.tokenised_bleu


def test_energy_stands_where_every_trial_of_a_row_tells_it():
    base = config()
    told, untold = row(base, bleu=26.0), row(base, bleu=26.0)
    assert "energy" not in build_cost_table(["base"], [untold], base, P100).markdown()
    told.results[0]["energy_j"] = 3.6e6 * 12.5
    table = build_cost_table(["a", "b"], [told, untold], base, P100)
    assert column(table, "energy, kWh")[:2] == ["12.5", ""]
    assert any(note.startswith("energy: by the counters") for note in table.notes)
