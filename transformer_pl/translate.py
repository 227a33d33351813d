"""Translate with a trained trial:  python -m transformer_pl.translate TRIAL [FILE] [--beam 4]

Sentences come from a file, a pipe or the keyboard, one per line; each output line is the translation of an input line.
A language model continues each line.
"""

import io
import itertools
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from transformer_pl.api import load_trial
from transformer_pl.runtime.command_line import CommandParser, add_options, option, options_of, run_command, runs_option
from transformer_pl.runtime.errors import InputError, described
from transformer_pl.runtime.files import read_text
from transformer_pl.runtime.terminal import announce, for_output, nothing_printed, plain

CHUNK = 500  # sentences that are read and translated together, unless they are typed

EXAMPLES = """\
examples:
  python -m transformer_pl.sweep --list                                       which trials there are
  python -m transformer_pl.translate table3-A/h=4/s1 sentences.txt --beam 4   every line of a file
  python -m transformer_pl.translate table3-A/base/s1                         lines as you type them
  python -m transformer_pl.translate language-model/base/s1 --temperature 0.8 what a language model adds to them
"""


how = partial(option, group="how")


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """What is translated, by which trial, and how."""

    trial: str = option(
        "SWEEP/ROW/sSEED (table3-A/h=4/s1), or a folder, or an id", default=MISSING, metavar="TRIAL", positional=True
    )
    file: Path | None = option(
        "one sentence per line (standard input)", metavar="FILE", positional=True, nargs="?", type=Path
    )
    beam: str | None = how("hypotheses per sentence in the beam search (the trial's)", metavar="K")
    alpha: str | None = how("length penalty, Section 6.1 (the trial's)", metavar="A")
    temperature: float | None = how("of a language model's draws (0: no draws)", metavar="T")
    seed: int | None = how("seed of these draws (0)", metavar="S", type=int)
    runs: Path = runs_option("how")


def main(argv: list[str]) -> int:
    parser = CommandParser(
        prog="python -m transformer_pl.translate",
        usage="%(prog)s TRIAL [FILE] [options]",
        description="Translate lines, or let a language model continue them. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    add_options(parser, TranslateOptions)
    options = options_of(TranslateOptions, vars(parser.parse_args(argv)))
    trial = load_trial(options.trial, options.runs)
    announce(f"loading {trial.folder.name}")
    chunks = _chunks(options.file)
    data = trial.decoding(options.beam, options.alpha).data
    try:
        with nothing_printed():
            sides = " to ".join(trial.task.sides(data))
            device = next(trial.model.parameters()).device
        text = f"{data.short_name}, scale {trial.result.scale}"
        trained = f"{trial.folder.name}: {sides}, trained for {trial.result.steps:,} steps on {text}; runs on {device}"
        print(plain(trained), file=sys.stderr)
        for sentences in chunks:
            with nothing_printed():
                given = options.beam, options.alpha, options.temperature, options.seed
                translations = trial.translate(sentences, *given)  # type: ignore[arg-type]  # read as values of keys
            for text in translations:
                print(for_output(text), flush=True)
    except (RuntimeError, FloatingPointError) as error:
        remedy = "; try a smaller --beam" if "out of memory" in str(error) else ""
        raise InputError(f"{trial.folder}: cannot be translated with: {described(error)}{remedy}") from None
    return 0


def _chunks(file: Path | None) -> Iterator[list[str]]:
    """The sentences of a file or of standard input, in chunks; typed sentences come one at a time."""
    if file:
        try:
            text: TextIO = io.StringIO(read_text(file), newline="\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"FILE {file}: must be UTF-8 text that can be read, but: {error}; fix it") from None
    else:
        assert isinstance(sys.stdin, io.TextIOWrapper)
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace", newline="\n")
        text = sys.stdin
    typed = text.isatty()
    if typed:
        print("type a sentence, end with Ctrl-D", file=sys.stderr)
    lines = (line.removesuffix("\n").removesuffix("\r") for line in text)
    return iter(lambda: list(itertools.islice(lines, 1 if typed else CHUNK)), [])


if __name__ == "__main__":
    run_command(main)
