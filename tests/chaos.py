"""A storm over a sweep: its processes are killed and stopped at random moments, and its command is started until it is
done. Then everything is compared with the same sweep in calm.

    python tests/chaos.py --trials 15 --signals 50 --seed 1

The seed decides the signals, whom they hit and after how long, but not what these are doing at that moment. The
commands are forked from a process that has imported their libraries (forked.py). FAULTS.md has the figures of the last
run. Linux only.
"""

import argparse
import ctypes
import math
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import forked
import yaml
from helpers import Process, little_text, processes
from tiny_trials import TINY, outcome, same

from transformer_pl.trials.trial import Trial

ROWS = [  # several seeds of each; the second one shares the weights of the first
    "base",
    "decode.alpha=2",
    "model.h=4 trainer.devices=2 trainer.strategy=ddp",
    "model.p_drop=0.3 trainer.accumulate=2",
    "decode.average=2 trainer.bleu_sample=2",
]
LONGEST_STOP_S = 3.0  # of a process that SIGSTOP has hit; one of W&B stays so until the sweep has ended
BYTES_PER_SIGNAL = 100_000  # that may stay on the disk: the log and the offline W&B run of an attempt, say
GONE_S = 60.0  # seconds in which all processes must end after the sweep
PR_SET_CHILD_SUBREAPER = 36


class Hit(NamedTuple):
    seconds: float  # since the storm began
    signum: int
    kind: str
    pid: int

    def __str__(self) -> str:
        return f"{self.seconds:6.1f} s  {signal.Signals(self.signum).name} to {self.kind} (process {self.pid})"


class Storm:
    """Sends a number of signals to the processes of a sweep, `pause` seconds apart on average."""

    def __init__(self, seed: int, signals: int, pause: float, spared: set[int]):
        """spared: the children of this process that are not the sweep's."""
        self.random, self.left, self.pause, self.spared = random.Random(seed), signals, pause, spared
        self.hits: list[Hit] = []
        self._began = time.monotonic()
        self._due = self._began + self._draw_pause()
        self._stopped: dict[int, float] = {}  # until when, by process

    def blow(self, sweep: int) -> None:
        """Send what is due."""
        now = time.monotonic()
        self._go_on(until=now)
        if self.left and now >= self._due and (kinds := by_kind(sweep, self.spared)):
            kind = self.random.choice(sorted(kinds))
            pid, signum = self.random.choice(kinds[kind]), self.random.choice([signal.SIGKILL, signal.SIGSTOP])
            stop_s = math.inf if kind == "W&B" else self.random.uniform(0.1, LONGEST_STOP_S)
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signum)
                self.left -= 1
                self.hits.append(Hit(now - self._began, signum, kind, pid))
                if signum == signal.SIGSTOP:
                    self._stopped[pid] = now + stop_s
            self._due = now + self._draw_pause()

    def end(self) -> list[Process]:
        """Let everything go on that is stopped. Returns the processes that have not ended after a while."""
        self._go_on(until=math.inf)
        deadline = time.monotonic() + GONE_S
        while (left := of_the_sweep(self.spared)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _go_on(self, until: float) -> None:
        for pid in [pid for pid, when in self._stopped.items() if when <= until]:
            del self._stopped[pid]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _draw_pause(self) -> float:
        return self.random.uniform(0, 2 * self.pause)


def of_the_sweep(spared: set[int]) -> list[Process]:
    """The descendants of this process, but for the spared ones."""
    alive, found = processes(), {os.getpid()}
    while children := {one.pid for one in alive if one.parent in found} - found:
        found |= children
    return [one for one in alive if one.pid in found - spared - {os.getpid()}]


def by_kind(sweep: int, spared: set[int]) -> dict[str, list[int]]:
    """The processes of a sweep: itself, its server, trials, ranks that these have started, and those of W&B."""
    kinds: dict[str, list[int]] = {}
    alive = of_the_sweep(spared)
    trials = {one.pid for one in alive if "-m transformer_pl.train " in one.command}
    for one in alive:
        if one.pid == sweep:
            kind = "sweep"
        elif one.pid in trials:
            kind = "rank" if one.parent in trials else "trial"
        else:
            kind = "W&B" if "wandb" in one.command else "server"
        kinds.setdefault(kind, []).append(one.pid)
    return kinds


@contextmanager
def adopted_orphans(spared: set[int]) -> Iterator[None]:
    """While this lasts, a process whose parent was killed becomes a child of this one: so none is lost sight of.

    At the end, which may be an error, those of a sweep are killed.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        for one in of_the_sweep(spared):
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def write_sweep(folder: Path, rows: Iterable[str], seeds: int, keys: dict[str, Any]) -> Path:
    """A sweep file of small trials, and their text."""
    text = folder / "text"
    text.mkdir()
    little_text(text, 60, 8, 6)
    keys = {"scale": "demo"} | TINY | {"data.path": str(text), "trainer.accelerator": "cpu", "decode.beam": 1} | keys
    parameters = {key: {"value": value} for key, value in keys.items()}
    parameters |= {"variant": {"values": list(rows)}, "seed": {"values": list(range(1, seeds + 1))}}
    path = folder / "chaos.yaml"
    head = {"program": "transformer_pl/train.py", "name": "chaos", "method": "grid"}
    path.write_text(yaml.safe_dump(head | {"parameters": parameters}))
    return path


def run(file: Path, runs: Path, storm: Storm) -> list[int]:
    """Start the sweep's command until it has done everything; returns its exit codes, negative for a signal."""
    codes: list[int] = []
    calm_starts = 0  # after the last signal
    with runs.with_suffix(".log").open("a") as log:
        while not codes or codes[-1]:
            calm_starts += not storm.left
            assert calm_starts <= 2, f"failed without a signal, see {log.name}"  # the first may have been hit before
            process = forked.start("sweep", file, f"--runs={runs}", "--parallel=2", output=log, WANDB_MODE="offline")
            process.stdin.close()
            while (code := process.poll()) is None:
                storm.blow(process.pid)
                time.sleep(0.02)
            codes.append(code)
            assert code in (0, 1, -signal.SIGKILL), f"exit code {code}, see {log.name}"
    return codes


def results(runs: Path) -> str:
    """The text of results.csv; it has neither rates nor times."""
    (path,) = runs.glob("sweeps/*/results.csv")
    return path.read_text()


def trials(runs: Path) -> list[Trial]:
    return [Trial(path) for path in sorted((runs / "trials").iterdir()) if path.is_dir()]


def compare(calm: Path, stormy: Path) -> None:
    """Assert that a sweep has come to what the other one has come to, trial by trial, and that no trial is double."""
    assert results(stormy) == results(calm)
    assert [one.folder.name for one in trials(stormy)] == [one.folder.name for one in trials(calm)]
    for expected, trial in zip(trials(calm), trials(stormy), strict=True):
        same(trial, outcome(expected))
        steps = [(line["kind"], line["step"], *sorted(line)) for line in trial.metrics()]
        assert len(set(steps)) == len(steps), f"{trial.folder}: a step was logged twice"
        ids = {path.name.split("-", 3)[3] for path in trial.folder.glob("wandb/offline-run-*")}
        assert len(ids) <= 1, f"{trial.folder}: more than one W&B run, {ids}"


def size(folder: Path) -> int:
    """The bytes of all files below a folder; those of a file with several names count once."""
    files = {(stat.st_ino, stat.st_size) for path in folder.rglob("*") if (stat := path.lstat())}
    return sum(size for _, size in files)


def chaos(folder: Path, rows: list[str], seeds: int, signals: int, seed: int, keys: dict) -> str:
    """The whole of it. Returns what has happened, for people. Raises an AssertionError where something was lost."""
    file = write_sweep(folder, rows, seeds, keys)
    forked.server()
    spared = {one.pid for one in of_the_sweep(set())}
    with adopted_orphans(spared):
        began = time.monotonic()
        calm = Storm(seed, 0, 0, spared)
        assert run(file, folder / "calm", calm) == [0]
        assert not calm.end()
        calm_s = time.monotonic() - began
        storm = Storm(seed, signals, calm_s / signals, spared)
        codes = run(file, folder / "stormy", storm)
        left = storm.end()
        stormy_s = time.monotonic() - began - calm_s
    report = [*map(str, storm.hits), f"exit codes of the command: {codes}"]
    hits = Counter((hit.kind, signal.Signals(hit.signum).name) for hit in storm.hits)
    report += [f"{kind}: {count} x {name}" for (kind, name), count in sorted(hits.items())]
    report += [f"{calm_s:.0f} s in calm, {stormy_s:.0f} s in the storm, the command started {len(codes)} times"]
    sizes = [size(folder / name) for name in ("calm", "stormy")]
    report += [f"{sizes[0] / 1e6:.1f} MB on disk in calm, {sizes[1] / 1e6:.1f} MB after the storm"]
    attempts = [len(list(trial.folder.glob("log*.txt"))) for trial in trials(folder / "stormy")]
    report += [f"attempts by trial: {attempts}"]
    text = "\n".join(report)
    assert not left, f"{text}\nstill running: {left}"
    assert not storm.left, f"{text}\nthe sweep was done before {storm.left} signals; train for more steps"
    assert sizes[1] <= sizes[0] + signals * BYTES_PER_SIGNAL, text
    compare(folder / "calm", folder / "stormy")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=15, help=f"a multiple of {len(ROWS)} (%(default)s)")
    parser.add_argument("--signals", type=int, default=50, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="of each trial (%(default)s)")
    parser.add_argument("--folder", type=Path, help="an empty one, which stays (a temporary one)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos"))
    folder.mkdir(parents=True, exist_ok=True)
    keys = {
        "optim.max_steps": options.steps,
        "trainer.val_every": options.steps // 5,
        "trainer.checkpoint_minutes": 0.01,
    }
    print(f"in {folder}", flush=True)
    print(chaos(folder, ROWS, options.trials // len(ROWS), options.signals, options.seed, keys))
    print("nothing was lost")


if __name__ == "__main__":
    main()
