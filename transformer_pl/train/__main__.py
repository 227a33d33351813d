"""Train one trial:  python -m transformer_pl.train [--scale=demo] [--variant="model.h=4"] [--seed=1] [--model.h=4 ...]

The config alone decides which trial it is. A finished trial is not trained again; an interrupted one continues from
its last checkpoint. One that diverged keeps its last good checkpoint and is not trained again either.
"""

from transformer_pl.runtime.command_line import run_command
from transformer_pl.train.command import read_argv, train


def main(argv: list[str]) -> int:
    exit_code, _ = train(read_argv(argv))
    return exit_code


if __name__ == "__main__":
    run_command(main)
