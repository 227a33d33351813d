"""The launcher `slurm`: trials are tasks of job arrays, which outlive the command that submitted them.

Plain sbatch, because submitit pickles a function, asks accounting (which may be absent) for states, and requeues a job
only on its own signal; an array whose script holds each trial's command line needs none of that, and a command that is
started again finds its tasks by the name of the job.

A command writes down the trials of an array, under the name that the job will have, before it submits it. So whenever a
command dies, the next one knows what may be queued, and asks SLURM for that name.
"""

import argparse
import itertools
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_pl.config import Trainer
from transformer_pl.launchers import Ended, Training, trial_variables
from transformer_pl.launchers.slurm_queue import FOLDER, QueuedTask, Unreachable, answer, queued_tasks, write_record
from transformer_pl.launchers.slurm_script import Resources, Task, asked_hours, batch_script
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import locked_file, write_atomically
from transformer_pl.runtime.lease import Lease
from transformer_pl.runtime.machine import missing_packages
from transformer_pl.runtime.signals import Stopped, install_handler, raise_stopped
from transformer_pl.runtime.terminal import counted

if TYPE_CHECKING:
    from transformer_pl.experiments.plan import PlannedTrial

LARGEST_ARRAY = 1000  # tasks, where the cluster does not allow fewer
ASK_S = 1.0, 30.0  # between two questions for the states of all tasks: at first, and at most


class SlurmTraining:
    """A trial that SLURM has queued, runs, or has ended."""

    def __init__(self, launcher: "SlurmLauncher", planned: "PlannedTrial"):
        self.launcher, self.planned = launcher, planned

    def begun(self) -> bool:
        task = self.launcher.task(self.planned)
        return task is not None and task.has_begun and not self.launcher.is_waiting(self.planned)

    def poll(self) -> Ended | None:
        self.launcher.ask()
        if self.launcher.is_waiting(self.planned):
            return None
        task, trial = self.launcher.task(self.planned), self.planned.trial
        if (task and not task.is_over) or trial.locked():  # locked: another process has trained it first, or still does
            return None
        if task is None:
            return Ended(trial.result() is not None, "in a job that SLURM no longer knows")
        ok = task.state == "COMPLETED" or trial.result() is not None
        why = task.state if task.reason == "None" else f"{task.state}, {task.reason}"
        where = f"in SLURM's job {task.job}_{task.number} ({why}), which printed to {task.output}"
        return Ended(ok, where)

    def terminate(self) -> None:
        if task := self.launcher.task(self.planned):
            try:
                answer(["scancel", f"{task.job}_{task.number}"])
            except Unreachable as error:
                warn(f"SLURM does not cancel {task.job}_{task.number}: {error}")

    def kill(self) -> None:
        """SLURM does it, some time after it has told the trial to save and end."""


class SlurmLauncher:
    """Submits trials to SLURM. See `Launcher` for what its methods are for."""

    shares = False  # each job has devices of its own

    def __init__(self, runs: Path, folder: Path, file: Path | None = None, parallel: int | None = None):
        """folder: of the sweep. file: of --slurm. parallel: how many trials run at once."""
        self.runs, self.folder, self.file, self.parallel = runs, folder / FOLDER, file, parallel
        self.resources = Resources.read(file)
        self.slots = 0
        self._trainer = Trainer()  # of every trial
        self._waiting: dict[str, tuple[PlannedTrial, list[str]]] = {}  # by the trial's id; to be submitted
        self._tasks: dict[str, QueuedTask] | None = None  # by the trial's id, as last told; None: never asked
        self._queued: str | None = None  # why some are, as last told
        self._began = self._asked = time.monotonic()
        self._has_submitted, self._submit_from = False, self._began  # when SLURM may be asked to take more

    def check(self, trainers: Iterable[Trainer]) -> None:
        trainers, gpus = list(trainers), self.resources.gpus
        mistakes = []
        if len({(trainer.devices, trainer.num_nodes) for trainer in trainers}) > 1:
            mistakes.append(
                "--launcher slurm: the tasks of an array are equal, so trainer.devices and trainer.num_nodes must be "
                "the same for all trials; set them alike, or train the rows as two sweeps"
            )
        for trainer in dict.fromkeys(trainers):
            for key, value in (("accelerator", "gpu"), ("precision", "16-mixed")):
                if not gpus and getattr(trainer, key) == value:
                    mistakes.append(
                        f"trainer.{key} = {value}: needs a GPU, but the jobs ask SLURM for none; set gpus-per-node in "
                        "the file of --slurm"
                    )
            if gpus and trainer.accelerator != "cpu" and trainer.devices != gpus:
                mistakes.append(
                    f"trainer.devices = {trainer.devices}: must be the number of GPUs that the file of --slurm asks "
                    f"for on each node, {gpus}; change one of them"
                )
        if mistakes := [*mistakes, *missing_packages(trainers)]:
            raise InputError(*mistakes)

    @contextmanager
    def opened(self, trial_count: int) -> Iterator[None]:
        if missing := [name for name in ("sbatch", "squeue", "scancel", "scontrol") if not shutil.which(name)]:
            raise InputError(
                f"--launcher slurm: needs {', '.join(missing)} on this machine; start the command on a login node of "
                "the cluster, or leave --launcher out"
            )
        yield

    def allot(self, trainers: Sequence[Trainer], trial_count: int, is_search: bool = False) -> None:
        if is_search and self.parallel is None:
            raise InputError(
                "--launcher slurm: a search draws by how earlier trials ended, so it must know how many to submit at "
                "once; add --parallel N"
            )
        self.slots = self.parallel if is_search and self.parallel else trial_count
        self._trainer = trainers[0] if trainers else Trainer()

    @property
    def at_once(self) -> int:
        return min(self.parallel or self.slots, self.slots)

    def describe(self, trials: Sequence["PlannedTrial"], undrawn: int = 0) -> str:
        total, queued = len(trials) + undrawn, sum(self.attach(planned) is not None for planned in trials)
        text = f"{counted(total, 'trial')} to train"
        if queued:
            text += f", {queued} of them queued or running already"
        new = total - queued
        return f"{text}; {asked_hours(new, self.resources, self._trainer)}" if new else text

    def preview(self, trials: Sequence["PlannedTrial"], argv: Callable[["PlannedTrial"], list[str]]) -> list[str]:
        lines, new = list[str](), [(planned, argv(planned)) for planned in trials if not self.attach(planned)]
        for chunk in _chunks(new, LARGEST_ARRAY):
            lines += ["would submit to sbatch:", self._script(f"{self.folder.parent.name}.NUMBER", chunk)]
        return lines

    def threads(self, planned: "PlannedTrial") -> int | None:
        return None

    def cpu_cores(self) -> int:
        return 0

    def waits(self) -> str | None:
        """None: it can always submit."""

    def queued(self) -> str | None:
        return self._queued

    def attach(self, planned: "PlannedTrial") -> Training | None:
        if self._tasks is None:
            try:
                self._tasks = queued_tasks(self.runs)
            except Unreachable as error:
                raise InputError(
                    f"--launcher slurm: trials of this runs folder may be queued, but SLURM does not say it ({error}); "
                    "try again when it answers"
                ) from None
        task = self.task(planned)
        return SlurmTraining(self, planned) if task and not task.is_over else None

    def start(self, planned: "PlannedTrial", argv: list[str], lease: Lease) -> Training:
        self._waiting[planned.identity.trial] = planned, argv
        return SlurmTraining(self, planned)

    def submit(self) -> None:
        """Raises an InputError where SLURM refuses the first array; later ones are tried again until it takes them."""
        if not self._waiting or time.monotonic() < self._submit_from:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked_file(self.runs / "sweeps" / "slurm.lock"):
            try:
                self._tasks = queued_tasks(self.runs, forget=True)  # another command may have submitted some just now
                size = re.search(r"MaxArraySize\s*=\s*(\d+)", answer(["scontrol", "show", "config"]))
                new = [
                    one for trial_id, one in self._waiting.items() if (self._tasks.get(trial_id) or _NOTHING).is_over
                ]
                for chunk in _chunks(new, min(LARGEST_ARRAY, int(size[1]) if size else LARGEST_ARRAY)):
                    self._submit(chunk)
            except Unreachable as error:
                if not self._has_submitted:
                    raise InputError(
                        f"--launcher slurm: trials cannot be submitted: {error}; {self._remedy()}"
                    ) from None
                trials = counted(len(self._waiting), "trial")
                warn(f"SLURM does not take {trials} now ({error}); its jobs go on, and this command tries again")
                self._submit_from = time.monotonic() + ASK_S[1]
                return
        self._waiting.clear()
        self._asked = 0.0

    def stop(self, trainings: Sequence[Training], say: Callable[[str], None], ask: Callable[[str], bool]) -> None:
        arrays = {
            task.job for task in (self._tasks or {}).values() if task.output.parent == self.folder and not task.is_over
        }
        if not arrays:
            return
        trials, words = counted(len(trainings), "trial"), ["scancel", *sorted(arrays)]
        install_handler(raise_stopped)
        with suppress(Stopped):  # another Ctrl-C is no answer
            if ask(f"Cancel {trials} that SLURM has queued or runs? Those that run save first."):
                try:
                    answer(words)
                    say(f"cancelled: {' '.join(words)}")
                    return
                except Unreachable as error:
                    warn(f"SLURM does not cancel them: {error}")
        say(
            f"left queued or running in SLURM: {trials}; run the same command again to attach to them; to cancel them: "
            f"{' '.join(words)}"
        )

    # Asking SLURM

    def task(self, planned: "PlannedTrial") -> QueuedTask | None:
        """The task of a trial, as SLURM has last told."""
        return (self._tasks or {}).get(planned.identity.trial)

    def is_waiting(self, planned: "PlannedTrial") -> bool:
        """Whether it is still to be submitted."""
        return planned.identity.trial in self._waiting

    def ask(self) -> None:
        """Ask for the states of all tasks, if it is time to: often at first, seldom in a long sweep."""
        now = time.monotonic()
        if now - self._asked < min(max((now - self._began) / 20, ASK_S[0]), ASK_S[1]):
            return
        try:
            self._tasks = queued_tasks(self.runs)
            self._queued = _why_queued(task for task in self._tasks.values() if task.output.parent == self.folder)
        except Unreachable as error:
            warn(f"SLURM does not answer ({error}); its jobs go on, and this command waits for it")
        self._asked = time.monotonic()

    # Submitting

    def _submit(self, chunk: Sequence[tuple["PlannedTrial", list[str]]]) -> None:
        name = f"{self.folder.parent.name}.{secrets.token_hex(3)}"
        script = self.folder / f"{name}.sh"
        write_atomically(script, self._script(name, chunk))
        trials = [planned.identity.trial for planned, _ in chunk]
        write_record(self.folder, name, trials)
        job = answer(["sbatch", "--parsable", str(script)]).strip().partition(";")[0]
        self._has_submitted = True
        assert self._tasks is not None
        for number, trial_id in enumerate(trials):
            self._tasks[trial_id] = QueuedTask(job, number, "PENDING", "", self.folder / f"{name}.{number}.txt")

    def _script(self, name: str, chunk: Sequence[tuple["PlannedTrial", list[str]]]) -> str:
        tasks = []
        for planned, argv in chunk:
            threads = planned.trial.threads(planned.config.trainer.threads, self.resources.cpus_per_task)
            variables = trial_variables(planned, threads)
            tasks.append(Task(argv, variables, planned.trial.folder / "checkpoints" / "last.ckpt"))
        return batch_script(name, tasks, self.resources, self._trainer, self.folder, self.parallel)

    def _remedy(self) -> str:
        return f"correct {self.file}" if self.file else "say what the jobs need in a file, and name it with --slurm"


_NOTHING = QueuedTask("0", 0, "COMPLETED", "", Path())


def _why_queued(tasks: Iterable[QueuedTask]) -> str | None:
    """The reasons that SLURM has for those that have not begun: some pass, some never do. None where all have begun."""
    reasons = {task.reason for task in tasks if not task.has_begun}
    told = ", ".join(sorted(reasons - {"None"}))
    return (f"queued by SLURM ({told})" if told else "queued by SLURM") if reasons else None


def _chunks(items: Sequence, size: int) -> Iterator[Sequence]:
    for start in itertools.count(0, size):
        if start >= len(items):
            return
        yield items[start : start + size]


def open_launcher(options: argparse.Namespace, folder: Path) -> SlurmLauncher:
    """The launcher that the options of a command describe. folder: of the sweep. Raises an InputError."""
    return SlurmLauncher(options.runs, folder, options.slurm, options.parallel)
