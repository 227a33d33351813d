"""What a user asks of SLURM, and what the batch script does with it. No SLURM is needed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiments.test_launch import planned_trials
from lightning.fabric.plugins.environments import SLURMEnvironment
from tiny_trials import TINY

from transformer_pl.config import Trainer
from transformer_pl.launchers import slurm, slurm_queue, slurm_script
from transformer_pl.launchers.slurm import SlurmLauncher, SlurmTraining
from transformer_pl.launchers.slurm_queue import QueuedTask
from transformer_pl.launchers.slurm_script import Resources, Task, asked_hours, batch_script
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.training import fit


def resources(folder, text):
    (folder / "slurm.yaml").write_text(text)
    return Resources.read(folder / "slurm.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin: long", "partitoin: is no key of a --slurm file; did you mean partition?"),
        ("nodes: 2", "nodes: is no key of a --slurm file"),  # that is trainer.num_nodes
        ("time: 2:00:00", 'time: must be in quotes, or YAML reads another number; write "2:00:00" for two hours'),
        ('time: "two hours"', "time = two hours: must be a time as sbatch reads it, in quotes"),
        ("cpus-per-task: 0", "cpus-per-task = 0: must be greater than or equal to 1"),
        ("partition: 'long --wrap=x'", "partition = long --wrap=x: must be one word without quotes"),
        ("mem: 8", "mem = 8: must be a valid string; write it in quotes"),
        ("gpus-per-node: a100", "gpus-per-node = a100: must be a number, or a type and a number such as a100:4"),
        ("gpus-per-node: -1", "gpus-per-node = -1: must be a number, or a type and a number"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, text, message):
    with pytest.raises(InputError) as refused:
        resources(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'slurm.yaml'}: {message}")


@pytest.mark.parametrize(
    ("text", "hours"),
    [("90", 1.5), ("2:30", 2.5 / 60), ("1:30:00", 1.5), ("1-12", 36), ("1-0:30", 24.5), ("2-0:0:36", 48.01)],
)
def test_a_time_is_read_as_sbatch_reads_it(tmp_path, text, hours):
    assert resources(tmp_path, f'time: "{text}"').hours == pytest.approx(hours)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        *(("", 0), ("gpus-per-node: 2", 2), ("gpus-per-node: a100:4", 4), ("gres: gpu:h100:2", 2), ("gres: gpu", 1)),
        *(("gres: gpu:2", 2), ("gres: gpu:h100", 1), ("gres: 'shard:1,gpu:8'", 8), ("gres: shard:4", 0)),
    ],
)
def test_the_gpus_of_a_trial_are_counted(tmp_path, text, gpus):
    assert (resources(tmp_path, text or "mem: 8G")).gpus == gpus


def test_what_a_sweep_asks_for_is_counted(tmp_path):
    gpus = resources(tmp_path, 'gpus-per-node: 2\ntime: "1:30:00"')
    asked = asked_hours(10, gpus, Trainer(devices=2, num_nodes=2))
    assert asked.startswith("asks SLURM for at most 10 x 4 GPUs x 1:30:00 = 60 GPU-hours, more if a trial reaches this")
    asked = asked_hours(2, resources(tmp_path, 'time: "10"'), Trainer())
    assert asked.startswith("asks SLURM for at most 2 x 1 core x 0:10:00 = 0.3 core-hours")
    asked = asked_hours(3, resources(tmp_path, "cpus-per-task: 4"), Trainer(devices=2))
    assert asked == "asks SLURM for 3 x 8 cores, for as long as the partition allows: time is not set"


@pytest.mark.parametrize(
    ("text", "trainers", "message"),
    [
        ("mem: 8G", [Trainer(accelerator="gpu")], "trainer.accelerator = gpu: needs a GPU, but the jobs ask SLURM for"),
        ("gpus-per-node: 1", [Trainer(devices=2)], "trainer.devices = 2: must be the number of GPUs that the file of"),
        ("mem: 8G", [Trainer(), Trainer(num_nodes=2)], "--launcher slurm: the tasks of an array are equal"),
    ],
)
def test_trials_that_do_not_fit_their_jobs_are_refused(tmp_path, text, trainers, message):
    resources(tmp_path, text)
    with pytest.raises(InputError) as refused:
        SlurmLauncher(tmp_path, tmp_path / "sweep", tmp_path / "slurm.yaml").check(trainers)
    assert str(refused.value).startswith(message)


def test_a_search_says_how_many_trials_it_submits_at_once(tmp_path):
    with pytest.raises(InputError, match="add --parallel N"):
        SlurmLauncher(tmp_path, tmp_path / "sweep").allot([Trainer()], 10, is_search=True)
    launcher = SlurmLauncher(tmp_path, tmp_path / "sweep", parallel=3)
    launcher.allot([Trainer()], 10, is_search=True)
    assert launcher.slots == launcher.at_once == 3
    launcher.allot([Trainer()], 10)  # the array of a grid has all trials, and SLURM runs three of them at once
    assert (launcher.slots, launcher.at_once) == (10, 3)
    launcher.allot([Trainer()], 2)
    assert launcher.at_once == 2


@pytest.mark.parametrize(
    ("state", "reason", "words"), [("CANCELLED", "None", "(CANCELLED)"), ("FAILED", "NonZeroExitCode", "(FAILED, Non")]
)
def test_how_a_job_has_ended_is_told(tmp_path, state, reason, words):
    launcher, (planned, *_) = SlurmLauncher(tmp_path, tmp_path / "sweep"), planned_trials(tmp_path, {}, {})
    launcher._tasks = {planned.identity.trial: QueuedTask("7", 2, state, reason, tmp_path / "printed.txt")}
    ended = SlurmTraining(launcher, planned).poll()
    assert not ended.ok and ended.how.startswith(f"in SLURM's job 7_2 {words}")
    assert ended.how.endswith(f"), which printed to {tmp_path / 'printed.txt'}")


def test_what_slurm_does_not_take_now_is_submitted_later_unless_it_is_the_first(tmp_path, monkeypatch, capsys):
    """By programs in the place of SLURM's. A search submits trial by trial, while others run."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder, clock = tmp_path / "runs" / "sweeps" / "grid" / "slurm", [1000.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: clock[0])

    def program(name, *lines):
        (tmp_path / name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
        (tmp_path / name).chmod(0o755)

    first, second, *_ = planned_trials(tmp_path / "runs", {}, {})
    refused = "echo 'sbatch: error: Batch job submission failed: Job violates a limit' >&2; exit 1"
    program("squeue")
    program("scontrol", "echo 'MaxArraySize            = 1001'")
    program("sbatch", refused)
    launcher = SlurmLauncher(tmp_path / "runs", folder.parent)
    launcher.start(first, ["--seed=1"], None)
    with pytest.raises(InputError, match="cannot be submitted: sbatch: Batch job submission failed"):
        launcher.submit()
    program("sbatch", "echo 7")
    launcher.submit()
    assert not launcher.is_waiting(first) and launcher.task(first).job == "7"
    program("sbatch", refused)
    launcher.start(second, ["--seed=1"], None)
    launcher.submit()
    assert launcher.is_waiting(second) and "SLURM does not take 1 trial now" in capsys.readouterr().err
    program("sbatch", "echo 8")
    launcher.submit()
    assert launcher.is_waiting(second)  # not asked again so soon
    clock[0] += 60
    launcher.submit()
    assert not launcher.is_waiting(second) and launcher.task(second).job == "8"


def test_a_package_that_the_trials_need_must_be_on_this_machine(tmp_path, monkeypatch):
    launcher, trainer = SlurmLauncher(tmp_path, tmp_path / "sweep"), Trainer(tokenised_bleu=True)
    launcher.check([trainer])
    monkeypatch.setitem(sys.modules, "sacremoses", None)  # as where it is not installed
    with pytest.raises(InputError, match="needs the package sacremoses"):
        launcher.check([trainer])


def test_tasks_that_were_cancelled_before_they_began_have_no_number(tmp_path, monkeypatch):
    """As squeue of SLURM 22.05 prints them after `scancel --user`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 's.1|7|N/A|CANCELLED|Priority\ns.1|7|1|COMPLETED|None'\n")
    (tmp_path / "squeue").chmod(0o755)
    folder = tmp_path / "sweeps" / "s" / "slurm"
    folder.mkdir(parents=True)
    slurm_queue.write_record(folder, "s.1", ["first", "second"])
    found = slurm_queue.queued_tasks(tmp_path)
    assert {trial_id: (task.number, task.state) for trial_id, task in found.items()} == {
        "first": (0, "CANCELLED"),
        "second": (1, "COMPLETED"),
    }


# ---------------------------------------------------------------------------------------------------------------------
# The script itself, run by bash

TRIAL = """\
import os, pathlib, signal, sys, time
def stop(signum, frame):
    if sys.argv[1] == "saves":
        pathlib.Path("last.ckpt").write_text("new")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("trial_pid").write_text(str(os.getpid()))
print(sys.argv[1:], os.environ["WANDB_NAME"], flush=True)
if sys.argv[1] in ("fails", "ends"):
    sys.exit(3 * (sys.argv[1] == "fails"))
time.sleep(60)
"""


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("word", "signal", "code", "requeued"),
    [
        ("ends", None, 0, False),
        ("fails", None, 3, False),
        ("saves", "USR1", 143, True),
        ("saves", "TERM", 143, False),  # SLURM itself requeues after a preemption
        ("does not save", "USR1", 143, False),
    ],
)
def test_the_script_trains_saves_and_requeues(tmp_path, monkeypatch, word, signal, code, requeued, devices):
    """TERM goes to the trial as well, as SLURM sends it. With two devices scancel tells the trial, and takes its time:
    the trial has ended before the script looks for it again."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path / "trial.py"} "$@"\n')
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" > requeued; kill $(cat pid)\n')
    (tmp_path / "sleep").write_text("#!/bin/sh\n[ $1 = 60 ] || exec /bin/sleep $1\n")
    (tmp_path / "srun").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (tmp_path / "scancel").write_text(
        "#!/bin/sh\nkill -TERM $(cat trial_pid)\nwhile kill -0 $(cat trial_pid) 2>/dev/null; do :; done\n"
    )
    for name in ("python", "scontrol", "sleep", "srun", "scancel"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "trial.py").write_text(TRIAL)
    monkeypatch.setattr(slurm_script.sys, "executable", str(tmp_path / "python"))
    variables = {"WANDB_NAME": "h=4 it's s1"}
    tasks = [Task(["wrong"], variables, tmp_path / "last.ckpt"), Task([word, "a b"], variables, tmp_path / "last.ckpt")]
    (tmp_path / "job.sh").write_text(batch_script("name", tasks, Resources(), Trainer(devices=devices), tmp_path))
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "1"}
    environment["SLURM_JOB_ID"] = "77"
    with subprocess.Popen(
        ["bash", "job.sh"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        (tmp_path / "pid").write_text(str(job.pid))
        printed = job.stdout.readline()
        if signal == "USR1":
            subprocess.run(["kill", "-USR1", str(job.pid)], check=True)
        elif signal:
            subprocess.run(["kill", f"-{signal}", "--", f"-{job.pid}"], check=True)
        began = time.monotonic()
        printed += job.communicate(timeout=20)[0]
        assert time.monotonic() - began < 15
    assert job.returncode == code and printed.startswith(f"{[word, 'a b']} h=4 it's s1\n")
    assert (tmp_path / "requeued").exists() == requeued
    assert ("needs more time" in printed) == (word == "does not save")
    if requeued:
        assert (tmp_path / "requeued").read_text() == "requeue 77\n"


def test_the_script_asks_for_what_the_trials_need(tmp_path):
    asked = resources(tmp_path, 'partition: long\ntime: "1:00:00"\ngpus-per-node: 2\ncpus-per-task: 4\nmem: 8G')
    trainer = Trainer(devices=2, num_nodes=3)
    script = batch_script("name", [Task([], {}, Path("x"))] * 5, asked, trainer, tmp_path / "50% full", at_once=2)
    options = {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")}
    assert options >= {"--array=0-4%2", "--nodes=3", "--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=4"}
    assert options >= {"--partition=long", "--time=1:00:00", "--mem=8G", "--requeue", "--signal=B:USR1@60"}
    assert f"--output='{tmp_path}/50%% full'/%x.%a.txt" in options
    assert "\nsrun --kill-on-bad-exit=1 --cpus-per-task=4 " in script
    assert "srun" not in batch_script("name", [Task([], {}, Path("x"))], asked, Trainer(), tmp_path)


def test_lightning_leaves_requeueing_to_the_script(monkeypatch):
    """Else it would save to the working folder, where the trial does not look, and requeue the job a second time."""
    variables = {"NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "JOB_NAME": "name", "JOB_ID": "7"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")  # Lightning sets what is missing
    trainer = fit.build_trainer(resolve([Level("test", TINY | {"trainer.accelerator": "cpu"})]), False, [])
    environment = trainer._accelerator_connector.cluster_environment
    assert isinstance(environment, SLURMEnvironment) and not environment.auto_requeue
