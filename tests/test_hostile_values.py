"""Values that nobody means: each is refused with one short message, before anything starts."""

import errno
import os
import subprocess
import sys
import time
from functools import partial

import pytest
from helpers import ROOT

from transformer_pl import report, sweep, train, translate
from transformer_pl.config import KEYS, Config
from transformer_pl.experiments.sweep_file import MOST_TRIALS, read_sweep
from transformer_pl.experiments.trial_config import trial_config
from transformer_pl.levels import parse_scalar
from transformer_pl.runtime.errors import SHOWN, InputError, shown
from transformer_pl.runtime.yaml_file import read_yaml

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
    return trial_config(train.read_argv(list(words))[1])


@pytest.fixture
def file(tmp_path):
    """Write a sweep file, or what is none."""

    def write(text: str):
        path = tmp_path / "file.yaml"
        path.write_text(text)
        return path

    return write


# ---------------------------------------------------------------------------------------------------------------------
# Messages


def test_a_long_value_is_shown_by_its_ends():
    assert shown("model.h") == "model.h" and shown(4) == "4" and shown({"value": 4}) == "{'value': 4}"
    text = shown("a" * 5000 + "z")
    assert len(text) < SHOWN and text.startswith("aaa") and text.endswith("z (5,001 characters)")


def test_aliases_of_yaml_that_multiply_are_not_written_out(file):
    """Ten lists of ten aliases are ten billion values in a few hundred bytes."""
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 11))]
    text = "\n".join([*lines, "method: grid\nparameters: {model.h: {values: [*a10, *a10]}, seed: *a10, data: *a10}"])
    for extra in ("", "name: *a10\nproject: *a10\n", "scale: *a10\n"):
        began = time.process_time()
        with pytest.raises(InputError) as caught:
            read_sweep(file(f"{text}\n{extra}"))
        assert time.process_time() - began < 5 and all(len(one) < 2 * LONG for one in caught.value.messages)
    search = f"{text}\nmetric: {{name: *a10}}\nearly_terminate: *a10\nrun_cap: *a10\n".replace("grid", "random")
    with pytest.raises(InputError) as caught:
        sweep.main([str(file(search)), "--plan"])
    assert all(len(one) < 2 * LONG for one in caught.value.messages)


@pytest.mark.parametrize("length", [300, 5000])
def test_long_names_are_refused_in_a_short_message(file, tmp_path, length):
    name, runs = "n" * length, f"--runs={tmp_path}"
    assert "must be a plain name" in message(
        read_sweep, file(f"name: {name}\nmethod: grid\nparameters: {{seed: {{value: 1}}}}")
    )
    for run in (
        lambda: sweep.main([TABLE3, "--plan", f"--runs={name}"]),
        lambda: report.main([TABLE3, f"--runs={name}"]),
        lambda: trial(f"--runs={name}"),
        lambda: sweep.main([f"{name}.yaml", "--plan", runs]),
        lambda: sweep.main([TABLE3, "--plan", runs, f"--scale={name}.yaml"]),
        lambda: sweep.main([TABLE3, "--plan", runs, f"--set=data.path=/{name}"]),
    ):
        assert "File name too long" in (said := message(run)) and len(said) < LONG, said
    assert "must name one finished trial" in (said := message(translate.main, [name, runs])) and len(said) < LONG
    assert len(message(partial(trial, f"--model.{name}=1"))) < LONG + 100 + len(str(list(KEYS)))


def test_the_names_of_a_trials_files_must_fit_below_the_runs_folder(tmp_path):
    deep = "/".join([str(tmp_path), *["n" * 100] * 37])  # itself within the 4,096 bytes of a path
    assert not os.path.exists(deep)
    assert "File name too long" in message(trial, f"--runs={deep}")


def test_a_home_that_is_not_there():
    assert "there is no such user" in message(trial, "--runs=~nosuchuser/x")
    assert str(train.read_argv(["--runs=~/x"])[0].runs) == os.path.expanduser("~/x")


@pytest.mark.parametrize(
    "key", [key for key, value in KEYS.items() if isinstance(value, str | None) and key.startswith("data.")]
)
def test_no_text_has_control_characters(key):
    if key != "data.vocab_size":
        for text in ("a\0b", "a\x1b[2Jb", "a\nb", "a\ud800b"):
            assert f"{key} = a" in message(trial, f"--{key}={text}")


def test_a_name_of_a_terminals_commands_is_escaped(tmp_path):
    assert "t\\x1b[2J" in message(translate.main, ["t\x1b[2J", "--runs", str(tmp_path)])


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_of_many_digits_are_refused(file, key):
    for digits in (30, 400, 5000):
        number = "9" * digits
        if digits > 30 or not isinstance(KEYS[key], float):
            assert f"{key} = 999" in (said := message(trial, f"--{key}={number}")) and len(said) < LONG
            with pytest.raises(InputError) as caught:
                read_sweep(file(f"method: grid\nparameters: {{{key}: {{value: {number}}}}}"))
            assert all(len(one) < LONG + 100 for one in caught.value.messages)
    for number in ("-1", "nan", "inf", "-inf", "²", "１２", "٣"):
        assert f"{key} = " in message(trial, f"--{key}={number}")


def test_products_that_overflow_are_refused():
    for word in ("--model.width=1e300", "--optim.duration=1e300", "--model.depth=1e300"):
        assert "must be less than or equal to" in message(trial, word)
    said = message(trial, "--optim.max_steps=1000000000", "--optim.duration=1e9", "--data.batch_tokens=1000000000")
    assert said.endswith("their product must be at most 1,000,000,000, but is 1e+18")
    assert trial("--optim.max_steps=1000000000").steps == 10**9


def test_decoding_that_would_not_end_or_overflows_is_refused():
    for word in (f"--decode.extra={10**30}", "--decode.alpha=1e300", f"--decode.beam={10**6}"):
        assert "must be less than or equal to" in message(trial, word)
    assert trial("--decode.extra=10000", "--decode.alpha=10", "--decode.beam=1000").decode.extra == 10_000
    assert ((5 + 10_000 + 256) / 6) ** 10 < 3e38, "the greatest length penalty is a number of float32"
    assert Config().decode.alpha == 0.6


def test_numbers_of_the_command_line_that_are_too_long(tmp_path):
    for words in (
        ["--seeds", "9" * 400],
        ["--seeds", "9" * 5000],
        ["--parallel", "9" * 5000],
        ["--budget", "9" * 5000],
    ):
        said = message(sweep.main, [TABLE3, "--plan", f"--runs={tmp_path}", *words])
        assert "must be" in said and "whole number" in said and len(said) < LONG
    for text in ("²", "１２", "٣", "1_0"):
        assert "whole number" in message(sweep.main, [TABLE3, f"--seeds={text}"])
    assert parse_scalar("٣") == "٣" and parse_scalar("3") == 3


def test_a_number_in_yaml_that_is_too_long_is_named_with_its_line(file):
    for number in ("9" * 5000, f"0x{'f' * 5000}", f"0b{'1' * 5000}"):
        said = message(read_yaml, file(f"name: a\nrun_cap: {number}\n"))
        assert "file.yaml line 2: a number must have at most 400 digits" in said and len(said) < LONG


def test_a_grid_that_would_never_end_is_refused_at_once(file, tmp_path):
    rows = "".join(
        f"  {key}: {{values: [{', '.join(map(str, range(1, 401)))}]}}\n" for key in ("model.N", "model.h", "model.d_ff")
    )
    said = message(read_sweep, file(f"method: grid\nparameters:\n{rows}"))
    assert "a grid must have at most 10,000 trials, but its parameters make 64,000,000 rows with 1 seeds each" in said
    seeds = ",".join(map(str, range(MOST_TRIALS)))
    assert "5 rows with 10,000 seeds each" in message(
        sweep.main, [TABLE3, "--plan", f"--runs={tmp_path}", f"--seeds={seeds}"]
    )


# ---------------------------------------------------------------------------------------------------------------------
# Options, YAML, output


@pytest.mark.parametrize("option", ["--scale", "--storage", "--compare", "--retune", "--runs", "--seeds"])
def test_an_empty_option_is_not_ignored(tmp_path, option):
    file = SEARCH if option == "--storage" else TABLE3
    runs = [] if option == "--runs" else [f"--runs={tmp_path}"]
    for words in ([option, ""], [f"{option}="]):
        assert f"argument {option}: " in message(sweep.main, [file, "--plan", *runs, *words])


def test_yaml_merges_mappings(file):
    text = (
        "method: grid\nparameters:\n  model.h: &one {value: 4}\n  model.N: {<<: *one}\n  seed: {<<: [*one], value: 7}\n"
    )
    config = read_sweep(file(text)).base
    assert (config.model.h, config.model.N) == (4, 4) and read_sweep(file(text)).configs[0].seed == 7
    assert "key 'value' is set twice" in message(read_yaml, file("a: &a {x: 1}\nb: {<<: *a, value: 1, value: 2}"))


def test_merges_that_multiply_are_refused(file):
    lines = [f"a0: &a0 {{{', '.join(f'k{i}: 1' for i in range(10))}}}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 11)]
    assert "a mapping must have at most 10,000 keys" in message(read_yaml, file("\n".join(lines)))


@pytest.mark.parametrize("kind", ["pipe", "zero", "large"])
def test_what_is_no_file_is_not_read_for_ever(tmp_path, kind):
    path = tmp_path / "file.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"# " * (1 << 20))
    words = "it has more than 1,048,576 bytes" if kind == "large" else "it is a pipe or a device, not a file"
    assert words in message(read_yaml, path)


def test_a_full_device_is_an_error_and_no_traceback():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "transformer_pl.sweep", "--schema", "scale"]
        printed = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    reason = os.strerror(errno.ENOSPC)
    assert printed.stderr == f"error: {reason}: the output cannot be written; make room\n" and printed.returncode == 1
