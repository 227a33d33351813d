"""The queue of a sweep that is looked at: what it gives out, what it decides once, and what several commands share."""

import io
import json
import os
import random
import shutil
import signal
from contextlib import suppress
from dataclasses import replace

import forked
import numpy as np
import pytest
from chance import drawn
from grids import small_grid, table
from helpers import a_result, descendants, little_text, wait_for, write_sweep
from made_rows import sweep_table
from rich.console import Console
from tiny_trials import ended

from transformer_pl.plan.plan import CostEstimate, Plan, as_json, plan_trials, print_plan
from transformer_pl.plan.plan import tested_by as what_is_tested
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
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


def train(trial, state="done", noise=0, sentences=60):
    """What a training leaves behind. The score of a trial depends on its row and its seed alone."""
    trial.make()
    if state != "done":
        return trial.set_status(state)
    rng = np.random.default_rng([trial.config.seed, len(trial.row), noise])
    ((numbers,),) = drawn(rng, 1, 1, sentences, 0.03, gap=GAPS[trial.row])
    numbers_and_losses = np.concatenate([numbers, np.ones((sentences, 2))], 1)
    trial.save_sentences("val", ["a"] * sentences, Translation.measure, numbers_and_losses)
    score = {"val/bleu": float(bleu(numbers.sum(0))), "val/ppl": 2.0}
    return trial.finish(a_result(id=trial.id, weights_id=trial.identity.weights, metrics=score))


def plan_of(sweep, runs):
    costs = {row: CostEstimate(Cost(1, 1.0), None) for row in range(len(sweep.rows))}
    return Plan(sweep, plan_trials(sweep, runs), costs)


def queue_of(sweep, runs):
    plan, trials = plan_of(sweep, runs), plan_trials(sweep, runs)
    missing = [one for one in as_seen(sweep, trials, runs).trials if one.needs_training()]
    return LooksQueue(plan, missing, runs, None)


def run(queue, fails=(), **keys):
    """Train what a queue gives out, and return the names of these trials."""
    trained = []
    while planned := queue.next(set()):
        trained.append(planned.name)
        state = "failed" if planned.name in fails else "done"
        train(planned, state, **keys)
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
    print_plan(plan_of(sweep, tmp_path), [], console := Console(file=io.StringIO(), width=200))
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith("h=16")]
    assert "2 done, 2 left out" in line


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


def test_a_decision_holds_for_no_other_trials(sweep, tmp_path):
    """Rows of the same names are others, where a key that all of them share has changed in the file."""
    run(queue_of(sweep, tmp_path))
    values = {"variant": VARIANTS, "looks": ["2 4"], "base_seeds": [8], "optim.warmup": 77}
    changed = read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS)
    with pytest.raises(InputError, match=r"look_1\.json"):
        as_seen(changed, plan_trials(changed, tmp_path), tmp_path)


def test_a_row_with_a_failed_trial_is_left_out_and_base_must_be_whole(sweep, tmp_path):
    run(queue_of(sweep, tmp_path), fails={"h=4 s2"})
    assert decisions(tmp_path)["look_1.json"]["verdicts"]["h=4"] == "left out"
    assert run(queue_of(sweep, tmp_path)) == ["h=4 s2"]
    shown, _ = sweep_table(as_seen(sweep, plan_trials(sweep, tmp_path), tmp_path))
    assert all(one.p_value is None for one in shown.contrasts if one.row.name == "h=4")
    assert any("eft out" in note and "h=4" in note.partition("eft out")[2] for note in shown.notes)
    other = tmp_path / "other"
    other.mkdir()
    run(queue_of(sweep, other), fails={"base s2"})
    assert not decisions(other)


def test_rows_that_have_too_few_sentences_for_tests_get_all_seeds(sweep, tmp_path):
    assert len(run(queue_of(sweep, tmp_path), sentences=5)) == 3 * 4 + 8
    assert all({*one["verdicts"].values()} == {"open"} for one in decisions(tmp_path).values())


def test_a_trial_that_had_failed_is_tried_again_before_its_look_is_decided(sweep, tmp_path):
    """By a command that finds all others finished."""
    for planned in plan_trials(sweep, tmp_path):
        train(planned, "failed" if planned.name == "h=4 s2" else "done")
    assert run(queue_of(sweep, tmp_path)) == ["h=4 s2"]
    assert decisions(tmp_path)["look_1.json"]["verdicts"]["h=4"] != "left out"


def test_what_is_trained_again_changes_no_decision(sweep, tmp_path):
    """With --rerun all that the looks have needed, and what had failed, also when all is decided."""
    trained = run(queue_of(sweep, tmp_path), fails={"h=4 s2"})
    before, planned = decisions(tmp_path), plan_trials(sweep, tmp_path)
    assert run(queue_of(sweep, tmp_path)) == ["h=4 s2"] and run(queue_of(sweep, tmp_path)) == []
    again = LooksQueue(plan_of(sweep, tmp_path), as_seen(sweep, planned, tmp_path).trials, tmp_path, None)
    assert again.remaining().trials == len(trained)
    assert sorted(run(again)) == sorted(trained) and decisions(tmp_path) == before


def test_base_gets_no_seeds_of_a_look_that_is_not_needed(tmp_path):
    """They are given out while others still train for the look before; when that decides all rows, they are not."""
    values = {"variant": ["base", "model.h=16"], "looks": ["2 4"], "base_seeds": [8]}
    queue = queue_of(read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS), tmp_path)
    given = [queue.next(set()) for _ in range(7)]
    assert [one.name for one in given[6:]] == ["base s5"] and queue.ready()
    for planned in given:
        train(planned)
        queue.ended(planned, "done")
    assert queue.next(set()) is None and queue.waits() is None and queue.remaining().trials == 0
    assert [*decisions(tmp_path)] == ["look_1.json"]


def test_a_look_waits_for_a_trial_that_is_trained_again(sweep, tmp_path):
    """Whoever does that may be killed; then any command that waits for the look takes the trial over."""
    planned = plan_trials(sweep, tmp_path)
    again = next(one for one in planned if one.name == "h=4 s2")
    train(again)
    queue = queue_of(sweep, tmp_path)
    with again.lock.hold():
        again.clear()
        again.set_status("running")
        trained = run(queue)
        assert "h=4 s1" in trained and "h=4 s2" not in trained and queue.waits()
        assert decide(read_progress(sweep, tmp_path), planned, None, tmp_path) and not decisions(tmp_path)
    assert run(queue)[0] == "h=4 s2" and "left out" not in decisions(tmp_path)["look_1.json"]["verdicts"].values()


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


@pytest.mark.slow  # a minute
@pytest.mark.parametrize("seed", [1])
def test_commands_that_are_killed_while_they_train_come_to_the_same_table(tmp_path, monkeypatch, seed):
    """Two commands on one runs folder: one of them is killed at any time, alone or with its trials, and started again.

    Only base may be trained with more seeds, which were given out before a look decided that none are needed.
    """
    monkeypatch.setenv("WANDB_MODE", "disabled")
    language = "transformer_pl.tasks.language_model.LanguageModel"  # whose loss differs between any two trials
    text = little_text(tmp_path / "text", val=24)
    keys = {"data__path": str(text), "data__task": language, "model__N_encoder": 0}
    keys |= {"optim__max_steps": 20, "trainer__val_every": 12, "decode__average": 4}
    rows, looks = ("base", "optim.lr_scale=0.05", "optim.lr_scale=0.15"), {"looks": "2 3 4", "base_seeds": 6}
    grid = small_grid(tmp_path / "grid", rows, (1, 2, 3, 4), **keys, **looks)
    alone, runs, chance = tmp_path / "alone", tmp_path / "runs", random.Random(seed)
    assert forked.command("sweep", grid, "--runs", alone).returncode == 0

    def lines():
        return sum(path.read_bytes().count(b"\n") for path in runs.glob("trials/*/metrics.jsonl"))

    with (tmp_path / "log.txt").open("w") as log:
        started = [forked.start("sweep", grid, "--runs", runs, "--parallel", 1, output=log) for _ in range(2)]
        for _ in range(8):
            until, i = lines() + chance.randrange(1, 60), chance.randrange(2)
            wait_for(lambda until=until: lines() >= until or started[0].poll() == started[1].poll() == 0, 200)
            trials = descendants(started[i].pid) if chance.random() < 0.5 else []
            started[i].kill()
            for pid in trials:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            started[i] = forked.start("sweep", grid, "--runs", runs, "--parallel", 1, output=log)
        assert [one.wait(300) for one in started] == [0, 0], (tmp_path / "log.txt").read_text()
    folders = [next(path.glob("sweeps/*")) for path in (alone, runs)]
    assert decisions(folders[0]) == decisions(folders[1]) and table(alone) == table(runs)
    trained = [{path.parent.name for path in one.glob("trials/*/result.json")} for one in (alone, runs)]
    assert all(name.startswith("base-") for name in trained[0] ^ trained[1])
    shutil.rmtree(next(alone.glob("trials/base-s1-*")))
    again, planned = forked.command("sweep", grid, "--runs", alone), plan_trials(read_sweep(grid), alone)
    needed = len(as_seen(read_sweep(grid), planned, folders[0]).trials)  # by any look; others are not counted
    assert needed < len(planned) and f"[{needed}/{needed}] base s1" in again.stdout


@pytest.mark.parametrize("other", [{}, {"looks": ["3 4"]}, {"looks": ["2 4"], "base_seeds": [6]}])
def test_looks_stay_those_with_which_the_training_began(sweep, tmp_path, other):
    """Whoever trains on, or prints the table, gives the same ones; the margin is remembered."""
    file, folder = tmp_path / "looks.yaml", tmp_path / "sweeps" / "looks@demo"
    folder.mkdir(parents=True)
    plan, looks = plan_of(sweep, tmp_path), check_looks(file, sweep, folder, margin=0.5)
    (folder / "plan.json").write_text(json.dumps(as_json(plan) | {"looks": looks, "tested": what_is_tested(sweep)}))
    changed = read_sweep(write_sweep(tmp_path / "other.yaml", {"variant": VARIANTS} | other), seeds=SEEDS)
    check_looks(file, changed, folder)  # nothing has been trained
    train(plan.trials[0])
    with pytest.raises(InputError, match="looks"):
        check_looks(file, changed, folder)
    with pytest.raises(InputError, match="looks"):
        check_looks(file, sweep, folder, margin=0.7)
    with pytest.raises(InputError, match="--seeds 1,2,3,4 --looks 2,4 --base-seeds 8"):
        check_looks(file, read_sweep(tmp_path / "looks.yaml", seeds=["5", "6", "7", "8"]), folder)
    assert check_looks(file, sweep, folder) == looks


def test_what_an_agent_has_trained_has_no_looks(tmp_path):
    """W&B's agent trains the grid of seeds, so that one plain table is made of all of it."""
    values = {"variant": VARIANTS, "seed": [1, 2, 3, 4], "looks": ["2 4"], "base_seeds": [8]}
    file = write_sweep(tmp_path / "looks.yaml", values)
    grid = read_sweep(file).without_looks()
    for planned in plan_trials(grid, tmp_path):
        train(planned)
    printed = json.loads(ended(report.main, file, "--runs", tmp_path, "--format", "json")[1])
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
