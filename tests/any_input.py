"""What tests of random input share: running a command in this process, what it owes its user, values that nobody means.

Each property is tried with few examples, always the same, and under the marker `exhaustive` with many, which are others
in each run; `--hypothesis-seed=N` repeats a run.
"""

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import tiny_trials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_pl.command_line import run_command
from transformer_pl.config import KEYS
from transformer_pl.runtime import errors

FEW, MANY = 10, 1500  # examples of a property
LONGEST_MESSAGE = 2000  # characters


def each_property(*properties: Callable[[Any], None]) -> pytest.MarkDecorator:
    """Parametrise a test by properties, each of which has its `examples`: first with few of them, then with many."""
    cases = [pytest.param(one, FEW, id=one.__name__) for one in properties]
    many = [pytest.param(one, MANY, id=f"{one.__name__}-many", marks=pytest.mark.exhaustive) for one in properties]
    return pytest.mark.parametrize(("holds", "count"), [*cases, *many])


def try_examples(holds: Callable[[Any], None], count: int, **fixed: Any) -> None:
    """Try a property with so many examples of its strategy. fixed: its other arguments."""

    def one(example: Any) -> None:
        holds(example, **fixed)

    one.__qualname__ = holds.__name__  # few examples are drawn by it
    limits = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    chosen = settings(max_examples=count, derandomize=count == FEW, print_blob=True, **limits)
    chosen(given(holds.examples)(one))()


def examples(strategy: st.SearchStrategy) -> Callable:
    """The values that a property, which is a function of one, is tried with."""

    def add(holds: Callable) -> Callable:
        holds.examples = strategy
        return holds

    return add


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def ended(main: Callable[[list[str]], int], *words: object) -> Ended:
    """Run a command to its end in this process."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", newline="\n") for _ in range(2))
    errors.warn.cache_clear()
    argv = mock.patch.object(sys, "argv", ["command", *map(str, words)])
    with tiny_trials.in_a_command(), argv, redirect_stdout(out), redirect_stderr(err):
        try:
            run_command(main)
        except SystemExit as end:
            code = end.code
    out.flush()
    err.flush()
    return Ended(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def told_or_done(main: Callable[[list[str]], int], *words: object) -> Ended:
    """A command works, or it ends with exit code 2 and says why, each mistake in one short line."""
    printed = ended(main, *words)
    lines = printed.err.split("\n")[:-1]
    assert printed.code in (0, 2), printed
    assert any(line.startswith("error: ") for line in lines) == (printed.code == 2), printed
    for line in lines:
        assert line.startswith(("error: ", "warning: ", "  ")), printed
        assert len(line) < LONGEST_MESSAGE and line.isprintable() and line.removeprefix("error: ").strip(), printed
    assert "Traceback" not in printed.err and "must" not in printed.out, printed
    return printed


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------------------------------------------
# Values

ODD = [  # controls, ends of lines, a BOM, right to left, combining, outside of the BMP, digits of other scripts
    *("\0", "\x1b[2J", "\x7f", "\x85", "\u2028", "\r", "\n", "\t", "\ufeff", "\u202e", "\u05d0\u05d1", "e\u0301\u0323"),
    *("\U0001f600", "\ufffe", "\ud800", "²", "١", "１２", "\xa0", "ﬁ", "▁", "\u200b"),
    *(
        "{}",
        "[/x]",
        "$(x)",
        "%s",
        "{0}",
        "../..",
        "/",
        "~",
        "~nosuchuser",
        "'",
        '"',
        "\\",
        "<script>",
        "&amp;",
        "=",
        "#",
    ),
]
WORDS = st.one_of(
    st.sampled_from(ODD),
    st.text(max_size=8),
    st.lists(st.sampled_from([*ODD, "a", "B", "1", " ", ".", "-"]), max_size=6).map("".join),
    st.sampled_from(["a" * 300, "1" * 400, "9" * 5000, "é" * 200]),
)
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**63, 10**18, 10**400, 1e-300, 1e300, float("nan"), float("inf"), 0.5, 1 / 3, -0.0]),
    st.floats(allow_subnormal=False),  # which the processor of a training does not represent
)
SPELLED = ["1e-05", "None", "null", "True", "false", "1/2", "1/0", "0/1", "-1", "1_0", "0x10", "1e400", "auto", "base"]
SCALARS = st.one_of(NUMBERS, WORDS, st.none(), st.booleans(), st.dates(), st.sampled_from(SPELLED))
LISTS = st.lists(SCALARS, max_size=3)
VALUES = st.one_of(SCALARS, LISTS, st.dictionaries(WORDS, SCALARS | LISTS, max_size=3))
KEY_NAMES = st.one_of(
    st.sampled_from([*KEYS, "model", "optim", "seed", "scale", "variant"]),
    st.builds(lambda key, odd: key + odd, st.sampled_from([*KEYS]), WORDS),
    WORDS,
)
RIGHT = {"model.h": 4, "model.N": "12", "model.p_drop": "0.0", "optim.warmup": 100, "optim.eps_ls": 0, "decode.beam": 2}
RIGHT |= {"decode.alpha": "1e-05", "trainer.val_every": 7, "optim.duration": "1/2", "data.train_pairs": None}
PAIRS = st.sampled_from([*RIGHT.items()]) | st.tuples(KEY_NAMES, SCALARS)  # half of them are right
SETTINGS = PAIRS.map(lambda pair: f"{pair[0]}={pair[1]}")
