"""Trials made in this process, each in a fraction of a second: the train command itself, on a few sentences."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from helpers import little_text

from transformer_pl.laws.checks import Checks
from transformer_pl.runtime import errors, signals
from transformer_pl.runtime.command_line import run_command
from transformer_pl.train import __main__ as train_main
from transformer_pl.train.__main__ import main
from transformer_pl.trials.trial_folder import TrialFolder

TINY = {  # over the defaults: an encoder and a decoder of two layers, 16 wide
    "model.width": "1/32",
    "model.depth": "1/3",
    "optim.warmup": 4,
    "optim.max_steps": 4,
    "data.vocab_size": 300,
    "data.batch_tokens": 64,
    "decode.extra": 3,
    "decode.average": 1,
    "trainer.val_every": 2,
    "trainer.log_every": 1,
    "trainer.threads": 1,
}


@contextmanager
def in_a_command() -> Iterator[None]:
    """As in a command's own process: its signal handlers. No W&B. What a command changes is as before afterwards."""
    threads, handlers = torch.get_num_threads(), {s: signal.getsignal(s) for s in signals.STOPPING}
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        patch.setenv("WANDB_MODE", "disabled")
        signals.install_handler(signals.raise_stopped)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for signum, handler in handlers.items():
                signal.signal(signum, handler)


@contextmanager
def unrehearsed() -> Iterator[None]:
    """Parts of a trial are taken as they are: to check and rehearse them, which tests/laws tests, takes seconds."""
    with mock.patch.object(train_main, "check_all", lambda configs, runs, **options: [Checks() for _ in configs]):
        yield


def train(runs: Path, keys: dict[str, Any], *options: str) -> tuple[int, TrialFolder]:
    """Train a tiny trial with these keys, on a little text beside the runs folder unless they name another.

    Returns the command's exit code, and the trial: the only one of this runs folder.
    """
    text = runs.parent / "text"
    if "data.path" not in keys and not text.exists():
        little_text(text)
    printed = TINY | {"data.path": text} | keys
    with in_a_command():
        code = main([f"--runs={runs}", *(f"--{key}={value}" for key, value in printed.items()), *options])
    (folder,) = (runs / "trials").iterdir()
    return code, TrialFolder(folder)


def outcome(trial: TrialFolder) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, torch.Tensor], list[bytes]]:
    """What must be the same: the result, the lines of metrics, the weights, and the sentences.

    Times are left out, and which of the trials that share weights has trained them.
    """
    result = trial.result().model_dump(exclude={"tokens_per_s", "wall_s", "finished", "weights_of"})
    lines = [{k: v for k, v in line.items() if k not in ("time", "tokens_per_s")} for line in trial.metrics()]
    sentences = [path.read_bytes() for path in sorted(trial.path.glob("[hs]*.*.*[tl]"))]
    return result, lines, trial.weights(), sentences


def same(trial: TrialFolder, expected: tuple) -> None:
    result, lines, weights, sentences = outcome(trial)
    assert lines == expected[1]
    assert result == expected[0] and sentences == expected[3]
    assert all(torch.equal(value, weights[name]) for name, value in expected[2].items())
    assert trial.status()["state"] == "done"


def ended(main: Callable[[list[str]], int], *words: object) -> tuple[Any, str, str]:
    """The exit code of a command that runs to its end in this process, and what it printed on both outputs."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", newline="\n") for _ in range(2))
    errors.warn.cache_clear()
    # As the system passes arguments: bytes without a NUL; what is no UTF-8 becomes halves of characters.
    bytes_of = [str(word).replace("\0", "").encode("utf-8", "surrogatepass") for word in words]
    argv = [word.decode("utf-8", "surrogateescape") for word in bytes_of]
    patched = mock.patch.object(sys, "argv", ["command", *argv])
    with in_a_command(), patched, redirect_stdout(out), redirect_stderr(err):
        try:
            run_command(main)
        except SystemExit as end:
            code = end.code
    for output in (out, err):
        output.flush()
    return code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()


def train_from(start: TrialFolder, runs: Path, keys: dict[str, Any]) -> tuple[int, TrialFolder]:
    """Train a tiny trial that begins with a finished one, to which a new runs folder has a link."""
    (runs / "trials").mkdir(parents=True)
    (runs / "trials" / start.name).symlink_to(start.path)
    printed = TINY | {"data.path": start.runs.parent / "text", "model.start": start.id} | keys
    with in_a_command():
        code = main([f"--runs={runs}", *(f"--{key}={value}" for key, value in printed.items())])
    (path,) = (path for path in (runs / "trials").iterdir() if path.name != start.name)
    return code, TrialFolder(path)
