"""Random and hostile input: it works, or is refused with short messages and starts nothing."""

import pytest
import yaml
from helpers import SEARCHES, SHIPPED, little_text, write_sweep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_trials import ended

from transformer_pl import translate
from transformer_pl.config import KEYS
from transformer_pl.plan.sweep_file import TOP_LEVEL
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import SHOWN, InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train import __main__ as train
from transformer_pl.trials.trial_config import trial_config

EXAMPLES = settings(
    max_examples=6, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
LONGEST_MESSAGE = 2000  # characters

ODD = [  # controls, ends of lines, right to left, combining, outside of the BMP, digits of other scripts, markup
    *("\0", "\x1b[2J", "\x85", "\u2028", "\n", "\ufeff", "\u202e", "e\u0301", "\U0001f600", "\ud800", "²", "１２"),
    *("[/x]", "$(x)", "%s", "{0}", "../..", "~", "~nosuchuser", "'", '"', "\\", "<script>", "=", "#"),
]
WORDS = st.one_of(st.sampled_from(ODD), st.text(max_size=8), st.sampled_from(["a" * 300, "1" * 400, "é" * 200]))
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**63, 10**18, 10**300, 1e-300, 1e300, float("nan"), float("inf"), 0.5, -0.0]),
)
SPELLED = ["1e-05", "None", "null", "True", "false", "1/2", "1/0", "-1", "1_0", "0x10", "1e400", "auto", "base"]
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
ENTRIES = st.one_of(
    st.builds(lambda value: {"value": value}, VALUES),
    st.builds(lambda values: {"values": values}, LISTS),
    st.builds(lambda low, high: {"min": low, "max": high, "distribution": "uniform"}, SCALARS, SCALARS),
    VALUES,
)
CONTENTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["grid", "random", "bayes", "custom"]) | VALUES,
        "parameters": st.dictionaries(KEY_NAMES, ENTRIES, max_size=4) | VALUES,
    },
    optional={key: VALUES for key in TOP_LEVEL if key not in ("method", "parameters")},
)
PAPERS = [path for path in SHIPPED if "ablations." not in path.read_text()]  # planned without torch
SLICES = st.tuples(st.integers(0, 5000), st.integers(0, 30), st.sampled_from([*ODD, *SPELLED, "&a", "*a", "- ", "{"]))
OPTIONS = ["--scale", "--seeds", "--set", "--parallel", "--rerun", "--no-paper", "--sampler", "--storage", "--retune"]
OPTIONS += ["--help", "--version", "--format", "--beam", "--alpha", "--devices", "--", "-", "--nosuch", "-x"]
ARGUMENTS = st.one_of(
    st.sampled_from(["--seeds=1,2", "--set=model.h=4", "--no-paper", "--parallel=2", *OPTIONS]),
    st.builds(lambda option, value: f"{option}={value}", st.sampled_from(OPTIONS), SCALARS),
    st.sampled_from(["right.yaml", "text", "table3_A", "1,2", "model.h=4", "md", "tpe"]),
    SETTINGS.map("--set={}".format),
    (st.lists(SETTINGS, max_size=3).map(" ".join) | WORDS).map("--set=variant={}".format),
)


def written(text):
    """As bytes, halves of characters among them."""
    return text.encode("utf-8", "surrogatepass")


def dumped(content):
    return written(yaml.safe_dump(content, allow_unicode=True, sort_keys=False))


def changed(path, changes):
    """A file with some slices of it replaced."""
    text = path.read_text()
    for at, length, piece in changes:
        at %= len(text) + 1
        text = text[:at] + piece + text[at + length :]
    return written(text)


def told_or_done(here, main, *words):
    """A command works, or it ends with exit code 2 and says why, each mistake in one short line. It leaves nothing."""
    before = set(here.rglob("*"))
    code, _, printed = ended(main, *words, "--runs=runs")
    lines = printed.split("\n")[:-1]
    assert code in (0, 2) and any(line.startswith("error: ") for line in lines) == (code == 2), printed
    for line in lines:
        assert line.startswith(("error: ", "warning: ", "  ")), printed
        assert len(line) < LONGEST_MESSAGE and line.isprintable() and line.removeprefix("error: ").strip(), printed
    assert set(here.rglob("*")) == before


def a_sweep_file(content, here):
    (here / "any.yaml").write_bytes(content)
    told_or_done(here, sweep.main, "any.yaml", "--plan")


def a_command_line(line, here):
    main, words = line
    told_or_done(here, main, *(["right.yaml", "--plan"] if main is sweep.main else []), *words)


PROPERTIES = {
    a_sweep_file: st.one_of(
        (CONTENTS | VALUES).map(dumped),
        st.builds(changed, st.sampled_from(PAPERS), st.lists(SLICES, min_size=1, max_size=4)),
        st.binary(max_size=60),
    ),
    a_command_line: st.tuples(
        st.sampled_from([sweep.main, report.main, translate.main]), st.lists(ARGUMENTS, max_size=5)
    ),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder: a small text, and a sweep file that is right."""
    monkeypatch.chdir(tmp_path)
    little_text(tmp_path / "text")
    keys = {"model.width": "1/32", "model.depth": "1/3", "data.vocab_size": 300, "optim.max_steps": 4}
    write_sweep(tmp_path / "right.yaml", keys | {"data.path": "text", "variant": ["base", "model.h=4"]})
    (tmp_path / "any.yaml").touch()
    return tmp_path


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_input_works_or_is_refused(holds, here):
    @settings(EXAMPLES)
    @given(PROPERTIES[holds])
    def test(example):
        holds(example, here)

    test()


def test_right_input_works(here):
    """Else the properties above say nothing."""
    for words in (["right.yaml"], [SEARCHES[0]], ["right.yaml", "--set", "model.N=12"]):
        code, _, errors = ended(sweep.main, *words, "--plan", "--runs=runs")
        assert (code, errors) == (0, "")


# ---------------------------------------------------------------------------------------------------------------------
# Values that nobody means: each is one short message

LONG = 3 * SHOWN  # characters of a message that shows one long value
NUMBERS = [key for key, value in KEYS.items() if isinstance(value, int | float)] + ["model.d_k", "trainer.threads"]


def message(run, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        run(*arguments)
    (text,) = caught.value.messages
    assert text.isprintable(), "it must not move a terminal's cursor"
    return text


def trial(*words):
    return trial_config(train.read_argv(list(words)).levels())


def test_no_text_has_control_characters():
    texts = [key for key, value in KEYS.items() if isinstance(value, str | None) and key.startswith("data.")]
    for key in {*texts} - {"data.vocab_size"}:
        for text in ("a\0b", "a\x1b[2Jb", "a\nb", "a\ud800b"):
            assert f"{key} = a" in message(trial, f"--{key}={text}")


def test_numbers_of_many_digits_are_refused():
    for key in NUMBERS:
        for digits in (30, 400):
            if digits > 30 or not isinstance(KEYS[key], float):
                refusal = message(trial, f"--{key}={'9' * digits}")
                assert f"{key} = 999" in refusal and len(refusal) < LONG
        for number in ("-1", "nan", "inf", "-inf", "²", "１２", "٣"):
            assert f"{key} = " in message(trial, f"--{key}={number}")


def test_products_that_overflow_are_refused():
    for word in ("--model.width=1e300", "--optim.duration=1e300", "--model.depth=1e300"):
        assert word[2:].partition("=")[0] in message(trial, word)
    said = message(trial, "--optim.max_steps=1000000000", "--optim.duration=1e9", "--data.batch_tokens=1000000000")
    assert "optim.max_steps = 1000000000" in said
    assert trial("--optim.max_steps=1000000000").steps == 10**9


@pytest.mark.parametrize("option", ["--scale", "--storage", "--retune", "--seeds"])
def test_an_empty_option_is_not_ignored(tmp_path, option):
    file = "search_size" if option == "--storage" else "table3_A"
    for words in ([option, ""], [f"{option}="]):
        assert option.strip("-") in message(sweep.main, [file, "--plan", f"--runs={tmp_path}", *words])
