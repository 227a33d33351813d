"""Run a sweep:  python -m transformer_pl.sweep sweeps/table3_A.yaml

Checks every trial, prints the plan, trains what is not finished yet, and prints the table beside the paper's numbers.
The same command again resumes interrupted trials and tries failed ones again. A diverged trial is a result: only
--rerun trains it again.
"""

from pathlib import Path

from transformer_pl.plan.sweep_file import SEARCHES, located
from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.files import read_yaml
from transformer_pl.runtime.terminal import command_console, say
from transformer_pl.sweep.grid import run_grid
from transformer_pl.sweep.sweep_options import SweepOptions, read_options
from transformer_pl.train.devices import hide_ranks
from transformer_pl.trials.listing import list_runs


def main(words: list[str]) -> int:
    options = read_options(words)
    if isinstance(options, Path):
        list_runs(options, command_console())
        return 0
    return run_sweep(options)


def run_sweep(options: SweepOptions) -> int:
    """Run a sweep file, a grid or a search, and return the exit code. Raises an InputError before anything starts."""
    hide_ranks()
    console = command_console()
    say(console, f"checking {options.file}")  # an ablation may take seconds to import and to count
    content = read_yaml(located(options.file))
    if content.get("method") in SEARCHES:
        from transformer_pl.sweep.search import run_search  # imports optuna, which takes a quarter of a second

        return run_search(content, options, console)
    return run_grid(content, options, console)


if __name__ == "__main__":
    run_command(main)
