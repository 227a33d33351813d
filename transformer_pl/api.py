"""The commands as functions (see API.md):  from transformer_pl.api import load_trial, results, train, sweep"""

import math
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from transformer_pl.config import BOS, EOS, Component, Config, Sizes, custom_components_by_key, sizes
from transformer_pl.config.component_sources import forget_edited
from transformer_pl.config.levels import DEFAULT_SCALE
from transformer_pl.config.types import as_word
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.plan.shared_options import TableOptions, sweep_file
from transformer_pl.report.__main__ import read_records
from transformer_pl.runtime.calls import call_in_new_interpreter
from transformer_pl.runtime.command_line import DEFAULT_RUNS
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.sweep.__main__ import run_sweep
from transformer_pl.sweep.sweep_options import SweepOptions
from transformer_pl.task import Task, task_of
from transformer_pl.train import command
from transformer_pl.train.__main__ import check
from transformer_pl.trials.result import Result
from transformer_pl.trials.runs_folder import find, trained_config
from transformer_pl.trials.trial_folder import TrialFolder
from transformer_pl.trials.trial_of import check_code

if TYPE_CHECKING:
    from torch import Tensor

    from transformer_pl.model import Transformer
    from transformer_pl.train.evaluate import SetScores

Options = TypeVar("Options", bound=TableOptions)


class TrainedTrial:
    """A finished trial. What needs torch is loaded when it is first asked for."""

    def __init__(self, files: TrialFolder, result: Result):
        self._files, self.folder, self.result = files, files.path, result

    def __repr__(self) -> str:
        return f"TrainedTrial({str(self.folder)!r})"

    @cached_property
    def config(self) -> Config:
        """The config that it was trained with."""
        return trained_config(self._files, self.result)

    @cached_property
    def task(self) -> Task:
        """The task that it was trained for. Raises an InputError where its code has changed since."""
        self._use_its_code()
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

        self._use_its_code()
        return trained_model(self.config, self._prepared, self._files).eval()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: one for each logged step, each validation and the final evaluation."""
        return self._files.metrics()

    def decoding(self, beam: object = None, alpha: object = None) -> Config:
        """The trial's config, with another beam or length penalty if given. Raises an InputError for invalid ones."""
        changes = {"decode.beam": beam, "decode.alpha": alpha}
        given = {key: value for key, value in changes.items() if value is not None}
        return trained_config(self._files, self.result, given)

    def translate(
        self,
        sentences: str | Iterable[str],
        beam: int | None = None,
        alpha: float | None = None,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> str | list[str]:
        """Translate sentences, or a single one. A blank sentence has an empty translation.

        A language model returns each text with its continuation, of at most `decode.extra` tokens.

        beam, alpha: of the beam search for a translation; None: those of the trial.
        temperature: of a language model's random draws; None or 0: it adds the most probable tokens.
        seed: of these draws; None: 0.
        """
        from transformer_pl.train.evaluate import best_translations, continuations

        if isinstance(sentences, str):
            return self.translate([sentences], beam, alpha, temperature, seed)[0]
        sentences = list(sentences)
        kind, unused = "translation", {"temperature": temperature, "seed": seed}
        if not self.task.has_source:
            kind, unused = "language model", {"beam": beam, "alpha": alpha}
        if wrong := [f"{name} = {value}" for name, value in unused.items() if value is not None]:
            raise InputError(f"{', '.join(wrong)}: is not used by a {kind}; leave it out")
        config = self.decoding(beam, alpha)
        if not self.task.has_source:
            if temperature is not None and not 0 <= temperature < math.inf:
                raise InputError(f"temperature = {temperature}: must be a number from 0")
            most = config.decode.extra
            return continuations(self.model, self.tokenizer, sentences, most, temperature or 0.0, seed or 0)
        source = self.tokenizer.encode([sentence for sentence in sentences if sentence.strip()], "source")
        tokens = config.trainer.eval_tokens
        found = iter(best_translations(self.model, source, self.tokenizer, config.decode, tokens))
        return [next(found) if sentence.strip() else "" for sentence in sentences]

    def score(self, split: str = "val", beam: int | None = None, alpha: float | None = None) -> "SetScores":
        """The scores of `model`, as it is now, on a set by its name, such as `test`, with the numbers of each sentence.

        beam, alpha: of the beam search; None: those of the trial.
        """
        from transformer_pl.train.evaluate import score_set

        if split not in (sets := self.config.data.evaluated):
            raise InputError(f"split = {split}: must be one of {', '.join(sets)}")
        if type(self.task) is not type(task_of(self.config.data)):  # of another trial, which was loaded since
            raise InputError(f"data.task = {self.config.data.task}: its code has changed; load the trial again")
        return score_set(self.model, self.decoding(beam, alpha), self._prepared, split)

    def attention(self, source: str, target: str) -> "dict[str, Tensor]":
        """The attention weights of a sentence and its translation by site, each (layers, heads, queries, keys).

        The queries and keys of `encoder` are the tokens of the source and EOS; those of `decoder` are BOS and the
        tokens of the target; `cross` has the decoder's queries and the source's keys. `tokens` names them. A site
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
        self._use_its_code()  # before an import: a stranger's result may name any task
        return self._files.prepared(self.config.data)

    def _use_its_code(self) -> None:
        """Let edited classes be imported anew. Raises an InputError unless their code is that of the trial."""
        check_code(self.config, self._files)
        forget_edited([*custom_components_by_key(self.config).values(), Component(path=self.config.data.task)])
        task_of.cache_clear()


def load_trial(name: str | Path, runs: str | Path = DEFAULT_RUNS) -> TrainedTrial:
    """The finished trial that `name` identifies: `table3-A/h=4/s1`, a folder or a part of its name, or an id.

    Raises an InputError unless there is exactly one.
    """
    return TrainedTrial(*find(Path(runs).expanduser(), str(name)))


def results(file: str | Path, **options: Any) -> list[dict[str, Any]]:
    """A record of each trial of a sweep file, for pandas.DataFrame, as `transformer_pl.report --trials` makes it.

    options: those of this command, such as runs, scale, seeds and set; see `sweep`.
    """
    return call_in_new_interpreter(read_records, _sweep_file(file), _options(TableOptions, options))


def train(
    keys: Config | Mapping[str, Any] | None = None, scale: str = DEFAULT_SCALE, runs: str | Path = DEFAULT_RUNS
) -> TrainedTrial:
    """Train a trial as `python -m transformer_pl.train` does, unless it has finished, and load it.

    keys: values that win over the scale's, such as {"model.h": 4, "seed": 2} or {"variant": "model.h=4"}; or a whole
    config of that scale.

    Raises an InputError for wrong input, and a RuntimeError where the training fails or diverges.
    """
    values = keys.flat() if isinstance(keys, Config) else dict(keys or {})
    words, variant, folder = _words(values), values.get("variant"), Path(runs).expanduser()
    words.pop("variant", None)
    options = command.TrainOptions(scale=scale, keys=words, variant=variant, runs=folder)
    code, trial = call_in_new_interpreter(_train, options)
    if code:
        raise RuntimeError(f"the training has ended with exit code {code}; its last lines say why")
    return load_trial(trial, folder)


def sweep(file: str | Path, **options: Any) -> list[dict[str, Any]]:
    """Run a sweep file as `python -m transformer_pl.sweep` does, and return its `results`; plan=True only plans it.

    options: those of this command, with `_` for `-`, such as seeds=[1, 2], set={"model.h": 4}, plan=True. Raises an
    InputError for wrong input. `state` says which trials failed or diverged.
    """
    return call_in_new_interpreter(_sweep, _options(SweepOptions, {"file": _sweep_file(file)} | options))


def _train(options: command.TrainOptions) -> tuple[int, str]:
    """Train a trial. Returns the exit code and the trial's id."""
    exit_code, trial = command.train(options, check)
    return exit_code, trial.id


def _sweep(options: SweepOptions) -> list[dict[str, Any]]:
    """Run a sweep file, and return its results."""
    run_sweep(options)
    return read_records(options.file, options, options.plan)


def _sweep_file(file: str | Path) -> Path:
    """A sweep file, or one that ships."""
    try:
        return sweep_file(str(file))
    except ArgumentTypeError as error:
        raise InputError(f"file: {error}") from None


def _words(values: Mapping[str, Any]) -> dict[str, str]:
    """Values of keys, as a command line has them."""
    return {key: as_word(value) for key, value in values.items()}


def _options(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """The options of a command from values of Python. Raises an InputError."""
    known = {option.name for option in fields(kind)}
    if unknown := given.keys() - known:
        raise InputError(*(f"--{name}: no such option{suggestion(name, known)}" for name in sorted(unknown)))
    for stated in fields(kind):
        choices = stated.metadata.get("choices")
        if choices and given.get(stated.name, stated.default) not in choices:
            listed = ", ".join(map(str, choices))
            raise InputError(f"--{stated.name} = {shown(given[stated.name])}: must be one of {listed}; choose one")
    values = dict(given) | {"set": _words(given.get("set") or {})}
    if "runs" in given:
        values["runs"] = Path(given["runs"]).expanduser()
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise InputError(*map(_message, error.errors())) from None


def _message(mistake: Any) -> str:
    """What is wrong with an option, or with options that belong together."""
    place, value = mistake["loc"], shown(mistake["input"])
    return f"--{place[0]} = {value}: {mistake['msg']}" if place else str(mistake["ctx"]["error"])
