"""The commands as functions (see API.md):  from transformer_pl.api import load_trial, results, train, sweep"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_pl.config import BOS, EOS, Config, Sizes, sizes
from transformer_pl.config.levels import DEFAULT_SCALE
from transformer_pl.config.types import as_word
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.report import __main__ as report_command
from transformer_pl.runtime.command_line import DEFAULT_RUNS
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep_command
from transformer_pl.task import Task, open_corpus, task_of
from transformer_pl.train import __main__ as train_command
from transformer_pl.trials.runs_folder import FinishedTrial, find
from transformer_pl.trials.trial_config import trial_config
from transformer_pl.trials.trial_run import check_code, identify

if TYPE_CHECKING:
    from torch import Tensor

    from transformer_pl.model import Transformer


class TrainedTrial:
    """A finished trial. What needs torch is loaded when it is first asked for."""

    def __init__(self, finished: FinishedTrial):
        self._finished = finished
        self._trial, self.result = finished
        self.folder = self._trial.folder

    def __repr__(self) -> str:
        return f"TrainedTrial({str(self.folder)!r})"

    @cached_property
    def config(self) -> Config:
        """The config that it was trained with."""
        return self._finished.config()

    @cached_property
    def task(self) -> Task:
        """The task that it was trained for. Raises an InputError where its code has changed since."""
        check_code(self.config, self._trial)
        return task_of(self.config.data)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._prepared.tokenizer

    @property
    def sizes(self) -> Sizes:
        """The effective sizes of the model."""
        return sizes(self.config.model, len(self.tokenizer))

    @cached_property
    def model(self) -> "Transformer":
        """The model with the final weights, in evaluation mode, on a GPU if there is one.

        Raises an InputError where the code of its components has changed since.
        """
        from transformer_pl.train.evaluate import trained_model

        return trained_model(self.config, self._prepared, self._trial).eval()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: one for each logged step, each validation and the final evaluation."""
        return self._trial.metrics()

    def decoding(self, beam: object = None, alpha: object = None) -> Config:
        """Its config, with another beam or length penalty where one is given. Raises an InputError for wrong ones."""
        changes = {"decode.beam": beam, "decode.alpha": alpha}
        return self._finished.config({key: value for key, value in changes.items() if value is not None})

    def translate(
        self, sentences: str | Sequence[str], beam: int | None = None, alpha: float | None = None
    ) -> str | list[str]:
        """The translation of each sentence, or of a single one; empty for a blank one.

        beam, alpha: the trial's where they are None.
        """
        from transformer_pl.train.evaluate import best_translations

        if isinstance(sentences, str):
            return self.translate([sentences], beam, alpha)[0]
        config = self.decoding(beam, alpha)
        source = self.tokenizer.encode([sentence for sentence in sentences if sentence.strip()], "source")
        tokens = config.trainer.eval_tokens
        found = iter(best_translations(self.model, source, self.tokenizer, config.decode, tokens))
        return [next(found) if sentence.strip() else "" for sentence in sentences]

    def attention(self, source: str, target: str) -> "dict[str, Tensor]":
        """The attention weights of a sentence and its translation by site, each (layers, heads, queries, keys).

        The queries and keys of `encoder` are the tokens of the source and EOS; those of `decoder` are BOS and the
        tokens of the target; `cross` has the decoder's queries and the encoder's keys. `tokens` names them. A site
        whose attention has no weights is left out.
        """
        import torch

        from transformer_pl.train.evaluate import attention_maps

        ids = (torch.tensor([self._ids(source, "source")[1:]]), torch.tensor([self._ids(target, "target")[:-1]]))
        return {site: torch.cat(layers).cpu() for site, layers in attention_maps(self.model, *ids).items()}

    def tokens(self, sentence: str, side: str = "source") -> list[str]:
        """The tokens of a sentence of the `source` or the `target`, between BOS and EOS."""
        vocabulary = self.tokenizer.vocabulary()
        return [vocabulary[token] for token in self._ids(sentence, side)]

    def _ids(self, sentence: str, side: str) -> list[int]:
        return [BOS, *map(int, self.tokenizer.encode([sentence], side)[0]), EOS]

    @cached_property
    def _prepared(self) -> Prepared:
        if name := self._trial.data():
            return Prepared(self.folder.parents[1] / "data" / name)
        raise InputError(f"{self.folder / 'env.json'}: must name the dataset as data; train the trial again")


def load_trial(name: str | Path, runs: str | Path = DEFAULT_RUNS) -> TrainedTrial:
    """The finished trial that `name` identifies: `table3-A/h=4/s1`, a folder or a part of its name, or an id.

    Raises an InputError unless there is exactly one.
    """
    return TrainedTrial(find(Path(runs).expanduser(), str(name)))


def results(file: str | Path, **options: Any) -> list[dict[str, Any]]:
    """A record of each trial of a sweep file, for pandas.DataFrame: `python -m transformer_pl.report --trials`.

    options: of that command, such as runs, scale, seeds and set; see `sweep`.
    """
    read = report_command.read_options([str(file), *_words(options)])
    return report_command.trial_records(read.files[0], read)


def train(
    keys: Config | Mapping[str, Any] | None = None, scale: str = DEFAULT_SCALE, runs: str | Path = DEFAULT_RUNS
) -> TrainedTrial:
    """Train a trial by `python -m transformer_pl.train`, unless it has finished, and load it.

    keys: such as {"model.h": 4, "seed": 2} over the scale, {"variant": "model.h=4"}, or a whole config of that scale.
    Raises an InputError for wrong input, and a RuntimeError where the training fails or diverges.
    """
    values = keys.flat() if isinstance(keys, Config) else dict(keys or {})
    words = [f"--scale={scale}", f"--runs={runs}", *(f"--{key}={as_word(value)}" for key, value in values.items())]
    config = trial_config(train_command.read_argv(words)[1])
    if code := _run("transformer_pl.train", words):
        raise RuntimeError(f"the training has ended with exit code {code}; its last lines say why")
    return load_trial(identify(config, open_corpus(config.data), Path(runs).expanduser(), "")[0].trial, runs)


def sweep(file: str | Path, **options: Any) -> list[dict[str, Any]]:
    """Run a sweep file by `python -m transformer_pl.sweep`, and return its `results`; with plan=True, those to come.

    options: of that command, with `_` for `-`: a list has commas between its values, a mapping is KEY=VALUE ..., True
    is an option without a value. Raises an InputError for wrong input. `state` says which trials failed or diverged.
    """
    words = [str(file), *_words(options)]
    read = sweep_command.read_options(words)
    _run("transformer_pl.sweep", words)
    return report_command.trial_records(read.file, read)


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as a command line has them."""
    for name, value in options.items():
        if value is None or value is False:
            continue
        yield f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            yield from (f"{key}={one}" for key, one in value.items())
        elif value is not True:
            yield ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _run(module: str, words: Sequence[str]) -> int:
    """Run a command in a process of its own, print what it prints, and return its exit code: 0 or 1.

    Raises an InputError with the command's messages, and a RuntimeError where a signal stopped it. An interruption here
    stops it.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    messages = []
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C comes to this process alone, and reaches the command once
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.startswith("error: "):
                    messages.append(line.removeprefix("error: ").rstrip("\n"))
        except BaseException:
            process.terminate()  # it saves and ends
            raise
    if process.returncode == 2 and messages:
        raise InputError(*messages)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{module} was stopped with exit code {process.returncode}; call it again to continue")
    return process.returncode
