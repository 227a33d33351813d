"""The queue of a sweep that is looked at: what it gives out, what it decides once, and what several commands share."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from chance import drawn
from helpers import a_result, command, write_sweep
from made_rows import sweep_table

from transformer_pl.plan.plan import CostEstimate, Plan, as_json, plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.looks import as_seen, check_looks, read_progress
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep.looks import LooksQueue, decide
from transformer_pl.tasks.translation import Translation, bleu
from transformer_pl.trials.flops import Cost

GAPS = {"base": 0.0, "h=4": 0.0, "h=16": -1.5, "p_drop=0.0": 0.02}  # h=16 is found at the first look
SEEDS, BASE_SEEDS = ["1", "2", "3", "4"], 8


VARIANTS = ["base", "model.h=4", "model.h=16", "model.p_drop=0.0"]


@pytest.fixture
def sweep(tmp_path):
    values = {"variant": VARIANTS, "looks": ["2 4"], "base_seeds": [8]}
    return read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS)


def train(trial, state="done", noise=0):
    """What a training leaves behind. The score of a trial depends on its row and its seed alone."""
    trial.make()
    if state != "done":
        return trial.set_status(state)
    rng = np.random.default_rng([trial.config.seed, len(trial.row), noise])
    ((numbers,),) = drawn(rng, 1, 1, 60, 0.03, gap=GAPS[trial.row])
    trial.save_sentences("val", ["a"] * 60, Translation.measure, np.concatenate([numbers, np.ones((60, 2))], 1))
    score = {"val/bleu": float(bleu(numbers.sum(0))), "val/ppl": 2.0}
    return trial.finish(a_result(id=trial.id, weights_id=trial.identity.weights, metrics=score))


def plan_of(sweep, runs):
    costs = {row: CostEstimate(Cost(1, 1.0), None) for row in range(len(sweep.rows))}
    return Plan(sweep, plan_trials(sweep, runs), costs)


def queue_of(sweep, runs):
    plan, trials = plan_of(sweep, runs), plan_trials(sweep, runs)
    missing = [one for one in as_seen(sweep, trials, runs).trials if one.needs_training()]
    return LooksQueue(plan, missing, runs, None)


def run(queue, fails=()):
    """Train what a queue gives out, and return the names of these trials."""
    trained = []
    while planned := queue.next(set()):
        trained.append(planned.name)
        state = "failed" if planned.name in fails else "done"
        train(planned, state)
        queue.ended(planned, state)
    return trained


def decisions(folder):
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("look_*.json"))}


def test_rows_that_are_decided_get_no_more_seeds(sweep, tmp_path):
    """The base has seeds of its own, and the table shows each row with the seeds that decided it."""
    trained = run(queue_of(sweep, tmp_path))
    verdicts = decisions(tmp_path)["look_1.json"]["verdicts"]
    assert verdicts["h=16"] == "found"
    for row, verdict in verdicts.items():
        assert sum(name.startswith(f"{row} ") for name in trained) == (4 if verdict == "open" else 2)
    assert len(trained) == len({*trained})
    assert {f"base s{seed}" for seed in range(1, 5)} <= {*trained}
    table, _ = sweep_table(as_seen(sweep, plan_trials(sweep, tmp_path), tmp_path))
    (found,) = [one for one in table.contrasts if one.row.name == "h=16"]
    assert found.is_found and len(found.scores) == 2
    assert run(queue_of(sweep, tmp_path)) == []  # the same command again


def test_a_decision_is_never_made_anew(sweep, tmp_path):
    """Neither by the same command again, nor by one that has not seen it, though the results are others now."""
    run(queue_of(sweep, tmp_path))
    before, planned = decisions(tmp_path), plan_trials(sweep, tmp_path)
    for one in planned:
        if one.result():
            one.clear()
            train(one, noise=1)
    assert decide(replace(read_progress(sweep, tmp_path), decisions=[]), planned, None, tmp_path)
    assert run(queue_of(sweep, tmp_path)) == []
    assert decisions(tmp_path) == before


def test_a_row_with_a_failed_trial_is_left_out_and_base_must_be_whole(sweep, tmp_path):
    run(queue_of(sweep, tmp_path), fails={"h=4 s2"})
    assert decisions(tmp_path)["look_1.json"]["verdicts"]["h=4"] == "left out"
    other = tmp_path / "other"
    other.mkdir()
    run(queue_of(sweep, other), fails={"base s2"})
    assert not decisions(other)


def test_a_trial_that_had_failed_is_tried_again_before_its_look_is_decided(sweep, tmp_path):
    """By a command that finds all others finished."""
    for planned in plan_trials(sweep, tmp_path):
        train(planned, "failed" if planned.name == "h=4 s2" else "done")
    assert run(queue_of(sweep, tmp_path)) == ["h=4 s2"]
    assert decisions(tmp_path)["look_1.json"]["verdicts"]["h=4"] != "left out"


@pytest.mark.parametrize("seed", range(3))
def test_several_commands_that_stop_anywhere_come_to_the_same_end(sweep, tmp_path, seed):
    """They hold trials at once, and each may be gone at any time; what it held is given out again."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    trained = run(queue_of(sweep, alone))
    chance = random.Random(seed)
    queues, held = [queue_of(sweep, together) for _ in range(3)], {}
    for _ in range(400):
        i = chance.randrange(3)
        if chance.random() < 0.05:  # killed, and started again
            queues[i] = queue_of(sweep, together)
            held.pop(i, None)
        elif i in held:
            planned = held.pop(i)
            train(planned)
            queues[i].ended(planned, "done")
        elif planned := queues[i].next({one.identity.weights for one in held.values()}):
            if planned.result():
                queues[i].ended(planned, "done")
            else:
                held[i] = planned
    assert decisions(together) == decisions(alone)
    done = {one.name for one in plan_trials(sweep, together) if one.result()}
    assert {*trained} == done and not held and all(queue.waits() is None for queue in queues)


@pytest.mark.parametrize("other", [{}, {"looks": ["3 4"]}, {"looks": ["2 4"], "base_seeds": [6]}])
def test_looks_stay_those_with_which_the_training_began(sweep, tmp_path, other):
    """Whoever trains on, or prints the table, gives the same ones; the margin is remembered."""
    file, folder = tmp_path / "looks.yaml", tmp_path / "sweeps" / "looks@demo"
    folder.mkdir(parents=True)
    plan, looks = plan_of(sweep, tmp_path), check_looks(file, sweep, folder, margin=0.5)
    (folder / "plan.json").write_text(json.dumps(as_json(plan) | {"looks": looks}))
    changed = read_sweep(write_sweep(tmp_path / "other.yaml", {"variant": VARIANTS} | other), seeds=SEEDS)
    check_looks(file, changed, folder)  # nothing has been trained
    train(plan.trials[0])
    with pytest.raises(InputError, match="looks"):
        check_looks(file, changed, folder)
    with pytest.raises(InputError, match="looks"):
        check_looks(file, sweep, folder, margin=0.7)
    assert check_looks(file, sweep, folder) == looks


def test_what_an_agent_has_trained_has_no_looks(tmp_path):
    """W&B's agent trains the grid of seeds, so that one plain table is made of all of it."""
    values = {"variant": VARIANTS, "seed": [1, 2, 3, 4], "looks": ["2 4"], "base_seeds": [8]}
    file = write_sweep(tmp_path / "looks.yaml", values)
    grid = read_sweep(file).without_looks()
    for planned in plan_trials(grid, tmp_path):
        train(planned)
    printed = json.loads(command("report", file, "--runs", tmp_path, "--format", "json").stdout)
    assert [row["val/bleu.n"] for row in printed["rows"]] == [4] * len(VARIANTS)
    (_, h16) = (row for row in printed["rows"] if row["name"] in ("h=4", "h=16"))
    assert h16["val/bleu.difference.p"] < 0.05


@pytest.mark.parametrize(
    "wrong",
    [
        *({"looks": [text]} for text in ("1 4", "4 2", "2 5", "two", True)),
        *({"base_seeds": [count]} for count in (3, "many")),
        {"looks": ["2 4"], "variant": ["model.h=4", "model.h=16"]},  # without base
    ],
)
def test_wrong_looks_are_refused(tmp_path, wrong):
    values = {"variant": ["base", "model.h=4"]} | wrong
    with pytest.raises(InputError, match=next(iter(wrong))):
        read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS)
