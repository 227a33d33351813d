"""Train one trial:  python -m transformer_pl.train [--scale=demo] [--variant="model.h=4"] [--seed=1] [--model.h=4 ...]

The config alone decides which trial it is. A finished trial is not trained again; an interrupted one continues from
its last checkpoint. One that diverged keeps its last good checkpoint and is not trained again either.
"""

from pathlib import Path

from transformer_pl.config import Config
from transformer_pl.laws.checks import check_all
from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.terminal import plain
from transformer_pl.train.command import read_argv, train
from transformer_pl.trials.result import Checked


def main(argv: list[str]) -> int:
    exit_code, _ = train(read_argv(argv), check)
    return exit_code


def check(config: Config, runs: Path) -> Checked:
    """Check the parts of a trial. Raises an InputError for what is wrong with them."""
    (found,) = check_all([config], runs, on_check=lambda what: print(plain(f"checking {what}"), flush=True))
    return Checked(found.exempt, found.passes)


if __name__ == "__main__":
    run_command(main)
