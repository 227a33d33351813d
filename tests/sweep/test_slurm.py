"""A sweep as a job array of a real SLURM, of two nodes on this machine. Slow: each worker imports torch."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from forked import command
from grids import small_grid, table
from helpers import ROOT, wait_for

from tests.search.searches import DROPOUT, search_file, study_folder
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep.slurm import read_site, script_of
from transformer_pl.sweep.sweep_options import read_options
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_folder import TrialFolder

SLOW = {"model__position": "slow_position.Slow", "optim__max_steps": 60, "trainer__val_every": 20}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [ROOT, ROOT / "tests" / "sweep"])))
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sweep"))


def sweep(grid, runs, *words, **site):
    """Run the sweep command on the login node, in an environment that SLURM's programs know."""
    (grid.parent / "slurm.yaml").write_text(yaml.safe_dump({"partition": "low", "time": 10} | site))
    options = ["--launcher", "slurm", "--slurm", grid.parent / "slurm.yaml", "--runs", runs, *words]
    done = command("sweep", grid, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_plan_shows_the_script_and_submits_nothing(tmp_path):
    grid = small_grid(tmp_path / "grid")
    printed = sweep(grid, tmp_path / "r", "--plan", "--parallel", "8", "--set", "model.h=4")
    assert "#SBATCH --array=0-1\n" in printed and "#SBATCH --partition=low\n" in printed
    (line,) = [line for line in printed.splitlines() if " -m transformer_pl.sweep " in line]
    words = line.split()
    assert str(grid) in words and "--worker" in words and "model.h=4" in words
    assert "--plan" not in words
    options = read_options(words[words.index("transformer_pl.sweep") + 1 : -1])  # as the worker reads them, without `&`
    assert (options.launcher, options.worker, options.parallel) == ("local", True, None)
    assert not (tmp_path / "r").exists()


def test_the_time_of_a_plan_is_that_of_so_many_workers(tmp_path):
    """At scale demo, whose time is known before anything has run."""
    grid = shutil.copy(ROOT / "sweeps" / "table3_A.yaml", tmp_path)
    for words, workers in (([], "15"), (["--parallel", "4"], "4")):
        printed = sweep(Path(grid), tmp_path / "r", "--plan", *words)
        (time,) = [line for line in printed.splitlines() if line.startswith("time: ")]
        assert workers in time.split()


def test_a_sweep_with_looks_gets_as_many_workers_as_its_first_look_has_trials(tmp_path):
    """And base's seeds of the next one: more would wait on nodes of their own."""
    grid = shutil.copy(ROOT / "sweeps" / "table3_A.yaml", tmp_path)  # base and four rows
    looks = ["--seeds", "1,2,3,4", "--looks", "2,4", "--base-seeds", "8"]
    assert "#SBATCH --array=0-15\n" in sweep(Path(grid), tmp_path / "r", "--plan", *looks)  # 4 x 2 + 8


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"array": "0-3", "partition": "low"}, "array"),  # the sweep sets it
        ({"mem\n--wrap": "x"}, "wrap"),
        ({"mem$(touch r)": 1}, "touch"),
        ({"--mem": 1}, "--mem"),
        ({1: 1}, "1"),
        ({"gres": ["gpu:1", "gpu:2"]}, "gres"),
        ({"comment": "a\ntouch r"}, "--comment"),
        ({"comment": "a\x1b[2J"}, "--comment"),
        ({"setup": ["module load cuda"]}, "setup"),
        ({"setup": "module load\x00"}, "setup"),
        ({"python": "python\ntouch r"}, "python"),
        ({"python": None}, "python"),
    ],
)
def test_what_is_no_option_of_sbatch_is_refused(tmp_path, options, named):
    (tmp_path / "slurm.yaml").write_text(yaml.safe_dump(options))
    with pytest.raises(InputError, match=named):
        script_of(tmp_path, tmp_path / "slurm.yaml", 1, ["grid.yaml"])


def test_a_folder_whose_name_has_several_lines_is_refused(tmp_path):
    words = ["--launcher", "slurm", "--runs", tmp_path / "a\ntouch b", "--plan"]
    done = command("sweep", small_grid(tmp_path / "grid"), *words)
    assert done.returncode == 2 and "--output" in done.stderr and "#SBATCH" not in done.stdout


ODD = ["two  words", "it's", '"', "a # b", "\\", "\\'", "a\\nb", "$(touch r)", "`touch r`", "é", "-x", "", "%A"]


@pytest.mark.parametrize("value", ODD)
def test_every_option_is_one_line_of_the_script(tmp_path, value):
    (tmp_path / "slurm.yaml").write_text(yaml.safe_dump({"comment": value, "gpus": 1, "exclusive": True}))
    script = script_of(tmp_path / "a b" / "s@c d", tmp_path / "slurm.yaml", 2, ["grid.yaml"])
    head, _, body = script.partition("\n\n")
    lines = head.splitlines()[1:]
    assert all(line.startswith("#SBATCH --") for line in lines) and value not in (body, *body.splitlines())
    assert "#SBATCH --gpus=1" in lines and "#SBATCH --exclusive" in lines


PLAIN = ["0123", "0x10", "1e5", "0o17", "1_000", "1.10", "no", "on", "2026-11-29", "1:00"]


def test_an_option_is_what_stands_in_the_file(tmp_path):
    """A flag that is false is left out, and one without a value is not."""
    flags, given = "exclusive: false\ncontiguous: true\nverbose:\nspread-job: null\n", dict(enumerate(PLAIN))
    (tmp_path / "slurm.yaml").write_text(flags + "".join(f"account{i}: {value}\n" for i, value in given.items()))
    expected = {f"account{i}": value for i, value in given.items()}
    expected |= {"contiguous": None, "verbose": None, "spread-job": None}
    assert read_site(tmp_path / "slurm.yaml").options == expected


@pytest.mark.slow
@pytest.mark.parametrize("value", [value for value in ODD if value])
def test_sbatch_reads_every_value_as_it_was_written(cluster, tmp_path, value):
    (tmp_path / "slurm.yaml").write_text(yaml.safe_dump({"comment": value, "contiguous": True, "hold": None}))
    (tmp_path / "a b").mkdir()
    script = script_of(tmp_path / "a b" / "s@c d", tmp_path / "slurm.yaml", 1, ["grid.yaml"])
    (tmp_path / "array.sh").write_text(script)
    job = cluster.run("sbatch", "--parsable", str(tmp_path / "array.sh")).strip()
    shown = cluster.run("scontrol", "show", "job", job)
    cluster.run("scancel", job)
    assert f"   Comment={value} \n" in shown and "Contiguous=1" in shown and "JobHeldUser" in shown
    assert f"{tmp_path}/a b/s@c d/slurm/" in shown and "JobName=s@c d\n" in shown and not (tmp_path / "r").exists()


@pytest.fixture
def reference(tmp_path):
    """The table of a grid that is trained here."""

    def train(grid):
        done = command("sweep", grid, "--runs", tmp_path / "here")
        assert done.returncode == 0, done.stdout + done.stderr
        return table(tmp_path / "here")

    return train


@pytest.mark.slow
def test_the_table_of_an_array_is_the_local_one(cluster, tmp_path, reference):
    """As sites have it: the workers begin in another folder, with lines of bash and a Python of the site's own."""
    grid, runs = small_grid(tmp_path / "grid", ("base", "model.h=4")), tmp_path / "runs"
    (tmp_path / "other").mkdir()
    site = {"chdir": str(tmp_path / "other"), "setup": "set -eu\necho in $PWD\nTO=go\n"}
    site |= {"python": f"env TO=$TO {sys.executable}"}
    here = [Path(os.path.relpath(path)) for path in (grid, runs)]
    assert "4 trials" in sweep(*here, "--parallel", "2", "--devices", "1", **site)
    wait_for(lambda: not cluster.run("squeue", "--noheader", "--states=running,pending"), 300)
    assert all(path.read_text().startswith(f"in {tmp_path}/other\n") for path in runs.glob("sweeps/*/slurm/*.txt"))
    assert table(runs) == reference(grid)
    jobs = cluster.run("squeue", "--noheader", "--array", "--states=all", "--format=%j %T").splitlines()
    assert jobs.count("grid@demo COMPLETED") == 2, jobs


@pytest.mark.slow
def test_workers_wait_for_looks_and_one_whose_node_dies_changes_no_decision(cluster, tmp_path, reference):
    """The test set is small, so that no row is decided; base has more seeds."""
    keys = {"looks": "2 3", "base_seeds": 4}
    grid, runs = small_grid(tmp_path / "grid", ("base", "model.h=4"), (1, 2, 3), **keys), tmp_path / "runs"
    expected = reference(grid)
    sweep(grid, runs, "--parallel", "2")
    wait_for(lambda: list(runs.glob("trials/*/result.json")), 180)
    cluster.kill_node("n1")
    wait_for(lambda: not cluster.run("squeue", "--noheader", "--states=running,pending"), 300)
    assert table(runs) == expected
    both = [sorted(path.read_text() for path in (tmp_path / one).glob("sweeps/*/look_*")) for one in ("here", "runs")]
    assert both[0] == both[1] and len(both[0]) == 2


@pytest.mark.slow
def test_workers_wait_for_what_rows_start_from(cluster, tmp_path, monkeypatch, reference):
    """As many as rows can be trained at once: one trains the start, and the other has not ended when that is over."""
    rows = ("base", "model.start=base optim.max_steps=1", "model.start=base optim.max_steps=1 optim.lr_scale=0.5")
    grid, runs = small_grid(tmp_path / "grid", rows, (1,), model__position="slow_position.Slow"), tmp_path / "runs"
    expected = reference(grid)
    assert "#SBATCH --array=0-1\n" in sweep(grid, runs, "--plan")
    monkeypatch.setenv("SLOW", "15")
    sweep(grid, runs)
    base, *_ = plan_trials(read_sweep(grid), RunsFolder(runs))
    wait_for(base.folder.result, 300)
    assert cluster.run("squeue", "--noheader", "--array", "--format=%j %T").split() == ["grid@demo", "RUNNING"] * 2
    wait_for(lambda: not cluster.run("squeue", "--noheader", "--states=running,pending"), 300)
    assert table(runs) == expected


@pytest.mark.slow
def test_the_workers_of_a_search_share_its_trials_and_the_last_one_writes_the_table(cluster, tmp_path):
    runs = tmp_path / "runs"
    sweep(search_file(tmp_path, space=DROPOUT, run_cap=3), runs, "--parallel", "2")
    wait_for(lambda: not cluster.run("squeue", "--noheader", "--states=running,pending"), 300)
    assert "3 of 3 trials" in (study_folder(tmp_path) / "table.md").read_text()
    assert len(list(runs.glob("trials/*/result.json"))) == 3 and (study_folder(tmp_path) / "report.html").exists()


def requeued(cluster):
    """How often SLURM has started a worker again."""
    jobs = cluster.run("squeue", "--noheader", "--array", "--states=all", "--Format=Name:40,RestartCnt")
    return sum(int(line.split()[1]) for line in jobs.splitlines() if line.startswith("grid@demo"))


@pytest.fixture
def interrupted(cluster, tmp_path, monkeypatch, reference):
    """Train a slow trial on the cluster, interrupt it, and see it continued: once, from its checkpoint.

    Its table is the local one, and no step is missing.
    """

    def check(interrupt, seconds=0.3):
        grid, runs = small_grid(tmp_path / "grid", seeds=(1,), **SLOW), tmp_path / "runs"
        expected = reference(grid)
        monkeypatch.setenv("SLOW", str(seconds))
        before = requeued(cluster)
        assert "scancel" in sweep(grid, runs)
        (trial,) = plan_trials(read_sweep(grid), RunsFolder(runs))
        wait_for(lambda: len(trial.folder.metrics()) > 25, 180)
        interrupt()
        wait_for(trial.folder.result, 300)
        wait_for(lambda: not cluster.run("squeue", "--noheader", "--states=running,pending"), 60)
        assert table(runs) == expected
        assert requeued(cluster) == before + 1
        assert [line["step"] for line in trial.folder.metrics() if "train/loss" in line] == list(range(1, 61))

    return check


@pytest.mark.slow
def test_a_preempted_worker_saves_and_continues(cluster, interrupted):
    interrupted(
        lambda: cluster.run("sbatch", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")
    )


@pytest.mark.slow
def test_the_worker_of_a_node_that_dies_continues_on_another(cluster, interrupted):
    def die():
        (node,) = cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%N").split()
        cluster.kill_node(node)

    interrupted(die)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "devices"),
    [(["srun", "-n2"], 1), (["srun", "-n2", "-N1"], 2), (["sbatch", "--wait", "-n2", "-N1", "-o/dev/null"], 2)],
    ids=["independent trials", "a step", "sbatch without srun"],
)
def test_a_task_of_slurm_is_a_rank_where_a_step_has_as_many_as_the_trial_needs(cluster, tmp_path, launcher, devices):
    grid = small_grid(tmp_path / "grid", seeds=(1,), trainer__devices=devices, trainer__accelerator="cpu")
    keys = [f"--{key}={value}" for key, value in read_sweep(grid).rows[0].keys.items()]
    train = shlex.join(map(str, [sys.executable, "-m", "transformer_pl.train", *keys, "--runs"]))
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/bash\n{train} {tmp_path}/runs{'$SLURM_PROCID' if devices == 1 else ''}\n")
    script.chmod(0o755)
    done = subprocess.run([*launcher, script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("runs*/trials/*/result.json"))) == (2 if devices == 1 else 1)


@pytest.mark.slow
def test_one_trial_over_two_nodes_is_that_of_two_processes(cluster, tmp_path):
    """As the README says: srun starts `train` on every node."""
    grid = small_grid(tmp_path / "grid", seeds=(1,), trainer__strategy="ddp", trainer__accelerator="cpu")
    keys = [f"--{key}={value}" for key, value in read_sweep(grid).rows[0].keys.items()]
    train = [sys.executable, "-m", "transformer_pl.train", *keys, "--runs"]
    nodes = ["srun", "--nodes=2", "--ntasks-per-node=1", *train, tmp_path / "nodes", "--trainer.num_nodes=2"]
    for words in (nodes, [*train, tmp_path / "here", "--trainer.devices=2"]):
        done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    results = [
        TrialFolder(next(path.iterdir())).result() for path in (tmp_path / "nodes/trials", tmp_path / "here/trials")
    ]
    assert results[0].metrics == results[1].metrics and results[0].config["trainer.num_nodes"] == 2
