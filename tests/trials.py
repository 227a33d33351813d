"""Trials made in this process, each in a fraction of a second: the train command itself, on a few sentences."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import little_text

from transformer_pl import stopping, tracking
from transformer_pl.results import Trial
from transformer_pl.train import main

TINY = {"model.N": 2, "model.d_model": 16, "model.d_ff": 32, "model.h": 2, "model.width": 1, "model.depth": 1}
TINY |= {"data.vocab_size": 300, "data.batch_tokens": 64, "optim.warmup": 4, "optim.max_steps": 4}
TINY |= {"trainer.val_every": 2, "trainer.log_every": 1, "trainer.threads": 1, "trainer.eval_tokens": 128}
TINY |= {"decode.extra": 3}


class NoRun:
    """In place of a W&B run, whose process takes longer to start than a trial takes here."""

    def __init__(self, **told: Any):
        pass

    def tell(self, **told: Any) -> None:
        pass

    def finish(self, *told: Any) -> None:
        pass


@contextmanager
def in_a_command() -> Iterator[None]:
    """As in a command's own process: its signal handlers, no W&B. What a trial changes is as before afterwards."""
    threads, handlers = torch.get_num_threads(), {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "Run", NoRun)
        stopping.handle(stopping.stop)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for signum, handler in handlers.items():
                signal.signal(signum, handler)


def argv(runs: Path, keys: dict[str, Any]) -> list[str]:
    """The command line of a tiny trial with these keys, on a little text unless they name another."""
    text = runs.parent / "text"
    if "data.path" not in keys and not text.exists():
        text.mkdir()
        little_text(text, 60, 8, 6)
    return [f"--runs={runs}", *(f"--{key}={value}" for key, value in (TINY | {"data.path": text} | keys).items())]


def run(runs: Path, keys: dict[str, Any], *options: str) -> tuple[int, Trial]:
    """Train it; the command's exit code, and the trial, the only one in this runs folder."""
    with in_a_command():
        code = main([*argv(runs, keys), *options])
    (folder,) = (runs / "trials").iterdir()
    return code, Trial(folder)
