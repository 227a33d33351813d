"""Runs a sweep file: a grid, or a search."""

from transformer_pl.plan.sweep_file import SEARCHES
from transformer_pl.runtime.files import read_yaml
from transformer_pl.runtime.terminal import command_console, say
from transformer_pl.sweep.grid import run_grid
from transformer_pl.sweep.options import SweepOptions
from transformer_pl.train.devices import hide_ranks


def run_sweep(options: SweepOptions) -> int:
    """Run a sweep file and return the exit code. Raises an InputError before anything starts."""
    hide_ranks()
    console = command_console()
    say(console, f"checking {options.file}")  # an ablation may take seconds to import and to count
    content = read_yaml(options.file)
    if content.get("method") in SEARCHES:
        from transformer_pl.sweep.search import run_search  # imports optuna, which takes a quarter of a second

        return run_search(content, options, console)
    return run_grid(content, options, console)
