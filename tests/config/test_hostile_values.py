"""Values that nobody means: each is refused with one short message, before anything starts."""

import pytest
from helpers import ROOT

from transformer_pl.config import KEYS
from transformer_pl.runtime.errors import SHOWN, InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train import __main__ as train
from transformer_pl.trials.trial_config import trial_config

TABLE3 = str(ROOT / "sweeps" / "table3_A.yaml")
SEARCH = str(ROOT / "sweeps" / "search_size.yaml")
LONG = 3 * SHOWN  # characters of a message that shows one long value
NUMBERS = [key for key, value in KEYS.items() if isinstance(value, int | float)] + ["model.d_k", "trainer.threads"]


def message(run, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        run(*arguments)
    (one,) = caught.value.messages
    assert one.isprintable(), "it must not move a terminal's cursor"
    return one


def trial(*words):
    return trial_config(train.read_argv(list(words)).levels())


# ---------------------------------------------------------------------------------------------------------------------
# Messages


@pytest.mark.parametrize(
    "key", [key for key, value in KEYS.items() if isinstance(value, str | None) and key.startswith("data.")]
)
def test_no_text_has_control_characters(key):
    if key != "data.vocab_size":
        for text in ("a\0b", "a\x1b[2Jb", "a\nb", "a\ud800b"):
            assert f"{key} = a" in message(trial, f"--{key}={text}")


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_of_many_digits_are_refused(key):
    for digits in (30, 400):
        if digits > 30 or not isinstance(KEYS[key], float):
            assert f"{key} = 999" in (said := message(trial, f"--{key}={'9' * digits}")) and len(said) < LONG
    for number in ("-1", "nan", "inf", "-inf", "²", "１２", "٣"):
        assert f"{key} = " in message(trial, f"--{key}={number}")


def test_products_that_overflow_are_refused():
    for word in ("--model.width=1e300", "--optim.duration=1e300", "--model.depth=1e300"):
        assert word[2:].partition("=")[0] in message(trial, word)
    said = message(trial, "--optim.max_steps=1000000000", "--optim.duration=1e9", "--data.batch_tokens=1000000000")
    assert "optim.max_steps = 1000000000" in said
    assert trial("--optim.max_steps=1000000000").steps == 10**9


# ---------------------------------------------------------------------------------------------------------------------
# Options, YAML


@pytest.mark.parametrize("option", ["--scale", "--storage", "--retune", "--seeds"])
def test_an_empty_option_is_not_ignored(tmp_path, option):
    file = SEARCH if option == "--storage" else TABLE3
    for words in ([option, ""], [f"{option}="]):
        assert option.strip("-") in message(sweep.main, [file, "--plan", f"--runs={tmp_path}", *words])
