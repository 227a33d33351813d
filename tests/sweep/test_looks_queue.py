"""The queue of a sweep that is looked at: what it gives out, what it decides once, and what several commands share."""

import io
import json
import os
import random
import shutil
import signal
from contextlib import suppress
from functools import cache

import forked
import numpy as np
import pytest
from chance import drawn
from filelock import FileLock
from grids import small_grid, table
from helpers import a_result, descendants, little_text, wait_for, write_sweep
from made_rows import sweep_table
from rich.console import Console
from tiny_trials import ended

from transformer_pl.plan.plan import CostEstimate, Plan, as_json, plan_trials, print_plan
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.report.decisions import read_decisions
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_json
from transformer_pl.sweep.looks_queue import LooksQueue
from transformer_pl.tasks.translation import Translation, bleu
from transformer_pl.trials.flops import Cost
from transformer_pl.trials.runs_folder import RunsFolder

GAPS = {"base": 0.0, "h=4": 0.0, "h=16": -1.5, "p_drop=0.0": -0.2}  # after two seeds h=16 is found, p_drop is open
SEEDS, BASE_SEEDS = ["1", "2", "3", "4"], 8


VARIANTS = ["base", "model.h=4", "model.h=16", "model.p_drop=0.0"]


@pytest.fixture
def sweep(tmp_path):
    values = {"variant": VARIANTS, "looks": ["2 4"], "base_seeds": [8]}
    return read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS)


def train(trial, state="done", sentences=60):
    """What a training leaves behind. The score of a trial depends on its row and its seed alone."""
    trial.folder.make()
    if state != "done":
        return trial.folder.set_status(state)
    numbers = scores(sentences, *GAPS.values())[[*GAPS].index(trial.origin.row), trial.config.seed]
    numbers_and_losses = np.concatenate([numbers, np.ones((sentences, 2))], 1)
    trial.folder.save_sentences("val", ["a"] * sentences, Translation.measure, numbers_and_losses)
    score = {"val/bleu": float(bleu(numbers.sum(0))), "val/ppl": 2.0}
    write_json(trial.folder.path / "identity.json", trial.identity.inputs)
    return trial.folder.finish(a_result(id=trial.id, weights_id=trial.identity.weights, metrics=score))


@cache
def scores(sentences, *gaps):
    return drawn(np.random.default_rng(3), len(gaps), BASE_SEEDS + 1, sentences, 0.03, gap=gaps)


def plan_of(sweep, runs):
    costs = {row: CostEstimate(Cost(1, 1.0), None) for row in range(len(sweep.rows))}
    return Plan(sweep, plan_trials(sweep, RunsFolder(runs)), costs)


def decided(sweep, runs, margin=None):
    return read_decisions(runs / "looks.yaml", sweep, plan_trials(sweep, RunsFolder(runs)), runs, margin)


def queue_of(sweep, runs, rerun=False):
    decisions = decided(sweep, runs)
    missing = [trial for trial in decisions.trials if rerun or trial.needs_training()]
    return LooksQueue(plan_of(sweep, runs), missing, decisions)


def table_of(sweep, runs):
    decisions = decided(sweep, runs)
    return sweep_table(Grid(sweep, decisions.trials, decisions.looked_at()))[0]


def contrast_of(sweep, runs, row):
    (found,) = [contrast for contrast in table_of(sweep, runs).contrasts if contrast.row.name == row]
    return found


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
    """The verdicts of each decision, by row."""
    return [json.loads(path.read_text())["verdicts"] for path in sorted(folder.glob("look_*.json"))]


def test_rows_that_are_decided_get_no_more_seeds(sweep, tmp_path):
    """The base has seeds of its own, and the table shows each row with the seeds that decided it. No decision is made
    anew, neither by the same command again, nor by one that has not seen it."""
    unaware = decided(sweep, tmp_path)
    trained = run(queue_of(sweep, tmp_path))
    verdicts, last = before = decisions(tmp_path)
    assert [*last] == [name for name, verdict in verdicts.items() if verdict == "open"]
    assert verdicts["h=16"] == "found"
    for row, verdict in verdicts.items():
        assert sum(name.startswith(f"{row} ") for name in trained) == (4 if verdict == "open" else 2)
    assert len(trained) == len({*trained})
    assert {f"base s{seed}" for seed in range(1, 5)} <= {*trained}
    found = contrast_of(sweep, tmp_path, "h=16")
    assert found.is_found and len(found.scores) == 2
    assert unaware.decide().taken == decided(sweep, tmp_path).taken
    assert run(queue_of(sweep, tmp_path)) == [] and decisions(tmp_path) == before
    print_plan(plan_of(sweep, tmp_path), [], console := Console(file=io.StringIO(), width=200), RunsFolder(tmp_path))
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith("h=16")]
    assert "2 done, 2 left out" in line


@pytest.mark.parametrize("stopped", ["before", "after"])
def test_a_trial_that_a_look_made_needless_keeps_no_checkpoint(sweep, tmp_path, stopped):
    """Whether it was stopped before the look was decided, or has been trained on by a command that did not know."""
    planned = plan_trials(sweep, RunsFolder(tmp_path))
    needless, needed = (next(one.folder for one in planned if one.name == name) for name in ("h=16 s3", "base s2"))
    if stopped == "after":
        run(queue_of(sweep, tmp_path))
    for folder in (needless, needed):
        folder.checkpoints.mkdir(parents=True)
    run(queue_of(sweep, tmp_path))
    assert not needless.checkpoints.exists() and needed.checkpoints.exists() == (stopped == "after")


def changed(**changes):
    """Changes the file of a look, or its plan where that has the key."""

    def change(content):
        plan = content["plan"] | {key: value for key, value in changes.items() if key in content["plan"]}
        made = {key: value(content[key]) if callable(value) else value for key, value in changes.items()}
        return json.dumps(content | {key: value for key, value in made.items() if key not in plan} | {"plan": plan})

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda content: json.dumps(content)[:30],
        lambda content: "",
        changed(p={}),
        changed(look=2),
        changed(verdicts=lambda old: old | {"h=16": "unlikely"}),
        changed(verdicts=lambda old: old | {"h=64": "open"}),
        changed(results=lambda old: old | {"h=4": []}),
        changed(results=lambda old: {row: ids[::-1] for row, ids in old.items()}),
        changed(results=lambda old: {row: ids for row, ids in old.items() if row != "h=4"}),
        changed(levels=[0.5, 0.001]),
        changed(seeds=[2, 1, *range(3, 9)]),
        changed(rows=["base", "h=16", "h=4", "p_drop=0.0"]),
    ],
)
def test_a_look_whose_file_is_damaged_or_changed_is_refused(sweep, tmp_path, change):
    """By whoever makes a table, and by a command that runs."""
    run(queue_of(sweep, tmp_path))
    file, running = tmp_path / "look_1.json", queue_of(sweep, tmp_path)
    file.write_text(change(json.loads(file.read_text())))
    with pytest.raises(InputError, match=r"look_1\.json"):
        table_of(sweep, tmp_path)
    for spoil in (file.unlink, file.mkdir):
        spoil()
        for read in (running.decisions.again, lambda: decided(sweep, tmp_path)):
            with pytest.raises(InputError, match=r"look_1\.json"):
                read()


def test_a_decision_holds_for_no_other_trials(sweep, tmp_path):
    """Rows of the same names are others, where a key that all of them share has changed in the file."""
    run(queue_of(sweep, tmp_path))
    values = {"variant": VARIANTS, "looks": ["2 4"], "base_seeds": [8], "optim.warmup": 77}
    other = read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS)
    with pytest.raises(InputError, match=r"look_1\.json"):
        decided(other, tmp_path)


def test_a_table_has_the_results_that_its_verdicts_are_of(sweep, tmp_path, monkeypatch):
    """What is missing is trained again. If it then shows another verdict, the decision is refused."""
    run(queue_of(sweep, tmp_path))
    by_name = {trial.name: trial for trial in plan_trials(sweep, RunsFolder(tmp_path))}
    for name in ("h=16 s1", "h=16 s2"):
        by_name[name].folder.clear()
    with pytest.raises(InputError, match="h=16 s1"):
        table_of(sweep, tmp_path)
    assert run(queue_of(sweep, tmp_path)) == ["h=16 s1", "h=16 s2"]
    assert contrast_of(sweep, tmp_path, "h=16").is_found
    monkeypatch.setitem(GAPS, "h=16", 0.0)
    for name in ("h=16 s1", "h=16 s2"):
        by_name[name].folder.clear()
    run(queue_of(sweep, tmp_path))
    with pytest.raises(InputError, match=r"look_1\.json.*h=16"):
        table_of(sweep, tmp_path)


@pytest.mark.parametrize("gap", [0.0, -0.21])  # with the second one it is trained on after its first look
def test_a_row_with_a_failed_trial_is_decided_when_its_retry_is_whole(sweep, tmp_path, monkeypatch, gap):
    """Until then it is left out. The verdicts and p of the other rows stay. A trial that had failed before is tried
    again, also by a command that finds all others finished."""
    beside = tmp_path / "beside"
    beside.mkdir()
    for planned in plan_trials(sweep, RunsFolder(beside)):
        train(planned, "failed" if planned.name == "h=4 s2" else "done")
    assert run(queue_of(sweep, beside)) == ["h=4 s2"] and "h=4" in decisions(beside)[0]
    monkeypatch.setitem(GAPS, "h=4", gap)
    trained = run(queue_of(sweep, tmp_path), fails={"h=4 s2"})
    first, before = decisions(tmp_path), table_of(sweep, tmp_path)
    assert "h=4" not in first[0] and not {"h=4 s3", "h=4 s4"} & {*trained}
    assert all(one.p_value is None for one in before.contrasts if one.row.name == "h=4")
    assert any("eft out" in note and "h=4" in note.partition("eft out")[2] for note in before.notes)
    again, after = run(queue_of(sweep, tmp_path)), table_of(sweep, tmp_path)
    late = decisions(tmp_path)[len(first) :]
    assert decisions(tmp_path)[: len(first)] == first and all([*verdicts] == ["h=4"] for verdicts in late)
    assert late[0] == {"h=4": "open" if gap else "unlikely"}
    assert again == ["h=4 s2", *(["h=4 s3", "h=4 s4"] if gap else [])] and len(late) == (2 if gap else 1)
    assert not any("eft out" in note for note in after.notes) and run(queue_of(sweep, tmp_path)) == []
    for old, new in zip(before.contrasts, after.contrasts, strict=True):
        assert (old.p_value == new.p_value and old.estimate == new.estimate) or new.row.name == "h=4"
        assert new.row.is_base or new.p_value is not None


@pytest.mark.parametrize("fails", [set(), {"h=16 s2"}])
def test_rows_that_start_from_a_row_are_decided_by_themselves(tmp_path, monkeypatch, fails):
    """One that goes on gets its start, also where that was decided; one whose start has failed is left out."""
    row = "start=h=16 lr_scale=0.5"
    monkeypatch.setitem(GAPS, row, -0.4)
    variants = [*VARIANTS, "model.start=h=16 optim.lr_scale=0.5"]
    values = {"variant": variants, "looks": ["2 4"], "base_seeds": [8]}
    queue = queue_of(read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS), tmp_path)
    trained = run(queue, fails)
    assert queue.waits() is None
    if fails:
        assert row not in decisions(tmp_path)[0] and f"{row} s2" not in trained
    else:
        assert decisions(tmp_path)[0][row] == "open" and decisions(tmp_path)[0]["h=16"] == "found"
        assert all(trained.index(f"h=16 s{seed}") < trained.index(f"{row} s{seed}") for seed in SEEDS)


def test_nothing_is_decided_without_all_of_base(sweep, tmp_path):
    run(queue_of(sweep, tmp_path), fails={"base s2"})
    assert not decisions(tmp_path)


def test_a_row_that_was_stopped_counts_with_the_seeds_that_it_had(sweep, tmp_path):
    """Also where another sweep has trained more of them, before the next look."""
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    for folder in (alone, beside):
        folder.mkdir()
        for planned in plan_trials(sweep, RunsFolder(folder)):
            if folder == beside and planned.origin.row == "h=16" and planned.config.seed > 2:
                train(planned)
        run(queue_of(sweep, folder))
    tables = [table_of(sweep, folder).contrasts for folder in (alone, beside)]
    assert decisions(alone) == decisions(beside) and "open" in decisions(alone)[0].values()
    for one, other in zip(*tables, strict=True):
        assert (one.p_value, one.estimate) == (other.p_value, other.estimate)


def test_rows_that_have_too_few_sentences_for_tests_get_all_seeds(sweep, tmp_path):
    assert len(run(queue_of(sweep, tmp_path), sentences=5)) == 3 * 4 + 8
    assert all({*verdicts.values()} == {"open"} for verdicts in decisions(tmp_path))


def test_what_is_trained_again_changes_no_decision(sweep, tmp_path):
    """With --rerun all that the looks have needed, and what had failed, also when all is decided."""
    trained = run(queue_of(sweep, tmp_path), fails={"h=4 s2"})
    trained += run(queue_of(sweep, tmp_path))[1:]
    before, again = decisions(tmp_path), queue_of(sweep, tmp_path, rerun=True)
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
    assert len(decisions(tmp_path)) == 1


def test_a_look_waits_for_a_trial_that_is_trained_again(sweep, tmp_path):
    """Whoever does that may be killed; then any command that waits for the look takes the trial over."""
    planned = plan_trials(sweep, RunsFolder(tmp_path))
    again = next(one for one in planned if one.name == "h=4 s2")
    train(again)
    queue = queue_of(sweep, tmp_path)
    with again.folder.lock.hold():
        again.folder.clear()
        again.folder.set_status("running")
        trained = run(queue)
        assert "h=4 s1" in trained and "h=4 s2" not in trained and queue.waits()
        assert not decisions(tmp_path)
    assert run(queue)[0] == "h=4 s2" and len(decisions(tmp_path)[0]) == 3


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
            if planned.folder.result():
                queues[i].ended(planned, "done")
            else:
                held[i] = planned
    assert decisions(together) == decisions(alone)
    done = {one.name for one in plan_trials(sweep, RunsFolder(together)) if one.folder.result()}
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
    again, planned = forked.command("sweep", grid, "--runs", alone), plan_trials(read_sweep(grid), RunsFolder(alone))
    needed = len(read_decisions(grid, read_sweep(grid), planned, folders[0]).trials)  # by any look; others do not count
    assert needed < len(planned) and f"[{needed}/{needed}] base s1" in again.stdout


@pytest.mark.parametrize("other", [{}, {"looks": ["3 4"]}, {"looks": ["2 4"], "base_seeds": [6]}])
@pytest.mark.parametrize("stated_by", ["plan.json", "look_1.json"])
def test_looks_stay_those_with_which_the_training_began(sweep, tmp_path, other, stated_by):
    """Whoever trains on, or prints the table, gives the same ones; the margin is remembered. Each file tells them."""
    plan = decided(sweep, tmp_path, margin=0.5).plan
    files = {"plan.json": as_json(plan_of(sweep, tmp_path)) | {"looks": plan}}
    files["look_1.json"] = {"plan": plan, "look": 1, "results": {}, "verdicts": {}}
    (tmp_path / stated_by).write_text(json.dumps(files[stated_by]))
    others = [read_sweep(write_sweep(tmp_path / "other.yaml", {"variant": VARIANTS} | other), seeds=SEEDS)]
    others += [read_sweep(tmp_path / "looks.yaml", seeds=seeds) for seeds in (SEEDS[::-1], ["5", "6", "7", "8"])]
    for changed_sweep in others:
        with pytest.raises(InputError, match=r"--seeds 1,2,3,4 --looks 2,4 --base-seeds 8"):
            decided(changed_sweep, tmp_path)
    with pytest.raises(InputError, match="looks"):
        decided(sweep, tmp_path, margin=0.7)
    if stated_by == "plan.json":
        assert decided(sweep, tmp_path).plan == plan
        (tmp_path / stated_by).write_text("")  # which counts as missing
        assert decided(others[-1], tmp_path)


def test_a_command_that_starts_together_with_other_looks_is_told(tmp_path, monkeypatch):
    """It has planned its own when the other one writes plan.json."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    grid = small_grid(tmp_path / "grid", ("base", "optim.lr_scale=0.05"), (1, 2, 3), looks="2 3", base_seeds=3)
    runs, log = tmp_path / "runs", tmp_path / "log.txt"
    (folder := runs / "sweeps" / "grid@demo").mkdir(parents=True)
    with log.open("w") as output, FileLock(folder / "lock"):
        started = forked.start("sweep", grid, "--runs", runs, "--parallel", 1, output=output)
        wait_for(lambda: "6 trials, 6 to train" in log.read_text() or started.poll() is not None, 100)
        assert started.poll() is None, log.read_text()
        plan = read_decisions(grid, sweep := read_sweep(grid), plan_trials(sweep, RunsFolder(runs)), folder).plan
        (folder / "plan.json").write_text(json.dumps({"name": "grid", "looks": plan | {"looks": [3]}}))
    assert started.wait(100) == 2 and "--looks 3" in log.read_text()
    assert not [*runs.glob("trials/*")]


def test_what_an_agent_has_trained_has_no_looks(tmp_path):
    """W&B's agent trains the grid of seeds, so that one plain table is made of all of it."""
    values = {"variant": VARIANTS, "seed": [1, 2, 3, 4], "looks": ["2 4"], "base_seeds": [8]}
    file = write_sweep(tmp_path / "looks.yaml", values)
    grid = read_sweep(file).without_looks()
    for planned in plan_trials(grid, RunsFolder(tmp_path)):
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
        {"looks": ["2 4"], "variant": ["base"]},  # without any other row
    ],
)
def test_wrong_looks_are_refused(tmp_path, wrong):
    values = {"variant": ["base", "model.h=4"], "seed": [*map(int, SEEDS)]} | wrong
    with pytest.raises(InputError, match=next(iter(wrong))):
        read_sweep(write_sweep(tmp_path / "looks.yaml", values), seeds=SEEDS)
