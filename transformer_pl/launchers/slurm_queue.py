"""What SLURM knows of the trials that sweeps have submitted: asked for by the names of their jobs.

A sweep writes down the trials of an array, under the name that the job will have, before it submits it.
"""

import getpass
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from transformer_pl.launchers import without_slurm
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import read_json, write_json

FOLDER = "slurm"  # in the folder of a sweep: scripts, records of arrays, and what the tasks print
ANSWER_S = 60.0  # seconds to wait for an answer of SLURM's
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"}
OVER |= {"DEADLINE", "REVOKED"}  # states that a task does not leave any more


class Unreachable(Exception):
    """SLURM does not answer."""


class QueuedTask(NamedTuple):
    """A task as SLURM knows it."""

    job: str  # of its array
    number: int
    state: str  # `PENDING`
    reason: str  # `NonZeroExitCode`
    output: Path  # what it prints

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def has_begun(self) -> bool:
        return self.state != "PENDING"

    @property
    def newness(self) -> tuple[bool, int]:
        """Greater for the later attempt of a trial."""
        return not self.is_over, int(self.job)


class _Record(BaseModel, strict=True):
    user: str
    trials: list[str]  # ids, by the number of the task


def write_record(folder: Path, name: str, trials: list[str]) -> None:
    """Write down the trials of an array that is about to be submitted. name: of its job; trials: ids, by task."""
    write_json(folder / f"{name}.json", {"user": getpass.getuser(), "trials": trials})


def _records(runs: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """What was written down of each array, by the name of its job."""
    paths = (runs / "sweeps").glob(f"*/{FOLDER}/*.json")
    records = {path: read_json(path, _Record, "its trials may be submitted twice") for path in paths}
    return {path.stem: (path, record) for path, record in records.items() if record}


def queued_tasks(runs: Path, forget: bool = False) -> dict[str, QueuedTask]:
    """The tasks that SLURM knows, by the trial's id. Those of all sweeps: they may share trials.

    forget: remove the records of arrays that SLURM no longer knows. Raises Unreachable.
    """
    records = _records(runs)
    if not records:
        return {}
    users = ",".join({record["user"] for _, record in records.values()})
    words = ["squeue", "--noheader", "--array", "--states=all", f"--users={users}", f"--name={','.join(records)}"]
    found: dict[str, QueuedTask] = {}
    known = set()
    lines = [line.split("|", 4) for line in answer([*words, "--format=%j|%F|%K|%T|%r"]).splitlines()]
    for name, job, number, state, reason in sorted(lines, key=lambda line: not line[2].isdecimal()):
        path, record = records[name]
        known.add(name)
        # An array that is cancelled before any task has begun has one line without a number, `N/A`, for all of them.
        for one in [int(number)] if number.isdecimal() else range(len(record["trials"])):
            task = QueuedTask(job, one, state, reason, path.parent / f"{name}.{one}.txt")
            trial_id = record["trials"][one]
            if trial_id not in found or task.newness > found[trial_id].newness:
                found[trial_id] = task
    for name in records.keys() - known if forget else ():
        records[name][0].unlink(missing_ok=True)
    return found


def answer(words: list[str]) -> str:
    """What a program of SLURM's prints. Raises Unreachable."""
    try:
        completed = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_S, env=without_slurm())
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {ANSWER_S:.0f} s"
        raise Unreachable(f"{words[0]}: {reason}") from None
    if completed.returncode:
        reason = (completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"])[-1]
        raise Unreachable(f"{words[0]}: {reason.removeprefix(f'{words[0]}: ').removeprefix('error: ')}")
    return completed.stdout


def queued_trials(runs: Path, must_answer: bool = False) -> dict[str, str]:
    """The trials whose tasks are not over, by id: `queued`, or `running`, also before they have imported torch.

    Where SLURM does not answer: empty, with a warning; with must_answer an InputError.
    """
    try:
        tasks = queued_tasks(runs)
    except Unreachable as error:
        submitted = {trial_id for _, record in _records(runs).values() for trial_id in record["trials"]}
        if must_answer and any(not list(runs.glob(f"trials/*-{trial_id}/result.json")) for trial_id in submitted):
            raise InputError(
                f"{runs}: SLURM must say which trials it has queued, but does not answer ({error}); try again later, "
                f"or remove {runs / 'sweeps'}/*/{FOLDER}/*.json if its jobs are over"
            ) from None
        warn(f"queued trials are not shown, as SLURM does not answer ({error})")
        return {}
    return {trial_id: "running" if task.has_begun else "queued" for trial_id, task in tasks.items() if not task.is_over}
