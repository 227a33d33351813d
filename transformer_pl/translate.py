"""Translate with a trained trial:  python -m transformer_pl.translate TRIAL [FILE] [--beam 4] [--n-best 3]

TRIAL is a trial's folder, its id, or a part of its name that no other trial has. Sentences come from a file, a pipe or
the keyboard, one per line; each output line is the translation of an input line.
"""

import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from transformer_pl.config.components import described
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.command_line import CommandParser, add_runs_option, run_command, whole_number
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import find, trained_config
from transformer_pl.trials.trial import Trial

CHUNK = 500  # sentences that are read and translated together, unless they are typed

EXAMPLES = """\
examples:
  python -m transformer_pl.sweep --list                                       which trials there are
  python -m transformer_pl.translate table3-A/h=4/s1 sentences.txt --beam 4   every line of a file
  python -m transformer_pl.translate table3-A/base/s1                         lines as you type them
"""


def main(argv: list[str]) -> int:
    parser = CommandParser(
        prog="python -m transformer_pl.translate",
        usage="%(prog)s TRIAL [FILE] [options]",
        description="Translate lines with a trained trial. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    parser.add_argument("trial", metavar="TRIAL", help="SWEEP/ROW/sSEED as a table names it, or a folder, or an id")
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="one sentence per line (standard input)")
    group = parser.add_argument_group("how")
    group.add_argument("--beam", metavar="K", help="hypotheses per sentence in the beam search (the trial's)")
    group.add_argument("--alpha", metavar="A", help="length penalty, Section 6.1 (the trial's)")
    group.add_argument(
        "--n-best",
        type=whole_number(),
        default=0,
        metavar="N",
        help="print N outputs per line: line number, score, text (the best one's text alone)",
    )
    add_runs_option(group)
    options = parser.parse_args(argv)
    result = find(options.runs, options.trial)
    decoding = {"decode.beam": options.beam, "decode.alpha": options.alpha}
    config = trained_config(result, {key: value for key, value in decoding.items() if value is not None})
    if options.n_best > config.decode.beam:
        raise InputError(
            f"--n-best {options.n_best}: must be at most decode.beam, {config.decode.beam}; raise --beam too"
        )
    lines = _lines(options.file)
    trial = Trial(result["folder"])
    prepared = Prepared(trial.folder.parents[1] / "data" / str(trial.data()))
    sides = " to ".join(task_of(config.data).sides(config.data))
    print(f"{trial.folder.name}: {sides}, trained for {result['steps']:,} steps", file=sys.stderr)
    from transformer_pl.train.evaluate import trained_model, translate

    tokenizer, number = prepared.tokenizer, 0
    try:
        model = trained_model(config, prepared, trial)
        for sentences in lines:
            source = tokenizer.encode([sentence for sentence in sentences if sentence.strip()], "source")
            n_best = max(1, options.n_best)
            translations = iter(translate(model, source, config.decode, config.trainer.eval_tokens, n_best))
            for sentence in sentences:
                number += 1
                best = next(translations) if sentence.strip() else []
                texts = tokenizer.decode([hypothesis.tokens for hypothesis in best])
                if not options.n_best:
                    print(texts[0] if texts else "", flush=True)
                    continue
                for hypothesis, text in zip(best, texts, strict=True):
                    print(f"{number}\t{hypothesis.score:.4f}\t{text}", flush=True)
    except (RuntimeError, FloatingPointError) as error:
        remedy = "; try a smaller --beam" if "out of memory" in str(error) else ""
        raise InputError(f"{trial.folder}: cannot be translated with: {described(error)}{remedy}") from None
    return 0


def _lines(file: Path | None) -> Iterator[list[str]]:
    """The sentences in chunks; typed ones one at a time."""
    if file:
        try:
            text: TextIO = io.StringIO(file.read_bytes().decode("utf-8-sig"), newline="\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"FILE {file}: must be UTF-8 text that can be read, but: {error}; fix it") from None
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace", newline="\n")
        text = sys.stdin
    else:
        raise InputError("standard input: must be open, as no FILE is given, but is closed; give a FILE")
    typed = text.isatty()
    if typed:
        print("type a sentence, end with Ctrl-D", file=sys.stderr)
    lines = (line.removesuffix("\n").removesuffix("\r") for line in text)
    return iter(lambda: list(itertools.islice(lines, 1 if typed else CHUNK)), [])


if __name__ == "__main__":
    run_command(main)
