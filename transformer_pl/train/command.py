"""What the train command does: it reads its arguments, checks the parts of the trial, and trains it once."""

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer_pl.config import Config
from transformer_pl.config.help import help_text
from transformer_pl.config.levels import (
    DEFAULT_SCALE,
    OF_SEEDS,
    Level,
    parse_variant,
    read_pairs,
    resolve,
    scale_choices,
    scale_level,
)
from transformer_pl.runtime.command_line import CommandParser, add_options, option, options_of, runs_option
from transformer_pl.runtime.environment import ROW, TRIAL
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import check_writable
from transformer_pl.runtime.terminal import plain
from transformer_pl.task import open_corpus
from transformer_pl.train.devices import is_first_rank, join_world
from transformer_pl.train.wandb_run import WandbRun
from transformer_pl.trials.identity import describe_difference
from transformer_pl.trials.result import Checked
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Origin, Trial
from transformer_pl.trials.trial_config import check_match, trial_config
from transformer_pl.trials.trial_of import trial_of

EXAMPLES = """\
examples:
  python -m transformer_pl.train --model.h=4 --seed=2                   a trial at scale demo, with 4 heads
  python -m transformer_pl.train --variant="model.h=1 model.p_drop=0"   as a row of a sweep file names it
  python -m transformer_pl.train --scale=multi30k --runs=elsewhere      base on a real dataset, in another folder

The keys of the config follow. Their defaults are the paper's base; a scale sets some of them. The arguments of a
component are keys too: --model.attention=ablations.local_attention.LocalAttention --model.attention.window=8
"""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Which trial is trained."""

    scale: str = option(f"{scale_choices()} ({DEFAULT_SCALE})", default=DEFAULT_SCALE, metavar="S")
    variant: str | None = option(
        "a row of a sweep: `base`, or what differs from it; wins over --key=value", metavar='"KEY=VALUE ..."'
    )
    runs: Path = runs_option()
    rerun: bool = option("train a finished or diverged trial again", default=False)
    keys: Mapping[str, Any] = field(default_factory=dict)  # keys of the config, which win over the scale's

    def levels(self) -> list[Level]:
        """The levels of the config, the scale's first. Raises an InputError."""
        levels = [scale_level(self.scale), Level("command line", self.keys)]
        return levels if self.variant is None else [*levels, parse_variant(self.variant, "command line")]


def train(options: TrainOptions, check: Callable[[Config, Path], Checked]) -> tuple[int, Trial]:
    """Train, evaluate and record one trial. Returns the exit code, and the trial.

    check: takes a config and the runs folder, and checks the parts of the trial. Raises an InputError for what is wrong
    with them.
    """
    levels = options.levels()
    # Before torch is imported. By default OpenMP's idle threads spin, and slow down another trial on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    scale = Path(options.scale).stem
    base = levels[: 1 if options.variant is None else 2]  # the scale, and with a variant also the keys beside it
    unmatched = resolve(levels)  # the config before its steps are matched to the FLOPs of base
    join_world(unmatched.trainer)
    row = describe_difference(unmatched, resolve(base))
    config = trial_config(levels)
    check_writable(options.runs / "trials")
    origin = Origin(os.environ.get(ROW, row), scale=scale, rerun=options.rerun)
    trial = trial_of(config, open_corpus(config.data), RunsFolder(options.runs), origin)
    if os.environ.get(TRIAL, trial.id) != trial.id:
        raise InputError(
            f"{trial.folder.name}: must be the trial that the sweep has planned, but its dataset or the code of "
            "its components has changed since; run the sweep again"
        )
    if trial.needs_training():
        checked = check(config, options.runs) if is_first_rank() else Checked()
        if unmatched.optim.match == "flops":
            check_match([(origin.row, checked.passes)])
        if not sys.modules.get("lightning"):  # not yet: that takes seconds
            print(plain(f"{trial.folder}: importing torch"), flush=True)
        from transformer_pl.train.one_trial import train_trial

        if (code := train_trial(trial, checked)) is not None:
            return code, trial
    return _report_ended(trial), trial


def read_argv(argv: list[str]) -> TrainOptions:
    """Read a command line. Keys of the config are options too: `--model.h=4` or `--model.h 4`."""
    parser = CommandParser(
        prog="python -m transformer_pl.train",
        usage='%(prog)s [--scale=S] [--variant="..."] [--runs=DIR] [--rerun] [--key=value ...]',
        description="Train one trial, unless it has finished or diverged; an interrupted one continues. Defaults are\n"
        "in parentheses.",
        epilog=f"{EXAMPLES}\n{help_text()}",
    )
    add_options(parser, TrainOptions)
    given, rest = parser.parse_known_args(argv)
    return options_of(TrainOptions, vars(given) | {"keys": _read_keys(rest)})


def _read_keys(argv: list[str]) -> Mapping[str, Any]:
    """The keys of the config on a command line, as `--key=value` or `--key value`."""
    words, pairs = iter(argv), []
    for word in words:
        if not word.startswith("--"):
            raise InputError(f"command line: {shown(word)}: must be --key=value, or --key value")
        pairs.append(word[2:] if "=" in word else "=".join([word[2:], *itertools.islice(words, 1)]))
    own = [pair for pair in pairs if pair.partition("=")[0] not in OF_SEEDS]  # which W&B's agent hands on
    return read_pairs(own, "command line").values


def _report_ended(trial: Trial) -> int:
    """Report a trial that has finished (exit code 0) or diverged (1), also to the run that W&B's agent has opened."""
    result, step = trial.folder.result(), trial.folder.diverged_at()
    if result:
        print(plain(f"{trial.folder}: finished already"))
        print(plain("  ".join(f"{name} {value:.2f}" for name, value in result.metrics.items())), flush=True)
    else:
        print(plain(f"{trial.folder}: diverged at step {step}; --rerun trains it again"))
    if os.environ.get("WANDB_SWEEP_ID"):
        wandb = WandbRun(**trial.labels())
        if result:
            wandb.send(log={"step": result.steps, **result.metrics})
            wandb.send_summary(result)
        else:
            wandb.send(summary={"diverged_at_step": step})
        wandb.finish(0 if result else 1)
    return 0 if result else 1
