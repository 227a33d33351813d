"""Sweeps whose commands and trials are killed and stopped at random moments, compared with the same sweep in calm.

    python tests/benchmarks/chaos.py --sweeps 20 --commands 3 --signals 15 --seed 1

Each sweep has a runs folder of its own, which several commands share. A command that a signal has ended is started
again. At the end, results.csv must be equal to that of the calm sweep, byte for byte, and no process may be left. The
seed decides the signals, which processes they hit and when, but not what a process is doing at that moment. Linux only.
"""

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import ROOT, Process, descendants, little_text, processes, wait_for, write_sweep
from tiny_trials import TINY, outcome, same

from transformer_pl.trials.trial_folder import TrialFolder

ROWS = ["base", "decode.alpha=2", "model.p_drop=0.3 trainer.accumulate=2", "decode.average=2"]  # two share weights
KEYS = {"optim.max_steps": 600, "trainer.val_every": 120, "trainer.checkpoint_minutes": 0.01, "decode.beam": 1}
LONGEST_STOP_S = 3.0  # the longest time for which SIGSTOP halts a process
GONE_S = 60.0  # all processes must have ended within this time after the sweep
PR_SET_CHILD_SUBREAPER = 36


def chaos_sweep(folder: Path) -> Path:
    """A sweep file of small trials, and their text."""
    keys = {"scale": "demo"} | TINY | {"data.path": str(little_text(folder))} | KEYS
    return write_sweep(folder / "chaos.yaml", keys | {"variant": ROWS})


def start(file: Path, runs: Path) -> subprocess.Popen:
    words = [sys.executable, "-m", "transformer_pl.sweep", str(file), f"--runs={runs}", "--parallel=2"]
    environment = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    with runs.with_suffix(".log").open("a") as log:
        files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True, **files)


def alive() -> list[Process]:
    """The living descendants of this process; orphans become its children (PR_SET_CHILD_SUBREAPER)."""
    below = set(descendants(os.getpid()))
    return [one for one in processes() if one.pid in below]


def storm(file: Path, runs: Path, commands: int, signals: int, calm_s: float, chance: random.Random) -> list[str]:
    """Train a sweep with several commands while signals hit their processes; returns what was sent to whom."""
    hits: list[str] = []
    stopped: dict[int, float] = {}  # until when, by process
    running = [start(file, runs) for _ in range(commands)]
    due, calm_failures = time.monotonic() + 5, 0
    while running:
        time.sleep(0.02)
        now = time.monotonic()
        for pid in [pid for pid, until in stopped.items() if until <= now]:
            del stopped[pid]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for one in [one for one in running if one.poll() is not None]:
            running.remove(one)
            if one.returncode:
                calm_failures += len(hits) == signals and one.returncode > 0
                assert calm_failures <= commands, f"fails without a signal, see {runs.with_suffix('.log')}"
                running.append(start(file, runs))
        if now >= due and len(hits) < signals and (victims := alive()):
            victim, signum = chance.choice(victims), chance.choice([signal.SIGKILL, signal.SIGSTOP])
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signum)
                hits.append(f"{signum.name} to a {'sweep' if victim.parent == os.getpid() else 'trial, or its server'}")
                if signum == signal.SIGSTOP:
                    stopped[victim.pid] = now + chance.uniform(0.1, LONGEST_STOP_S)
            due = now + chance.uniform(0, 2 * calm_s / signals)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not alive(), GONE_S)  # nothing is left running
    assert len(hits) == signals, f"{runs}: done after {len(hits)} signals; train for more steps"
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("sweeps", 20), ("commands", 3), ("signals", 15), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help="(%(default)s)")
    options = parser.parse_args()
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    folder = Path(tempfile.mkdtemp(prefix="chaos"))
    file, began, sent = chaos_sweep(folder), time.monotonic(), Counter[str]()
    storm(file, folder / "calm", 1, 0, 0, random.Random())
    calm_s = time.monotonic() - began
    (expected,) = (folder / "calm").glob("sweeps/*/results.csv")
    print(f"in {folder}; {calm_s:.0f} s in calm", flush=True)
    for number in range(options.sweeps):
        runs, began = folder / f"runs-{number}", time.monotonic()
        chance = random.Random(1000 * options.seed + number)
        sent.update(storm(file, runs, options.commands, options.signals, calm_s, chance))
        (table,) = runs.glob("sweeps/*/results.csv")
        assert table.read_bytes() == expected.read_bytes(), table
        assert sorted(os.listdir(runs / "trials")) == sorted(os.listdir(folder / "calm" / "trials"))
        for calm in (folder / "calm" / "trials").iterdir():
            same(TrialFolder(runs / "trials" / calm.name), outcome(TrialFolder(calm)))
        print(f"sweep {number}: nothing was lost in {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(f"{count} x {hit}" for hit, count in sorted(sent.items())))


if __name__ == "__main__":
    main()
