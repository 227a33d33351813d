"""The plan: its trials, their order, cost and time, and how it is printed."""

import io
import json
import re
from copy import copy
from unittest import mock

import pytest
import torch
from grids import small_grid
from helpers import ROOT, a_result
from rich.console import Console

from transformer_pl.config import Component, effective_sizes
from transformer_pl.config.levels import scale_measured
from transformer_pl.plan.plan import CostEstimate, Plan, as_json, estimate_costs, plan_trials, print_plan
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.shared_options import TableOptions, sweep_folder
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime.files import write_json
from transformer_pl.runtime.terminal import UNBROKEN
from transformer_pl.train.command import read_argv
from transformer_pl.trials.flops import ASSUMED_LENGTH, Cost, training_costs
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_config import trial_config
from transformer_pl.trials.trial_folder import folder_name

LEARNED = "ablations.learned_position.LearnedPosition"
TABLE3 = read_sweep(ROOT / "sweeps" / "table3.yaml", seeds=["1"])
TABLE3_A, TABLE3_C = (read_sweep(ROOT / "sweeps" / f"table3_{rows}.yaml", seeds=["1", "2"]) for rows in "AC")


def printed(runs, width, content=TABLE3_A, finished=(), at_once=1):
    """The lines of a plan in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    runs = RunsFolder(runs)
    trials = plan_trials(content, runs)
    missing = [planned for planned in trials if planned.folder.needs_training()]
    print_plan(Plan(content, trials, estimate_costs(trials, finished)), missing, console, runs, at_once)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def timed(config, seconds, **keys):
    """The result of a finished trial of this config."""
    flat = config.flat() | effective_sizes(config)
    made = {"flops": 1e12, "weights_id": f"{round(1000 * seconds):012x}", "steps": config.steps} | keys
    return a_result(config=flat, wall_s=seconds, **made)


def changed(config, section, **keys):
    """The config with these keys of a section."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=keys)})


# ---------------------------------------------------------------------------------------------------------------------
# Its trials


def test_seed_by_seed_the_longest_trials_start_first_and_equal_ones_as_in_the_file(tmp_path):
    """By FLOPs. So every row is seen early."""
    trials = plan_trials(TABLE3_C, RunsFolder(tmp_path))
    costs = estimate_costs(trials, [])
    queue, ordered = GridQueue(trials, costs), []
    while planned := queue.next(set()):
        ordered.append(planned)
    assert [one.config.seed for one in ordered] == [1] * 8 + [2] * 8
    for of_seed in (ordered[:8], ordered[8:]):
        flops = [costs[one.place].cost.flops for one in of_seed]
        assert flops == sorted(flops, reverse=True) and of_seed[0].config.model.d_model == 1024


def test_a_trial_has_its_place_in_the_runs_folder(tmp_path):
    trials = plan_trials(TABLE3_A, RunsFolder(tmp_path))
    assert [(one.place, one.name) for one in trials[:3]] == [(0, "h=1 s1"), (0, "h=1 s2"), (1, "h=4 s1")]
    for one in trials:
        assert one.folder.path == tmp_path / "trials" / f"{one.origin.row}-s{one.config.seed}-{one.id}"
        assert one.prepared.folder.parent == tmp_path / "data" and not one.prepared.folder.exists()
    assert len({one.id for one in trials}) == 10
    assert len({one.prepared.folder for one in trials}) == 1  # all read one dataset


def test_the_arguments_of_a_trial_give_its_config(tmp_path):
    """Also of what is no single word, with false and null in it."""
    stop = {"monitor": "val/loss", "check_finite": False, "stopping_threshold": None, "in_identity": True}
    callbacks = [{"lightning.pytorch.callbacks.EarlyStopping": stop}, "stopping_callback.StopAt"]
    rows = ("base", "model.h=4 model.p_drop=0.0", "data.train_pairs=None decode.alpha=1e-05")
    file = small_grid(tmp_path / "grid", rows, (1, 3), trainer__callbacks=callbacks)
    for planned in plan_trials(read_sweep(file), RunsFolder(tmp_path / "runs")):
        options = read_argv(planned.argv)
        assert trial_config(options.levels()) == planned.config and options.runs == tmp_path / "runs"


def test_what_is_kept_of_a_plan(tmp_path):
    trials = plan_trials(TABLE3_A, RunsFolder(tmp_path))
    plan = Plan(TABLE3_A, trials, estimate_costs(trials, []))
    kept = as_json(plan)
    assert (kept["name"], kept["scale"], len(kept["trials"])) == ("table3-A", "demo", 10)
    for one, planned in zip(kept["trials"], trials, strict=True):
        cost = plan.estimates[planned.place].cost
        assert (one["params"], one["flops"]) == (cost.params, cost.flops)
        assert f"{one['row']} s{one['seed']}" == planned.name and planned.folder.name == one["folder"]
        assert one["config"]["effective.d_model"] == 64 and one["config"]["model.d_model"] == 512


# ---------------------------------------------------------------------------------------------------------------------
# Cost and time


def with_(trial, **changes):
    """The trial with other attributes."""
    other = copy(trial)
    vars(other).update(changes)
    return other


def test_the_time_is_by_the_flops_of_the_same_components_dataset_and_trainer(tmp_path):
    """The median. One that took its weights from another was not trained. Short trials tell nothing of longer ones."""
    trials = plan_trials(TABLE3_A, RunsFolder(tmp_path))
    base = changed(trials[4].config.model_copy(update={"seed": 7}), "trainer", threads=3)
    known = ((40.0, 4e10, None), (1.0, 1e12, 12 * "a"), (30.0, 6e10, None), (90.0, 72e10, None))
    finished = [timed(base, seconds, flops=flops, weights_of=weights) for seconds, flops, weights in known]
    others = [changed(base, "data", batch_tokens=300), changed(base, "trainer", precision="bf16-mixed")]
    others += [changed(base, "optim", max_steps=20)]
    finished += [timed(other, 5.0 + n, flops=1.0) for n, other in enumerate(others)]
    estimate = estimate_costs(trials, finished)[0]
    assert estimate.seconds == pytest.approx(30 / 6e10 * estimate.cost.flops)
    assert estimate_costs(trials, finished[4:])[0].seconds is None
    short = [with_(one, config=changed(one.config, "optim", max_steps=20)) for one in trials]
    assert estimate_costs(short, finished[4:])[0].seconds  # as the last one is as short, and has its components


def test_trials_that_callbacks_end_early_take_as_long_as_those_that_they_have_ended(tmp_path):
    """Two of three ended after 100 steps of 400, at a quarter of a second each; the last one after a few steps."""
    trials = [
        with_(one, config=changed(one.config, "optim", max_steps=400))
        for one in plan_trials(TABLE3_A, RunsFolder(tmp_path))
    ]
    whole = estimate_costs(trials, [])[0].cost.flops
    early = {"steps": 100, "flops": whole / 4, "stopped_early": True}
    finished = [timed(trials[0].config, n, **early) for n in (25.0, 25.001)]
    finished.append(timed(trials[0].config, 99.0, flops=whole))
    assert estimate_costs(trials, finished)[0].seconds == pytest.approx(25.0, rel=1e-3)
    short = [with_(one, config=changed(one.config, "optim", max_steps=50)) for one in trials]
    assert estimate_costs(short, finished)[0].seconds == pytest.approx(12.5, rel=1e-3)
    few = timed(trials[0].config, 7.0, steps=4, flops=whole / 100, stopped_early=True)
    assert estimate_costs(trials, [few])[0].seconds == pytest.approx(7.0)


def test_before_anything_has_run_the_time_is_that_of_the_scale(tmp_path):
    """By the FLOPs, from its fastest processor to its slowest.

    A finished trial on the same data counts instead, whatever its parts.
    """
    trials = plan_trials(TABLE3, RunsFolder(tmp_path))
    measured, estimates = scale_measured("demo"), estimate_costs(trials, [], by_scale=True)
    base, big = (estimates[next(one.place for one in trials if one.name == f"{row} s1")] for row in ("base", "N=8"))
    ends = min(measured.seconds), max(measured.seconds)
    assert (base.seconds, base.at_most) == pytest.approx(ends) and base.processor == measured.processor
    assert big.at_most / big.seconds == pytest.approx(ends[1] / ends[0])
    assert big.seconds / base.seconds == pytest.approx(big.cost.flops / base.cost.flops) and big.seconds > base.seconds
    other = changed(trials[0].config, "model", position=Component(path=LEARNED))
    ours = estimate_costs(trials, [timed(other, 7.0, flops=base.cost.flops)], by_scale=True)[trials[0].place]
    assert ours.seconds == pytest.approx(7.0 / base.cost.flops * ours.cost.flops)
    assert not ours.processor and ours.at_most is None
    for keys in ({"batch_tokens": 256}, {"path": "elsewhere"}):  # of which the scale says nothing
        one = with_(trials[0], config=changed(trials[0].config, "data", **keys))
        assert estimate_costs([one], [], by_scale=True)[one.place].seconds is None


def test_the_cost_is_of_the_dataset_s_lengths_once_they_are_known(tmp_path):
    first, *_ = plan_trials(TABLE3_A, RunsFolder(tmp_path))
    counted_text = mock.Mock(is_counted=lambda: True, mean_lengths=(10.0, 20.0))
    for one, sides in ((first, (ASSUMED_LENGTH,) * 2), (with_(first, prepared=counted_text), (10.0, 20.0))):
        estimate = estimate_costs([one], [])[0]
        assert [estimate.cost] == training_costs([(first.config, sides)])


def test_a_row_that_has_a_result_costs_what_it_says(tmp_path):
    """For all of its steps, and with all passes of the model, which the plan need not count again."""
    first, second, *_ = plan_trials(TABLE3_A, RunsFolder(tmp_path))
    second.folder.make()
    second.folder.finish(a_result(id=second.id, params=7, flops=3e9, steps=first.config.steps // 2))
    cost = estimate_costs([first, second], [], {first.place: 2.0})[first.place].cost
    assert cost == (7, pytest.approx(6e9))


# ---------------------------------------------------------------------------------------------------------------------
# As it is printed


def test_a_row_shows_the_sizes_that_differ_from_base(tmp_path):
    """As configured and as they are at this scale's width and depth; with its cost, its time and its trials."""
    lines = printed(tmp_path, UNBROKEN)
    assert "N=6 → 3, d_model=512 → 64, d_ff=2048 → 256, h=8, d_k=64 → 8, d_v=64 → 8, max_steps=" in lines[1]
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:8]}
    assert " ".join(rows["h=32"]).startswith("h=32, d_k=16 → 2, d_v=16 → 2 ")
    assert re.fullmatch(r"\d+K \d\.\de12 unknown 2 new", " ".join(rows["base"]))
    assert not any(re.search(r"\d:\d\d", line) for line in lines)  # no time is known, so none is told
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"], sets={"model.width": "1", "model.depth": "1"})
    assert not any("→" in line for line in printed(tmp_path, UNBROKEN, content))


def test_in_a_narrow_terminal_every_word_is_whole(tmp_path):
    wide, narrow = (printed(tmp_path, width, TABLE3) for width in (UNBROKEN, 80))
    assert max(map(len, narrow)) <= 80 and not any("…" in line for line in narrow)
    words = {word for line in narrow for word in line.split()}
    assert {word for row in TABLE3.rows for word in row.name.split()} | {"params", "FLOPs", "time", "trials"} <= words
    assert all(any(line.startswith(f"{row.name} ") for line in wide) for row in TABLE3.rows)


def test_the_time_is_of_the_rows_of_which_it_is_known_and_a_row_that_is_left_out_has_no_sizes(tmp_path):
    trials = plan_trials(TABLE3_A, RunsFolder(tmp_path))
    costs = estimate_costs(trials, [])
    costs = {row: cost._replace(seconds=90.0 if row < 3 else None) for row, cost in costs.items()}
    costs[4] = CostEstimate(Cost(0, 0.0), None)
    console = Console(file=io.StringIO(), width=UNBROKEN)
    print_plan(Plan(TABLE3_A, trials, costs), trials[:-2], console, RunsFolder(tmp_path))
    lines = console.file.getvalue().splitlines()
    assert lines[7].split() == ["h=32", "2", "left", "out"]
    assert "about 9:00 of training left, and that of 2 trials " in next(
        line for line in lines if line.startswith("time")
    )


def test_the_state_and_the_time_of_what_is_left(tmp_path):
    """Ten trials of 90 s; one has failed, one is done."""
    trials = plan_trials(TABLE3_A, RunsFolder(tmp_path))
    flops = estimate_costs(trials, [])
    known = [timed(one.config, 90.0, flops=flops[one.place].cost.flops) for one in trials[::2]]
    trials[0].folder.make()
    trials[0].folder.set_status("failed", why="a full disk")
    trials[2].folder.make()
    trials[2].folder.finish(known[1])
    lines = printed(tmp_path, UNBROKEN, finished=known)
    assert "10 trials, 9 to train" in lines[0]
    assert [line.split(" ~1:30 ")[1] for line in lines[3:6]] == ["1 failed, 1 new", "1 done, 1 new", "2 new"]
    assert any("about 13:30" in line for line in lines)
    assert any("about 3:22" in line for line in printed(tmp_path, UNBROKEN, finished=known, at_once=4))
    assert any("about 1:30" in line for line in printed(tmp_path, UNBROKEN, finished=known, at_once=20))


def test_rows_that_share_their_weights_take_the_time_of_one_training(tmp_path):
    """Whichever of them is trained first; none is trained where one has finished, and its weights are there."""
    heads = read_sweep(ROOT / "sweeps" / "heads.yaml", seeds=["1", "2"])
    trials = plan_trials(heads, RunsFolder(tmp_path))
    known = [timed(trials[0].config, 90.0, flops=estimate_costs(trials, [])[0].cost.flops)]
    for done, left, one in ((0, "3:00", trials[4]), (1, "1:30", trials[7]), (2, None, None)):
        lines = printed(tmp_path, UNBROKEN, heads, known)
        assert f"{2 - done} to train, {len(trials) - 2} to evaluate" in lines[0]
        rows = " ".join(lines[1:])
        of_rows = [sum(map(int, re.findall(rf"(\d+) {state}\b", rows))) for state in ("new", "to evaluate")]
        assert of_rows == [2 - done, len(trials) - 2]
        assert [line.split()[2] for line in lines if line.startswith("time:")] == ([left] if left else [])
        if one:
            one.folder.make()
            write_json(one.folder.path / "identity.json", one.identity.inputs)
            one.folder.finish(a_result(id=one.id))
            assert f"{2 - done} to train" in printed(tmp_path, UNBROKEN, heads, known)[0]
            one.folder.save_weights({"a": torch.zeros(1)})
            (one.folder.path / "metrics.jsonl").touch()


def test_new_trials_that_resemble_a_finished_one_say_why_they_are_new(tmp_path):
    one = plan_trials(TABLE3_A, RunsFolder(tmp_path))[0]
    one.folder.make()
    one.folder.finish(a_result(id=one.id))
    (one.folder.path / "identity.json").write_text(json.dumps(one.identity.inputs | {"core": 1}))
    one.folder.path.rename(one.folder.path.with_name(folder_name("h=1", 1, "0123456789ab")))
    (reason,) = [line for line in printed(tmp_path, 200) if "core revision 1" in line]
    assert "h=1 s1" in reason
    one.folder.make()
    one.folder.set_status("running")  # what has begun is not new
    assert not any("core revision" in line for line in printed(tmp_path, 200))


def test_a_scale_of_one_s_own_is_known_by_its_content(tmp_path):
    """Else an edited scale continues the study of the old one, and two files of one name share a table."""

    def folder(scale, text="optim.max_steps: 10\n"):
        path = tmp_path / scale
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        file = ROOT / "sweeps" / "table3_A.yaml"
        return sweep_folder(read_sweep(file, str(path)), TableOptions())

    first = folder("mine.yaml")
    assert first == folder("mine.yaml", "# a comment\noptim.max_steps: 10\n") == folder("other/mine.yaml")
    assert first != folder("mine.yaml", "optim.max_steps: 40\n") and first.name.startswith("table3-A@mine-")
    assert folder("demo.yaml").name != "table3-A@demo"
