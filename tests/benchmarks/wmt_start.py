"""What a text of the size of WMT 2014 costs before the first step of its training:

    python tests/benchmarks/wmt_start.py DIR [--runs RUNS]

DIR is what wmt_corpus.py has written. The text is prepared unless it is already in RUNS, then a training starts and is
ended after its first step. Its model and its batches are small, so that a CPU can step; the text is of full size. It
prints seconds on the clock and of the processor, and the peak memory of the process: there is one at a time.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from transformer_pl.data.hub import LOCAL_COPIES
from transformer_pl.data.prepare import prepare
from transformer_pl.levels import resolve, scale_level

SMALL = ["--model.width=1/16", "--model.depth=1/6", "--trainer.precision=32-true", "--trainer.tokenised_bleu=False"]
SMALL += ["--data.batch_tokens=2048", "--trainer.log_every=1", "--trainer.accelerator=cpu"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--runs", type=Path, default=Path("runs/wmt_start"), help="(%(default)s)")
    options = parser.parse_args()
    os.environ |= {LOCAL_COPIES: str(options.folder), "WANDB_MODE": "disabled"}
    print("| until the end of | clock, s | processor, s | peak memory, MB |\n|:-|-:|-:|-:|")
    started, stages = time.perf_counter(), ["looking at the text"]

    def show(stage: str, done: int, total: int | None) -> None:
        if stage != stages[-1]:
            print_row(stages[-1], time.perf_counter() - started, resource.RUSAGE_SELF)
            stages.append(stage)

    prepare(resolve([scale_level("wmt14")]).data, options.runs, on_progress=show)
    print_row(stages[-1], time.perf_counter() - started, resource.RUSAGE_SELF)
    print_row("the first step, of another process", first_step(options.runs), resource.RUSAGE_CHILDREN)


def print_row(what: str, seconds: float, who: int) -> None:
    used = resource.getrusage(who)
    print(
        f"| {what} | {seconds:,.0f} | {used.ru_utime + used.ru_stime:,.1f} | {used.ru_maxrss / 1e3:,.0f} |", flush=True
    )


def first_step(runs: Path) -> float:
    """Start a training, end it after its first step, and return how long that took."""
    before, started = set(runs.glob("trials/*")), time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "transformer_pl.train",
        "--scale=wmt14",
        *SMALL,
        f"--seed={time.time_ns() % 10**9}",
    ]
    with subprocess.Popen([*command, f"--runs={runs}"], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            logs = [trial / "metrics.jsonl" for trial in set(runs.glob("trials/*")) - before]
            if any(log.exists() and log.stat().st_size for log in logs):
                seconds = time.perf_counter() - started
                process.send_signal(signal.SIGTERM)
                process.wait()
                return seconds
            time.sleep(0.1)
    raise SystemExit(f"the training ended with exit code {process.returncode}")


if __name__ == "__main__":
    main()
