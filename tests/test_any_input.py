"""Random sweep files, scales and command lines: each works, or is refused with one message and starts nothing."""

import re

import pytest
import yaml
from any_input import (
    KEY_NAMES,
    ODD,
    PAIRS,
    SCALARS,
    SETTINGS,
    SPELLED,
    VALUES,
    WORDS,
    each_property,
    ended,
    examples,
    files_below,
    told_or_done,
    try_examples,
)
from helpers import SEARCHES, SHIPPED, little_text
from hypothesis import strategies as st

from transformer_pl import report, sweep, train, translate
from transformer_pl.experiments.sweep_file import TOP_LEVEL

SMALL = {"model.width": "1/32", "model.depth": "1/3", "data.vocab_size": 300, "optim.max_steps": 4}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The working folder: a small text, and a sweep file that is right."""
    here = tmp_path_factory.mktemp("here")
    (here / "text").mkdir()
    little_text(here / "text", 60, 8, 6)
    keys = {key: {"value": value} for key, value in (SMALL | {"data.path": "text"}).items()}
    content = {"program": "p.py", "method": "grid", "parameters": keys | {"variant": {"values": ["base", "model.h=4"]}}}
    (here / "right.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return here


def writable(text):
    """As bytes, halves of characters among them."""
    return text.encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------------------------------------------------------
# Files

ENTRIES = st.one_of(
    st.builds(lambda value: {"value": value}, VALUES),
    st.builds(lambda values: {"values": values}, st.lists(SCALARS, max_size=3)),
    st.builds(lambda one, two: {"min": one, "max": two, "distribution": "uniform"}, SCALARS, SCALARS),
    st.builds(
        lambda kind, one, two: {"distribution": kind, "min": one, "max": two, "mu": one, "sigma": two, "q": two},
        st.sampled_from(["log_uniform_values", "int_uniform", "normal", "q_normal", "constant", "beta"]) | WORDS,
        SCALARS,
        SCALARS,
    ),
    VALUES,
)
METHODS = st.sampled_from(["grid", "random", "bayes", "custom"])
CONTENTS = st.fixed_dictionaries(
    {"method": METHODS | VALUES, "parameters": st.dictionaries(KEY_NAMES, ENTRIES, max_size=4) | VALUES},
    optional={key: VALUES for key in TOP_LEVEL if key not in ("method", "parameters")}
    | {"run_cap": SCALARS, "metric": st.fixed_dictionaries({"name": st.just("val/ppl"), "goal": SCALARS}) | VALUES},
)
PIECES = st.sampled_from(
    [*ODD, *SPELLED, "&a", "*a", "<<: *a", "!!python/name:os.system", "? ", "- ", ": ", "\n", "[", "{"]
)
SLICES = st.tuples(st.integers(0, 5000), st.integers(0, 30), PIECES)


def changed(path, changes):
    """The text of a file with some slices of it replaced."""
    text = path.read_text()
    for at, length, piece in changes:
        at %= len(text) + 1
        text = text[:at] + piece + text[at + length :]
    return writable(text)


PAPERS = [path for path in SHIPPED if "ablations." not in path.read_text()]  # planned without torch
CHANGED_FILES = st.builds(changed, st.sampled_from(PAPERS), st.lists(SLICES, min_size=1, max_size=4))


def dumped(content):
    return writable(yaml.safe_dump(content, allow_unicode=True, sort_keys=False))


@examples(st.one_of(CONTENTS.map(dumped), CHANGED_FILES, st.binary(max_size=60), VALUES.map(dumped)))
def a_sweep_file(content, here):
    (here / "any.yaml").write_bytes(content)
    told_or_done(sweep.main, "any.yaml", "--plan", "--runs=runs")
    assert not files_below(here / "runs")


@examples(
    st.one_of(st.lists(PAIRS, max_size=3).map(dict), st.dictionaries(KEY_NAMES, VALUES, max_size=3), VALUES).map(dumped)
)
def a_scale(content, here):
    (here / "scale.yaml").write_bytes(content)
    told_or_done(sweep.main, "right.yaml", "--plan", "--runs=runs", "--scale=scale.yaml")
    assert not files_below(here / "runs")


# ---------------------------------------------------------------------------------------------------------------------
# Command lines


@examples(st.lists(SETTINGS, min_size=1, max_size=3))
def settings_over_a_sweep(pairs, here):
    told_or_done(sweep.main, "right.yaml", "--plan", "--runs=runs", "--set", *pairs)
    assert not files_below(here / "runs")


@examples(st.one_of(st.lists(SETTINGS, max_size=3).map(" ".join), WORDS))
def a_variant(text, here):
    keys = {"data.path": {"value": "text"}, "data.vocab_size": {"value": 300}, "variant": {"values": ["base", text]}}
    (here / "variant.yaml").write_bytes(dumped({"method": "grid", "parameters": keys}))
    told_or_done(sweep.main, "variant.yaml", "--plan", "--runs=runs")
    assert not files_below(here / "runs")


OPTIONS = [
    *("--plan", "--scale", "--seeds", "--set", "--runs", "--parallel", "--rerun", "--beside", "--compare", "--sampler"),
    *(
        "--pruner",
        "--storage",
        "--list",
        "--clean",
        "--schema",
        "--retune",
        "--budget",
        "--launcher",
        "--slurm",
        "--help",
    ),
    *(
        "--trusted-only",
        "--version",
        "-V",
        "--format",
        "--test",
        "--beam",
        "--alpha",
        "--n-best",
    ),
    *("--devices", "--variant", "--from", "--", "-", "--nosuch", "-x"),
]
ARGUMENTS = st.lists(
    st.one_of(
        st.sampled_from(["--seeds=1,2", "--set=model.h=4", "--beside=none", "--compare=flops", "--parallel=auto"]),
        st.sampled_from(OPTIONS),
        st.builds(lambda option, value: f"{option}={value}", st.sampled_from(OPTIONS), SCALARS),
        st.sampled_from(
            ["right.yaml", "text", "any.yaml", "table3_A", "1,2", "model.h=4", "md", "json", "tpe", *SPELLED]
        ),
        WORDS,
        SETTINGS,
    ),
    max_size=5,
)


def as_argument(word):
    """As the system passes it: bytes without a NUL; what is no UTF-8 becomes halves of characters."""
    return word.replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


@examples(st.tuples(st.sampled_from([sweep, report, translate]), ARGUMENTS))
def a_command_line(line, here):
    command, words = line
    words = [as_argument(word) for word in words if not word.startswith("--runs=")]
    before = files_below(here)
    told_or_done(command.main, *(["right.yaml", "--plan"] if command is sweep else []), *words, "--runs=runs")
    assert files_below(here) == before


@examples(st.tuples(st.lists(SETTINGS, max_size=3), st.lists(st.tuples(st.sampled_from(OPTIONS), WORDS), max_size=1)))
def a_trials_command_line(line, here):
    keys, options = line
    words = [f"--{key}" for key in keys] + [f"{option}={value}" for option, value in options]
    words = [as_argument(word) for word in words if not re.match("--(runs|rerun)", word)]
    own = {key: value for key, value in (SMALL | {"data.path": "text"}).items() if f"--{key}=" not in " ".join(words)}
    began = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "train", lambda run, rerun: began.append(run) or 0)
        printed = told_or_done(train.main, *words, *(f"--{key}={value}" for key, value in own.items()), "--runs=runs")
    assert (printed.code == 0) == bool(began) or "usage" in printed.out or printed.out.startswith("transformer")
    assert not files_below(here / "runs") - {here / "runs" / "lock"}


@each_property(a_sweep_file, a_scale, settings_over_a_sweep, a_variant, a_command_line, a_trials_command_line)
def test_input_works_or_is_refused(holds, count, here, monkeypatch):
    monkeypatch.chdir(here)
    try_examples(holds, count, here=here)


def test_right_input_works(here, monkeypatch):
    """Else the properties above say nothing."""
    monkeypatch.chdir(here)
    for words in (["right.yaml"], [SEARCHES[0]], ["right.yaml", "--set", "model.N=12"]):
        printed = ended(sweep.main, *words, "--plan", "--runs=runs")
        assert printed.code == 0 and not printed.err
