"""What the notes say of a sweep's trials: how they were trained, how that ended, and what they were evaluated on."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import a_result, a_trial

from transformer_pl.config.levels import Level, resolve, scale_level
from transformer_pl.plan.sweep_file import Sweep, SweepRow
from transformer_pl.report.facts import facts_of
from transformer_pl.report.sweep_rows import Grid, sweep_rows
from transformer_pl.tasks.translation import Translation

pytestmark = pytest.mark.core
FALLING, FLAT = ({"fall": fall, "noise": 0.004, "validations": 9} for fall in (0.05, 0.003))


def config(**keys):
    return resolve([scale_level("demo"), Level("test", {key.replace("__", "."): value for key, value in keys.items()})])


def grid_of(folder, *results, **keys):
    """A sweep with a trial for each row, base first. results: what is in each result; None: it is not finished."""
    base, trials = config(**keys), []
    rows = [SweepRow("base", [base], {})]
    rows += [SweepRow(f"h={2**n}", [config(model__h=2**n, **keys)], {}) for n in range(len(results) - 1)]
    for place, (row, result) in enumerate(zip(rows, results, strict=True)):
        trial = a_trial(folder / f"{place}", row.configs[0], place=place)
        trial.folder.make()
        if result is not None:
            metrics = {"val/ppl": 3.0, "val/loss": 1.1, "val/bleu": 60.0}
            trial.folder.finish(a_result(**{"metrics": metrics, "steps": 100} | result))
        trials.append(trial)
    return Grid(Sweep("mine", "project", "demo", base, rows, Path("mine.yaml")), trials)


def facts(grid, **options):
    return facts_of(grid, sweep_rows(grid, Translation.measure), **options)


def test_it_is_said_how_the_rows_were_trained(tmp_path):
    keys = {"model__N": 10, "model__width": 0.5, "decode__average": 3, "data__path": "some text"}
    (note,) = facts(grid_of(tmp_path, {}, **keys)).training
    steps, batch = config().steps, config().data.batch_tokens
    assert all(word in note for word in (f"{steps:,}", f"{batch:,}", "some text", "N 10", "width 0.5", "last 3 check"))


def test_rows_that_have_the_learning_rate_of_base_are_counted(tmp_path):
    """A row that --retune has given its own best is none of them."""
    grid = grid_of(tmp_path, *[{}] * 4)

    def noted(sweep):
        told = facts(Grid(sweep, grid.trials[: len(sweep.rows)])).others
        return [text for text in told if "learning rate" in text]

    (note,) = noted(grid.sweep)
    assert note.startswith("Every row has base's learning rate")
    for keys in ({"optim__lr_scale": 0.5}, {"optim__warmup": 7}, {"optim__optimizer": "torch.optim.SGD"}):
        row = grid.sweep.rows[1]._replace(configs=[config(model__h=1, **keys)])
        (note,) = noted(replace(grid.sweep, rows=[grid.sweep.rows[0], row, *grid.sweep.rows[2:]]))
        assert note.startswith("Every row but 1 has base's")
        assert not noted(replace(grid.sweep, rows=[grid.sweep.rows[0], row]))
    tried = [("base", {"model.p_drop": 0.1}, 1.0)], [("base", {"optim.lr_scale": 1.0, "model.p_drop": 0.1}, 1.0)]
    assert [bool(noted(replace(grid.sweep, tried=tuple(points)))) for points in tried] == [True, False]


def test_scores_with_different_signatures_are_named(tmp_path):
    same, other = ({"signature": f"nrefs:1|tok:{tok}"} for tok in ("13a", "intl"))
    for results, said in (([same, same, other], True), ([same] * 3, False)):
        text = " ".join(facts(grid_of(tmp_path / str(said), *results)).others)
        assert ("nrefs:1|tok:13a, nrefs:1|tok:intl" in text) == said == ("signature" in text)


@pytest.mark.parametrize(
    ("endings", "told"),
    [
        ([FLAT, FALLING, FLAT, None], ["4.9%", "1 row:", "trainer.val_every"]),
        ([FLAT, FLAT], ["All rows had converged"]),
        ([FLAT, None], ["1 row had converged", "trainer.val_every"]),
    ],
)
def test_it_is_said_which_rows_had_converged(tmp_path, endings, told):
    grid = grid_of(tmp_path, *({"convergence": ending} for ending in endings))
    text = " ".join(facts(grid).convergence)
    assert all(words in text for words in told)
    rows = sweep_rows(grid, Translation.measure)
    assert [row.still_falls for row in rows] == [ending is FALLING for ending in endings]
    assert [row.more["val/loss.fall"] for row in rows] == [ending and ending["fall"] for ending in endings]


def test_a_row_that_is_not_finished_has_not_converged(tmp_path):
    assert facts(grid_of(tmp_path, {"convergence": FLAT}, None)).convergence == ["All finished rows had converged."]


def test_the_best_validation_has_also_converged_if_it_lies_early(tmp_path):
    early, late = ({"convergence": FALLING, "best_step": step} for step in (50, 95))
    grid = grid_of(tmp_path, early, late, decode__select="best")
    assert [row.still_falls for row in sweep_rows(grid, Translation.measure)] == [False, True]
    for split in ("val", "test"):
        assert ("--split test" in " ".join(facts(grid, split=split).convergence)) == (split == "val")


def test_the_speed_of_the_first_row_is_said_where_the_peak_is_known(tmp_path):
    for place, known in enumerate(({"tokens_per_s": 17_000.0, "of_peak": 0.314}, {"tokens_per_s": 17_000.0})):
        notes = " ".join(facts(grid_of(tmp_path / f"{place}", known)).training)
        assert ("17,000 target tokens a second, 31%" in notes) == ("of_peak" in known)


def test_trials_that_a_callback_ended_and_rows_that_were_refused_are_counted_and_named(tmp_path):
    grid = grid_of(tmp_path, {"stopped_early": True, "steps": 40}, {}, None)
    grid.trials[2].folder.set_status("refused", why="it breaks a law")
    assert "1 of 2 trials early, after 40 steps" in " ".join(facts(grid).training)
    assert "h=2 was refused: it breaks a law." in facts(grid).others


def test_without_the_scores_of_sentences_there_are_no_tests(tmp_path):
    grid = grid_of(tmp_path, {}, {})
    assert "no tests" in " ".join(facts(grid).others)
    few = [[1] * 12] * 5
    for trial in grid.trials:
        trial.folder.save_sentences("val", ["a"] * 5, Translation.measure, few)
    told = " ".join(facts(grid).others)
    assert "of 5 sentences is too small" in told and "no tests" not in told
