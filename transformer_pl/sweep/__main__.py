"""Run a sweep:  python -m transformer_pl.sweep sweeps/table3_A.yaml

Checks every trial, prints the plan, trains what is not finished yet, and prints the table beside the paper's numbers.
The same command again resumes interrupted trials and tries failed ones again. A diverged trial is a result: only
--rerun trains it again.
"""

from pathlib import Path

from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.terminal import command_console
from transformer_pl.sweep.options import read_options
from transformer_pl.sweep.run import run_sweep
from transformer_pl.trials.listing import list_runs


def main(words: list[str]) -> int:
    options = read_options(words)
    if isinstance(options, Path):
        list_runs(options, command_console())
        return 0
    return run_sweep(options)


if __name__ == "__main__":
    run_command(main)
