"""The plan, and the table of the results, as they are printed: in a terminal of 80 columns, and in a pipe."""

import csv
import io
import json
import statistics
import sys
from types import SimpleNamespace

import pytest
import yaml
from helpers import ROOT, a_result, little_text
from rich.console import Console
from tiny_trials import in_a_command
from transformer_pl.experiments.plan_notes import CORE_RATE, WEEK, YEAR, long_note

from transformer_pl import sweep
from transformer_pl.config import effective_sizes, sizes
from transformer_pl.experiments.cost import ASSUMED_LENGTH, training_cost
from transformer_pl.experiments.plan import Plan, as_json, estimate_costs, longest_first, plan_trials
from transformer_pl.experiments.plan_table import print_plan
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.reporting.table import table_of
from transformer_pl.runtime.terminal import UNBROKEN, command_console, counted
from transformer_pl.trials.identity import CORE_REVISION

PRE = "model.residual=ablations.pre_norm.PreNormResidual"
TABLE3 = read_sweep(ROOT / "sweeps" / "table3.yaml", seeds=["1"])
TABLE3_A, TABLE3_C = (read_sweep(ROOT / "sweeps" / f"table3_{rows}.yaml", seeds=["1", "2"]) for rows in "AC")


def printed(runs, width, compare=None, content=TABLE3, finished=(), at_once=1, here=True):
    """The lines of a plan in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    trials = plan_trials(content, runs)
    missing = [planned for planned in trials if planned.trial.needs_training()]
    print_plan(Plan(content, trials, estimate_costs(trials, finished)), missing, console, compare, at_once, here)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def timed(config, seconds, **keys):
    """The result of a finished trial of this config."""
    flat = config.flat() | effective_sizes(config)
    made = {"flops": 1e12, "weights_id": f"of {seconds}", "steps": config.steps} | keys
    return a_result(config=flat, wall_s=seconds, **made)


# ---------------------------------------------------------------------------------------------------------------------
# In which order its trials start


def test_the_longest_trials_start_first_and_equal_ones_as_in_the_file(tmp_path):
    """By FLOPs, until a time is known of every row. Among equals, more heads are first."""
    trials = plan_trials(TABLE3_C, tmp_path)
    costs = estimate_costs(trials, [])
    ordered = longest_first(trials, costs)
    flops = [costs[one.row].cost.flops for one in ordered]
    assert flops == sorted(flops, reverse=True) and ordered[0].config.model.d_model == 1024
    assert [one.config.seed for one in ordered] == [1, 2] * 8
    same = plan_trials(TABLE3_A, tmp_path)
    equal = longest_first(same, {row: costs[0] for row in range(5)})
    assert [(one.config.model.h, one.config.seed) for one in equal[:4]] == [(32, 1), (32, 2), (16, 1), (16, 2)]
    base = [one for one in trials if one.config.model.h == 8][:4]
    assert longest_first(base, dict.fromkeys(costs, costs[0])) == base
    times = {row: estimate._replace(seconds=float(row), by_flops=False) for row, estimate in costs.items()}
    assert [one.row for one in longest_first(trials, times)[::2]] == [*range(7, -1, -1)]
    assert longest_first(trials, times | {0: costs[0]}) == ordered


def test_the_command_starts_the_longest_trials_first_and_its_table_stays_as_it_is(tmp_path, monkeypatch, capsys):
    little_text(tmp_path, 60, 8, 6)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    started: list = []
    monkeypatch.setattr(sweep, "launch", lambda queue, *rest: started.extend(queue.waiting))
    keys = ["--seeds", "1", "--runs", str(tmp_path / "runs"), "--set", f"data.path={tmp_path}", "data.vocab_size=300"]
    words = [str(ROOT / "sweeps" / "table3_C.yaml"), *keys]
    with in_a_command():
        sweep.main(words)
    (file,) = tmp_path.glob("runs/sweeps/*/results.csv")
    rows = [int(line["model.N"]) for line in csv.DictReader(file.read_text().splitlines())]
    assert [one.config.model.N for one in started] != rows == [row.configs[0].model.N for row in TABLE3_C.rows]
    assert started[0].config.model.d_model == 1024 and started[-1].config.model.N == 2
    capsys.readouterr()
    sweep.main([*words, "--plan", "--launcher", "slurm"])
    tasks = [line for line in capsys.readouterr().out.splitlines() if ") export " in line]
    assert len(tasks) == 8 and "--model.d_model=1024" in tasks[0] and "--model.N=2" in tasks[-1]


# ---------------------------------------------------------------------------------------------------------------------
# What it is made of


def test_a_trial_has_its_place_in_the_runs_folder(tmp_path):
    trials = plan_trials(TABLE3_A, tmp_path)
    assert [(one.row, one.name) for one in trials[:3]] == [(0, "h=1 s1"), (0, "h=1 s2"), (1, "h=4 s1")]
    for one in trials:
        row = TABLE3_A.rows[one.row].name.replace("=", "-")
        assert one.trial.folder == tmp_path / "trials" / f"demo-{row}-s{one.config.seed}-{one.identity.trial}"
        assert one.prepared.folder.parent == tmp_path / "data" and not one.prepared.folder.exists()
    assert len({one.identity.trial for one in trials}) == 10
    assert len({one.prepared.folder for one in trials}) == 1  # all read one text


def test_the_time_is_that_of_other_seeds_whatever_does_not_change_it(tmp_path):
    """The median; where the text lies, what it is called and how many threads there were are left out."""
    trials = plan_trials(TABLE3_A, tmp_path)
    moved = trials[0].config.model_copy(update={"seed": 7})
    moved = moved.model_copy(update={"trainer": moved.trainer.model_copy(update={"threads": 3})})
    older = timed(trials[0].config, 50.0)
    del older["config"]["trainer.checkpoint_minutes"]  # a key that was added later
    estimates = estimate_costs(trials, [timed(moved, 10.0), older, timed(moved, 20.0)])
    assert (estimates[0].seconds, estimates[0].by_flops) == (20.0, False)
    assert all(estimates[row].by_flops for row in range(1, 5))
    other = moved.model_copy(update={"decode": moved.decode.model_copy(update={"beam": 1})})
    assert estimate_costs(trials, [timed(other, 10.0)])[0].by_flops


def test_the_time_of_other_rows_is_by_their_flops(tmp_path):
    """The median time of a FLOP. Of trials that share weights the slowest trained them; other batches do not count."""
    trials = plan_trials(TABLE3_A, tmp_path)
    base = trials[4].config
    batches = base.model_copy(update={"data": base.data.model_copy(update={"batch_tokens": 300})})
    known = ((40.0, 4e10, "a"), (1.0, 1e12, "a"), (30.0, 6e10, "b"), (90.0, 72e10, "c"))
    finished = [timed(base, seconds, flops=flops, weights_id=weights) for seconds, flops, weights in known]
    estimate = estimate_costs(trials, [*finished, timed(batches, 5.0, flops=1.0)])[0]
    per_flop = statistics.median([40 / 4e10, 30 / 6e10, 90 / 72e10])
    assert estimate.by_flops and estimate.seconds == pytest.approx(per_flop * estimate.cost.flops)
    nothing = estimate_costs(trials, [timed(batches, 5.0)])[0]
    assert nothing.seconds is None and nothing.by_flops


def changed(config, section, **keys):
    """The config with these keys of a section."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=keys)})


def test_the_time_of_a_row_is_by_a_shorter_trial_of_its_model(tmp_path):
    """The time of its steps grows with their number, that of its start and its evaluation does not."""
    trials = plan_trials(TABLE3_A, tmp_path)
    base = trials[4].config
    flops = estimate_costs(trials[4:5], [])[2].cost.flops
    short = changed(
        changed(base, "optim", max_steps=base.steps // 10), "trainer", val_every=7, log_every=3, bleu_sample=9
    )
    rate = short.steps * short.data.batch_tokens / 20  # 20 s of 35 were its steps
    trial = timed(short, 35.0, flops=flops / 10, steps=short.steps, tokens_per_s=rate)
    other = timed(changed(short, "model", h=4), 99.0, flops=flops / 10)
    estimates = estimate_costs(trials, [trial, other])
    assert estimates[2].by_flops and estimates[2].seconds == pytest.approx(15 + 10 * 20)
    assert estimates[1].seconds == pytest.approx(990)  # h=4, whose shorter trial logged no rate
    other_decoding = changed(short, "decode", beam=1)
    assert estimate_costs(trials, [timed(other_decoding, 9.0, flops=flops)])[2].seconds == pytest.approx(9)


@pytest.mark.parametrize(("share", "own"), [(0.2, None), (0.8, 8.0)])
def test_a_trial_of_few_steps_tells_no_time_of_other_models(tmp_path, share, own):
    """Of its own model it tells it where most of it was training. share: of its time, that of its steps."""
    trials = plan_trials(TABLE3_A, tmp_path)
    base = trials[4].config
    flops = estimate_costs(trials[4:5], [])[2].cost.flops
    few = changed(base, "optim", max_steps=20)
    rate = few.steps * few.data.batch_tokens / (10 * share)
    estimates = estimate_costs(trials, [timed(few, 10.0, flops=flops * few.steps / base.steps, tokens_per_s=rate)])
    expected = own and pytest.approx(2 + 8 * base.steps / few.steps)
    assert estimates[2].seconds == expected and {estimates[row].seconds for row in (0, 1, 3, 4)} == {None}
    unrated = timed(few, 10.0, flops=flops, tokens_per_s=None)
    assert estimate_costs(trials, [unrated])[2].seconds is None


def test_the_cost_is_of_the_text_s_lengths_once_they_are_known(tmp_path):
    first, *_ = plan_trials(TABLE3_A, tmp_path)
    config, lengths = first.config, {"source": 10.0, "target": 20.0}
    counted_text = SimpleNamespace(is_counted=lambda: True, mean_length=lambda split, side: lengths[side])
    for one, assumed, sides in (
        (first, True, (ASSUMED_LENGTH,) * 2),
        (first._replace(prepared=counted_text), False, lengths.values()),
    ):
        estimate = estimate_costs([one], [])[0]
        model = sizes(config.model, config.data.vocab_size)
        assert estimate.cost == training_cost(model, config.steps, config.data.batch_tokens, *sides)
        assert estimate.assumed == assumed


def test_what_is_kept_of_a_plan(tmp_path):
    trials = plan_trials(TABLE3_A, tmp_path)
    plan = Plan(TABLE3_A, trials, estimate_costs(trials, []))
    kept = as_json(plan)
    assert (kept["name"], kept["scale"], len(kept["trials"])) == ("table3-A", "demo", 10)
    for one, planned in zip(kept["trials"], trials, strict=True):
        cost = plan.estimates[planned.row].cost
        assert (one["params"], one["flops"]) == (cost.params, cost.flops)
        assert f"{one['row']} s{one['seed']}" == planned.name and planned.trial.folder.name == one["folder"]
        assert one["folder"].endswith(one["id"])
        assert one["config"]["effective.d_model"] == 64 and one["config"]["model.d_model"] == 512


# ---------------------------------------------------------------------------------------------------------------------
# As it is printed


def test_a_column_for_what_varies_and_a_line_for_what_does_not(tmp_path):
    lines = printed(tmp_path, 200, content=TABLE3_A)
    assert lines[:2] == [
        "table3-A at scale demo: 10 trials, 10 to train",
        "every row: N=6>3, d_model=512>64, d_ff=2048>256, max_steps=1500",
    ]
    assert [line.split() for line in lines[2:4]] == [
        ["row", "h", "d_k", "d_v", "params", "FLOPs", "time", "trials"],
        ["h=1", "1", "512>64", "512>64", "431K", "2.1e12", "unknown", "2", "new"],
    ]
    assert lines[7] == "h=32  32    16>2    16>2    431K  2.1e12  unknown  2 new"
    assert lines[8] == "a>b: a is the size as configured, b what it is at this scale's width and depth"
    assert lines[9] == f"FLOPs: for sentences of {ASSUMED_LENGTH} tokens, until the text is prepared " + (
        "(the first training, or --measure, prepares it)"
    )
    unknown = "remaining training time: unknown, as no finished trial is comparable"
    assert lines[11] == f"{unknown}; --plan --measure measures it"
    assert printed(tmp_path, 120, content=TABLE3_A, here=False)[11] == unknown  # --measure would be refused
    assert len(lines) == 12
    assert not any(line.startswith("base:") for line in lines)


def test_at_full_width_and_depth_a_size_is_one_number(tmp_path):
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"], sets={"model.width": "1", "model.depth": "1"})
    lines = printed(tmp_path, 200, content=content)
    assert lines[1] == "every row: N=6, d_model=512, d_ff=2048, max_steps=1500"
    assert not any(">" in line for line in lines)


def test_a_narrow_terminal_has_the_sizes_that_differ_from_base(tmp_path):
    lines = printed(tmp_path, 80, compare="params", content=TABLE3_C)
    assert lines[2] == "base: N=6>3, d_model=512>64, d_ff=2048>256, d_k=64>8, d_v=64>8"
    assert lines[3].split() == ["row", "sizes", "vs", "base", "params", "FLOPs", "time", "trials"]
    assert lines[3].index("vs base") + len("vs base") == lines[4].index("+0%") + len("+0%")  # numbers end at one place
    assert lines[4].split() == ["base", "+0%", "431K", "2.1e12", "unknown", "2", "new"]
    assert lines[5].split() == ["N=2", "N=1", "-54%", "199K", "9.6e11", "unknown", "2", "new"]
    assert lines[8].split()[:4] == ["d_model=256", "d_k=32", "d_model=32", "d_k=4"] and lines[9].split() == ["d_v=32"]


@pytest.mark.parametrize("compare", ["params", "flops", "steps"])
def test_how_far_each_row_is_from_base(tmp_path, compare):
    content = read_sweep(ROOT / "sweeps" / "table3_C.yaml", seeds=["1"], sets={"optim.duration": "2"})
    content = content._replace(rows=[*content.rows, TABLE3_C.rows[0]])
    heading, *rows = [line for line in printed(tmp_path, 200, compare, content) if "params" in line or "new" in line]
    assert f"  {compare} vs base  " in heading
    amounts = []
    for config in [row.configs[0] for row in content.rows]:
        model = sizes(config.model, config.data.vocab_size)
        cost = training_cost(model, config.steps, config.data.batch_tokens, ASSUMED_LENGTH, ASSUMED_LENGTH)
        amounts.append({"params": cost.params, "flops": cost.flops, "steps": config.steps}[compare])
    for line, amount in zip(rows, amounts, strict=True):
        assert f"  {amount / amounts[0] - 1:+.0%}  " in line


def test_how_long_it_takes(tmp_path):
    """Exactly by other seeds, about by other rows; finished trials are left out."""
    trials = plan_trials(TABLE3_A, tmp_path)
    known = [timed(one.config, 90.0) for one in trials[::2]]
    lines = printed(tmp_path, 200, content=TABLE3_A, finished=known)
    assert lines[-1] == "15 min of training left to do, if trials run one after the other"
    assert "~" not in "".join(lines) and lines[3].split()[-3:] == ["s", "2", "new"] and " 90 s " in lines[3]
    together = printed(tmp_path, 200, content=TABLE3_A, finished=known, at_once=4)
    assert together[-1] == f"{lines[-1]}; 4 min, 4 at a time"  # 225 s
    together = printed(tmp_path, 200, content=TABLE3_A, finished=known, at_once=99)
    assert together[-1] == f"{lines[-1]}; 2 min, 99 at a time"  # no shorter than the longest trial
    lines = printed(tmp_path, 200, content=TABLE3_A, finished=known[:1])
    minutes = (2 * 90 + 8 * 90 * 2101542912000.0 / 1e12) / 60
    assert lines[-1] == f"about {minutes:.0f} min of training left to do, if trials run one after the other"
    assert "~: estimated by FLOPs from finished trials, of other rows or with other numbers of steps" in lines
    assert " 90 s " in lines[3] and " ~189 s " in lines[4]
    for one in trials[:3]:
        one.trial.make()
        one.trial.finish(a_result(id=one.identity.trial))
    trials[4].trial.make()
    trials[4].trial.set_status("failed")
    lines = printed(tmp_path, 200, content=TABLE3_A, finished=known)
    assert lines[0].endswith(": 10 trials, 7 to train") and lines[-1].startswith("10 min ")  # 10.5, to the even number
    assert [line.split(" s  ")[1] for line in lines[3:6]] == ["2 done", "1 done, 1 new", "1 failed, 1 new"]
    for one in trials:
        one.trial.make()
        one.trial.finish(a_result(id=one.identity.trial))
    assert "left to do" not in "".join(printed(tmp_path, 200, content=TABLE3_A))


def test_a_plan_without_base_says_that_there_will_be_no_differences(tmp_path):
    without = [row for row in TABLE3_A.rows if row.name != "base"]
    for rows, is_told in ((TABLE3_A.rows, False), (without, True), (without[:1], False)):
        lines = printed(tmp_path, 200, content=TABLE3_A._replace(rows=rows))
        assert any("because base is not a row of this sweep; add `base`" in line for line in lines) == is_told


def test_long_trainings_are_told_in_hours_and_those_of_many_devices_in_device_hours(tmp_path):
    sets = {"trainer.devices": "4", "trainer.num_nodes": "2", "trainer.strategy": "ddp"}
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"], sets=sets)
    known = [timed(one.config, 36_000.0) for one in plan_trials(content, tmp_path)]
    lines = printed(tmp_path, 200, content=content, finished=known)
    assert lines[-1] == "50 h of training left to do, if trials run one after the other: 400.0 device hours"
    assert " 10.0 h " in lines[3]


def test_rows_of_nearly_equal_size_look_different(tmp_path):
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"], sets={"data.vocab_size": "2001"})
    other = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"], sets={"data.vocab_size": "2002"})
    lines = printed(tmp_path, 200, content=content._replace(rows=[*content.rows[:2], *other.rows[:1]]))
    params = [next(word for word in line.split() if word.endswith("K")) for line in lines if line.endswith(" new")]
    assert params[0] == params[1] != params[2]


@pytest.mark.parametrize(("cores", "weeks"), [(2, "1.2 weeks"), (4, None), (0, None)])
def test_a_plan_that_is_hopeless_on_this_machine_says_so(tmp_path, cores, weeks):
    """By the least that a CPU needs. On a GPU, or on another machine, nothing is known."""
    trials = plan_trials(TABLE3_A, tmp_path)
    estimates = estimate_costs(trials, [])
    flops = 1.2 * WEEK * 2 * CORE_RATE / len(trials)
    costly = {row: one._replace(cost=one.cost._replace(flops=flops)) for row, one in estimates.items()}
    notes = long_note(Plan(TABLE3_A, trials, costly), trials, cores, 1)
    said = [f"too long for this machine: at least {weeks}"] * bool(weeks)
    assert [note.partition(" on ")[0] for note in notes] == said
    timed_ones = {row: one._replace(seconds=YEAR / 4) for row, one in estimates.items()}
    for at_once, years in ((1, "2.5 years"), (2, "1.2 years")):
        (note,) = long_note(Plan(TABLE3_A._replace(scale="wmt14"), trials, timed_ones), trials, 4, at_once)
        assert note.startswith(f"too long for this machine: about {years} on 4 CPU cores; ") and "--scale demo" in note
    assert long_note(Plan(TABLE3_A, trials, timed_ones), trials[:0], 4, 1) == []  # nothing is left to do


def test_new_trials_that_resemble_a_finished_one_say_why_they_are_new(tmp_path):
    one = plan_trials(TABLE3_A, tmp_path)[0]
    one.trial.make()
    one.trial.finish(a_result(id=one.identity.trial))
    (one.trial.folder / "identity.json").write_text(json.dumps(one.identity.inputs | {"core": 1}))
    one.trial.folder.rename(one.trial.folder.with_name("demo-h=1-s1-0123456789ab"))
    for state in ("new", "running"):  # what has begun is not new
        reasons = [line for line in printed(tmp_path, 200, content=TABLE3_A) if line.startswith("to be trained")]
        reason = f"to be trained, because a finished trial differs (core revision 1 -> {CORE_REVISION}): h=1 s1"
        assert reasons == [reason] * (state == "new")
        one.trial.make()
        one.trial.set_status("running")


@pytest.mark.parametrize("compare", [None, "flops"])
def test_the_rows_of_table_3_fit_80_columns_with_every_word_whole(tmp_path, compare):
    wide, narrow = (printed(tmp_path, width, compare) for width in (UNBROKEN, 80))
    assert max(map(len, narrow)) <= 80 and not any("…" in line for line in narrow)
    names = [word for row in TABLE3.rows for word in row.name.split()]
    words = {word for line in narrow for word in line.split()}
    assert {*names, "params", "FLOPs", "time", "trials"} <= words
    assert "max_steps=4500" in words
    for row in TABLE3.rows:  # and on one line each where there is room
        assert any(line.startswith(f"{row.name} ") for line in wide)


def test_the_table_of_table_3_fits_80_columns_with_every_word_whole(tmp_path):
    table = table_of(TABLE3, plan_trials(TABLE3, tmp_path))
    long = "PositionWithLearnedFrequencies"  # of an ablation of one's own
    (settings,) = (index for index, column in enumerate(table.columns) if column.name == "position")
    table.columns[settings] = table.columns[settings]._replace(cells=[long] * len(TABLE3.rows))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(table.terminal(80))
    lines = console.file.getvalue().splitlines()
    words = [word for line in lines for word in line.split()]
    assert max(map(len, lines)) <= 80 and words.count(f"position={long}") == len(TABLE3.rows)
    assert {"d_model=1024", "d_ff=4096", "P_drop=0.3", "duration=3.0", "BLEU", "seeds"} <= set(words)


def test_a_pipe_has_no_width_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS")
    assert command_console().width == UNBROKEN
    monkeypatch.setenv("COLUMNS", "72")
    assert command_console().width == 72


def test_one_is_not_counted_as_many(tmp_path):
    assert [counted(number, "trial") for number in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    one = TABLE3._replace(rows=TABLE3.rows[:1])
    assert printed(tmp_path, 80, content=one)[0] == "table3 at scale demo: 1 trial, 1 to train"


def test_the_plan_says_which_finished_rows_have_not_converged(tmp_path, capsys):
    """On the mean of the finished seeds of a row."""
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1", "2"])
    falls = {"h=1": (0.03, 0.01), "h=4": (0.004, None), "base": (0.012, 0.001)}
    for planned in plan_trials(content, tmp_path):
        fall = falls.get(content.rows[planned.row].name, (None, None))[planned.config.seed - 1]
        if fall is not None:
            ended = {"fall": fall, "noise": 0.001, "validations": 5}
            planned.trial.make()
            planned.trial.finish(a_result(id=planned.identity.trial, convergence=ended))
    assert sweep.main([str(ROOT / "sweeps" / "table3_A.yaml"), "--plan", "--seeds=1,2", f"--runs={tmp_path}"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not converged")]
    assert "not converged: h=1 (2.0%); the perplexity still fell by more than 1%" in line


@pytest.mark.parametrize(
    ("file", "options", "named"),
    [
        ("table3_A", [], []),
        ("table3_B", [], []),
        (
            "table3_C",
            [],
            ["parameters 179K to 1.16M", "N 1 to 4", "peak learning rate 0.0015 to 0.0031", "--retune", PRE],
        ),
        ("table3_C", ["--set", PRE], ["parameters", "--retune"]),
        ("table3_C", ["--retune", "optim.lr_scale", "--budget=2"], []),
        ("table3_D", [], []),
        ("normalisation", [], ["peak learning rate", "--retune"]),
    ],
)
def test_the_plan_says_that_rows_of_other_size_or_rate_may_need_another_training(
    file, options, named, tmp_path, capsys
):
    """And names what can be done: each row tuned, the norm before each sub-layer where it is not."""
    assert sweep.main([str(ROOT / "sweeps" / f"{file}.yaml"), "--plan", f"--runs={tmp_path / 'runs'}", *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rows differ much")]
    assert len(lines) == bool(named)
    for line in lines:
        assert all(words in line for words in named) and (PRE in line) == (PRE in named)


@pytest.mark.parametrize(("file", "steps"), [("table3_A.yaml", 900_000_000), ("search_size.yaml", None)])
def test_the_plan_says_what_runs_at_once_on_what(file, steps, tmp_path, capsys):
    """And of a grid, whether that takes too long."""
    longer = ["--set", f"optim.max_steps={steps}", "trainer.accelerator=cpu"] if steps else []
    words = [str(ROOT / "sweeps" / file), "--plan", "--parallel=1", f"--runs={tmp_path / 'runs'}"]
    assert sweep.main([*words, *longer]) == 0
    out = capsys.readouterr().out
    assert "to train, 1 at a time, each on " in out
    assert ("a smaller scale takes less; --plan --measure estimates the time" in out) == bool(steps)
    assert not (tmp_path / "runs").exists()


def test_numbers_that_do_not_fit_the_length_of_the_training_are_told(tmp_path, capsys):
    """A warm-up that outlasts it, and more checkpoints to average than it has validations: one each 150 steps."""
    file = tmp_path / "rows.yaml"
    keys = {"optim.warmup": 400, "variant": {"values": ["base", "optim.max_steps=100", "decode.average=11"]}}
    parameters = {"scale": {"value": "demo"}} | {
        key: value if isinstance(value, dict) else {"value": value} for key, value in keys.items()
    }
    file.write_text(yaml.safe_dump({"program": "transformer_pl/train.py", "method": "grid", "parameters": parameters}))
    sweep.main([str(file), "--plan", f"--runs={tmp_path / 'runs'}"])
    told = capsys.readouterr().out
    assert "\nthe warm-up does not end within the steps of max_steps=100: " in told
    assert "\nfewer validations than checkpoints to average: average=11 (10 of 11); lower trainer.val_every" in told
