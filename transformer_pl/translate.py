"""Translate with a trained trial:  python -m transformer_pl.translate TRIAL [FILE] [--beam 4] [--n-best 3]

TRIAL is a trial's folder, its id, or a part of its name that no other trial has. Sentences come from a file, a pipe or
the keyboard, one per line; each output line is the translation of an input line.
"""

import io
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_pl.command_line import CommandParser, folder_name, run_command, whole_number
from transformer_pl.components import described
from transformer_pl.config import Config
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.errors import InputError, message_of
from transformer_pl.runtime.files import check_regular
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import DEFAULT_RUNS, find, trained_config
from transformer_pl.trials.schemas import main_score
from transformer_pl.trials.trial import Trial

CHUNK = 500  # sentences that are read and translated together, unless they are typed

EXAMPLES = """\
examples:
  python -m transformer_pl.sweep --list                                    which trials there are
  python -m transformer_pl.translate demo-base-s1 sentences.txt --beam 4   every line of a file
  python -m transformer_pl.translate demo-base-s1                          lines as you type them
"""


def main(argv: list[str]) -> int:
    parser = CommandParser(
        prog="python -m transformer_pl.translate",
        usage="%(prog)s TRIAL [FILE] [options]",
        description="Translate lines with a trained trial. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    parser.add_argument("trial", metavar="TRIAL", help="a trial's folder, its id, or a part of its name")
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
    group.add_argument(
        "--runs", type=folder_name, default=DEFAULT_RUNS, metavar="DIR", help="the folder of all results (%(default)s)"
    )
    options = parser.parse_args(argv)
    result = find(options.runs, options.trial)
    decoding = {"decode.beam": options.beam, "decode.alpha": options.alpha}
    config = trained_config(result, {key: value for key, value in decoding.items() if value is not None})
    if options.n_best > config.decode.beam:
        raise InputError(
            f"--n-best {options.n_best}: must be at most decode.beam, {config.decode.beam}; raise --beam too"
        )
    lines = _lines(options.file)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale: a translation may hold any character
    folder: Path = result["folder"]
    trial = Trial(folder)
    trial.intact("weights.pt")  # before its text is asked for: an archive of results has neither
    if (data_id := trial.data()) is None:
        raise InputError(f"{folder / 'env.json'}: must name the trial's text, but does not; train the trial again")
    prepared = Prepared(folder.parents[1] / "data" / data_id)
    task = task_of(config.data)
    score, title, sides = main_score(result)[1], task.measure.title, task.sides(config.data)
    print(
        f"{folder.name}: {sides[0]} to {sides[1]}, trained for {result['steps']:,} steps on "
        f"{prepared.meta['corpus']}; {score:.1f} {title} on its validation set",
        file=sys.stderr,
    )
    number = 0
    try:
        with translator(config, prepared, trial, max(1, options.n_best)) as translate:
            for sentences in lines:
                for outputs in translate(sentences):
                    number += 1
                    for text, log_score in outputs if options.n_best else outputs[:1]:
                        print(f"{number}\t{log_score:.4f}\t{text}" if options.n_best else text, flush=True)
    except (RuntimeError, FloatingPointError) as error:
        remedy = "; try a smaller --beam" if "out of memory" in message_of(error) else ""
        raise InputError(f"{folder}: cannot be translated with: {described(error)}{remedy}") from None
    return 0


@contextmanager
def translator(
    config: Config, prepared: Prepared, trial: Trial, n_best: int
) -> Iterator[Callable[[list[str]], list[list[tuple[str, float]]]]]:
    """A function that maps sentences to the texts and scores of their `n_best` translations, best first.

    The weights of the trial are intact.
    """
    from transformer_pl.evaluation.beam_search import Hypothesis
    from transformer_pl.evaluation.evaluate import trained_model, translate

    tokenizer = prepared.tokenizer

    def translate_all(sentences: list[str]) -> list[list[tuple[str, float]]]:
        not_blank = [sentence for sentence in sentences if sentence.strip()]
        source = tokenizer.encode(not_blank)
        outputs = iter(translate(model, source, config.decode, config.trainer.eval_tokens, n_best))
        return [_texts(next(outputs)) if sentence.strip() else [("", 0.0)] for sentence in sentences]

    def _texts(best: list[Hypothesis]) -> list[tuple[str, float]]:
        return list(zip(tokenizer.decode([h.tokens for h in best]), [h.score for h in best], strict=True))

    with trained_model(config, prepared, trial) as model:
        yield translate_all


def _lines(file: Path | None) -> Iterator[list[str]]:
    """The sentences in chunks; typed ones one at a time."""
    if file:
        try:
            check_regular(file)
            text = file.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"FILE {file}: must be UTF-8 text that can be read, but: {reason}; fix it") from None
        lines: Iterator[str] = iter(text.split("\n")[: None if text[-1:] not in ("", "\n") else -1])
    else:
        if not isinstance(sys.stdin, io.TextIOWrapper):
            raise InputError("standard input: must be open, as no FILE is given, but is closed; give a FILE")
        sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
        lines = (
            (line if number else line.removeprefix("\ufeff")).removesuffix("\n")  # a pipe may begin with a mark, too
            for number, line in enumerate(sys.stdin)
        )
    source = (line.removesuffix("\r") for line in lines)
    typed = not file and sys.stdin.isatty()
    if typed:
        print("type a sentence, end with Ctrl-D", file=sys.stderr)

    def chunks() -> Iterator[list[str]]:
        while chunk := list(itertools.islice(source, 1 if typed else CHUNK)):
            yield chunk

    return chunks()


if __name__ == "__main__":
    run_command(main)
