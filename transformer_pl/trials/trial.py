"""A trial: one training of a config with one seed. Its result is the file `result.json`, which is written last."""

import json
import os
import re
import shutil
import textwrap
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from transformer_pl.config import KEYS, Config, effective_sizes, is_known_key
from transformer_pl.config.levels import Level, resolve
from transformer_pl.config.types import as_word
from transformer_pl.data.prepare import prepared_dataset, prepared_in
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.environment import SWEEP
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import read_json, reading, unfinished, write_atomically, write_json
from transformer_pl.task import Corpus
from transformer_pl.trials import records
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.lock import TrialLock
from transformer_pl.trials.metrics import read_metrics
from transformer_pl.trials.result import Result, read_result, write_result

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from transformer_pl.task import Measure

WEIGHTS, METRICS = "weights.safetensors", "metrics.jsonl"
TRIAL_FOLDER = re.compile(r".*-(?P<id>[0-9a-f]{12})")  # a user may change what stands before the id

# What training and evaluation write, beside logs and folders
WRITTEN = (
    "config.yaml",
    "env.json",
    "identity.json",
    "status.json",
    "result.json",
    METRICS,
    WEIGHTS,
    "hyp.*.txt",
    "scores.*.jsonl",
)


class Trial:
    """A trial, and its folder `runs/trials/<row>-s<seed>-<id>`, which need not exist yet.

    `trial_of` makes the trial of a config. Of a trial that is found in a runs folder, config and identity are read from
    there when they are asked for.

    folder: where it lies.
    config: what is trained.
    identity: what its result depends on.
    corpus: its text.
    row: what differs from base, or `base`.
    scale: the name of the scale.
    keys: the arguments of `train`, beside the scale and the seed.
    place: the index of its row in the sweep; of a search: the trial's number.
    found: the result with which it was found in a runs folder. Its config stays that of this result, also where another
        command removes the result, to train the trial again.
    """

    rerun = False  # whether it is trained again if it has ended
    # What the checks before its training have found
    exempt: Mapping[str, dict[str, str]] = MappingProxyType({})  # by a component's path: what it breaks, and why
    passes = 1.0  # calls of the model for each part of a batch: an optimizer may need two for a step

    def __init__(
        self,
        folder: Path,
        config: Config | None = None,
        identity: Identity | None = None,
        corpus: Corpus | None = None,
        row: str = "base",
        scale: str = "",
        keys: Mapping[str, Any] = MappingProxyType({}),
        place: int = 0,
        found: Result | None = None,
    ):
        self.folder, self.corpus, self.row, self.scale, self.keys, self.place = folder, corpus, row, scale, keys, place
        self.found = found
        if config:
            self.config = config
        if identity:
            self.identity = identity

    @classmethod
    def at(cls, runs: Path, name: str, **known: Any) -> "Trial":
        """The trial whose folder has this name, whatever a user has made of what stands before the id."""
        renamed = sorted((runs / "trials").glob(f"*-{trial_id(name)}"))
        return cls(renamed[0] if renamed else runs / "trials" / name, **known)

    # What it is

    @cached_property
    def config(self) -> Config:
        """What is trained; of a finished trial that was found in a runs folder, what its result says of it."""
        return self.config_with({})

    def config_with(self, changes: Mapping[str, Any]) -> Config:
        """The config in its result, with changes from the command line.

        Raises an InputError for invalid ones, and where it has no result.
        """
        result = self.found or self.result()
        if not result:
            raise InputError(f"{self.folder}: must be a finished trial, but has no result; train it")
        known = {key: value for key, value in result.config.items() if is_known_key(key)}
        set_keys = {key: value for key, value in known.items() if value is not None or key not in KEYS}
        return resolve([Level(str(self.folder), set_keys), Level("command line", changes)])

    @cached_property
    def identity(self) -> Identity:
        """What its result depends on; of a trial that was found in a runs folder, the content of identity.json."""
        return Identity(read_json(self.folder / "identity.json", records.IdentityInputs))

    @property
    def id(self) -> str:
        """The hash of its identity."""
        return trial_id(self.folder.name)

    @cached_property
    def name(self) -> str:
        """What plans, tables and W&B call it: its row and seed, such as `h=4 s1`; of a search what was drawn."""
        return f"{self.row} s{self.config.seed}"

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return self.folder.parents[1]

    @cached_property
    def prepared(self) -> Prepared:
        """Its dataset, which need not be prepared yet; of a trial that was found in a runs folder, the one it names.

        Raises an InputError where it names none.
        """
        if self.corpus:
            return prepared_dataset(self.config.data, self.runs, self.corpus)
        if name := self.data():
            return prepared_in(self.runs / "data" / name, self.config.data)
        raise InputError(f"{self.folder / 'env.json'}: must name the dataset as data; train the trial again")

    @property
    def argv(self) -> list[str]:
        """The arguments of `python -m transformer_pl.train`, which alone decide its config."""
        options = [f"--{key}={as_word(value)}" for key, value in self.keys.items()]
        rerun = ["--rerun"] if self.rerun else []
        return [f"--scale={self.scale}", *options, f"--seed={self.config.seed}", f"--runs={self.runs}", *rerun]

    @property
    def settings(self) -> dict[str, Any]:
        """The config by dotted keys, with the sizes that its multipliers give."""
        return self.config.flat() | effective_sizes(self.config)

    @property
    def tags(self) -> list[str]:
        return [self.scale, self.row]

    def labels(self) -> dict[str, Any]:
        """The folder of the W&B run, and what it shows from its start."""
        config = self.settings | {"sweep": os.environ.get(SWEEP, "none"), "row": self.row}
        return {"folder": str(self.folder), "name": self.name, "tags": self.tags, "config": config}

    @property
    def log(self) -> Path:
        """The file that holds what the trial has printed, attempt after attempt."""
        return self.folder / "log.txt"

    @property
    def sources(self) -> Path:
        """The folder that holds the sources of the trial's components as they were trained."""
        return self.folder / "sources"

    # State

    def result(self) -> Result | None:
        """What the trial has resulted in; None where it is not finished, or where result.json cannot be read."""
        return read_result(self.folder)

    def diverged_at(self) -> int | None:
        """The step at which the training diverged; None where it did not."""
        status = self.status()
        return status.get("step") if status["state"] == "diverged" else None

    def needs_training(self) -> bool:
        """Whether the trial has neither finished nor diverged."""
        return self.result() is None and self.diverged_at() is None

    def status(self) -> dict[str, Any]:
        """A mapping with `state`: `new`, `running`, `stopped`, `failed`, `diverged` (with its `step`), `done`, or
        `pruned` by a search.

        Other keys are for people. A trial that no process trains is done if and only if it has a result.
        """
        status = {"state": "new"} | read_json(self.folder / "status.json", records.Status)
        if status["state"] == "running" and self.lock.is_held():
            return status
        if self.result():
            status["state"] = "done"
        elif status["state"] in ("running", "done"):
            status["state"] = "stopped"  # its process was killed, or its result was removed
        return status

    def state(self) -> str:
        """The state in `status`."""
        return self.status()["state"]

    def set_status(self, state: str, **details: Any) -> None:
        """Write status.json."""
        self.lock.check()
        write_json(self.folder / "status.json", {"state": state, "time": time.time(), "pid": os.getpid()} | details)

    # Where and on what it ran

    def environment(self) -> dict[str, Any]:
        """The content of env.json; empty where the trial never ran."""
        return read_json(self.folder / "env.json", records.Environment)

    def machine(self) -> dict[str, Any]:
        """What the rounding of the result depends on, apart from the identity; None for what is not known.

        On a GPU the threads do not matter.
        """
        written, result = self.environment(), self.result()
        config = result.config if result else {}
        gpus = " and ".join(sorted(set(written.get("gpus", ()))))
        return {
            "torch": written.get("packages", {}).get("torch"),
            "processor": gpus or written.get("cpu"),
            "threads": None if gpus else written.get("threads"),
            "processes": config.get("trainer.devices", 1) * config.get("trainer.num_nodes", 1),
        }

    def data(self) -> str | None:
        """The name of the folder of its dataset under runs/data; None where the trial never ran."""
        return self.environment().get("data")

    def threads(self, share: int) -> int:
        """The number of threads for each process of the trial. Its results depend on it in their last bits.

        It is trainer.threads, or the number an unfinished trial began with, or `share`, a process's share of the
        machine.
        """
        begun = None if self.result() else self.environment().get("threads")
        return self.config.trainer.threads or begun or share

    # The folder, and who writes to it

    def make(self) -> None:
        """Make the folder of the trial."""
        self.folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def lock(self) -> TrialLock:
        """The lock that a process holds while it trains the trial."""
        return TrialLock(self.folder)

    # Files that the result is made from

    def save_weights(self, state: "Mapping[str, Tensor]") -> None:
        """Write a state dict to WEIGHTS, atomically and by the umask. Tensors that share memory become separate."""
        self.lock.check()
        with unfinished(self.folder / WEIGHTS) as part:
            part.write_bytes(as_safetensors(state))

    def weights(self) -> "dict[str, Tensor]":
        """The state dict that `save_weights` has written. Raises an InputError that names the file."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / WEIGHTS
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: cannot be read: {error}; train the trial again") from None

    def is_whole(self) -> bool:
        """Whether its weights and metrics are there for another trial; where they cannot be read, with a warning."""
        try:
            return bool(self.weights()) and (self.folder / METRICS).exists()
        except InputError as error:
            warn(f"{self.folder}: has the same weights, but {error}")
            return False

    def link(self, other: Path, *names: str) -> None:
        """Hard-link files of another trial's folder, or copy them from another disk. Nothing may write to them."""
        for name in names:
            path = self.folder / name
            path.unlink(missing_ok=True)
            try:
                os.link(other / name, path)
            except OSError:  # on another disk, or on a file system without links
                shutil.copyfile(other / name, path)

    def save_sentences(self, split: str, hypotheses: list[str], measure: "Measure", sentences: "np.ndarray") -> None:
        """Write two files of a split, with one line per sentence: the outputs, and the numbers of each sentence.

        sentences (n, k + 2): the k numbers of the measure, the nats of the reference, and its tokens.
        """
        self.lock.check()
        _write_lines(self.folder / f"hyp.{split}.txt", hypotheses)
        lines = (
            json.dumps({measure.name: list(map(int, numbers)), "nll": float(nll), "pieces": int(tokens)})
            for *numbers, nll, tokens in sentences
        )
        _write_lines(self.folder / f"scores.{split}.jsonl", lines)

    def hypotheses(self, split: str) -> list[str]:
        """The translations of a split. Raises an InputError that names the file where it cannot be read."""
        with self._reading(f"hyp.{split}.txt") as path:
            return path.read_bytes().decode().split("\n")[:-1]  # splitlines would split at a \r too

    def sentences(self, split: str, measure: "Measure") -> "np.ndarray":
        """(sentences, k + 2): the numbers in SCORE_COLUMNS and in LOSS_COLUMNS. Raises as `hypotheses` does."""
        import numpy as np

        with self._reading(f"scores.{split}.jsonl") as path:
            lines = json.loads(f"[{','.join(path.read_text(encoding='utf-8').splitlines())}]")
            numbers = np.array([[*line[measure.name], line["nll"], line["pieces"]] for line in lines], float)
            if numbers.shape[1:] != (measure.numbers + 2,):
                raise ValueError(f"it does not hold the {measure.numbers + 2} numbers of each sentence")
        return numbers

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.folder / METRICS)

    def _reading(self, name: str) -> AbstractContextManager[Path]:
        return reading(self.folder / name, f"to have it again, remove {self.folder} and train the trial again")

    # The end of a trial

    def finish(self, result: Result) -> None:
        """Write result.json, which makes the trial a finished one, and remove its checkpoints."""
        self.lock.check()
        write_result(result, self.folder)
        self.drop_checkpoints()

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints."""
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)

    def clear(self) -> None:
        """Remove what training and evaluation have written, to train the trial again. Its logs and other files stay."""
        for pattern in WRITTEN:
            for path in self.folder.glob(pattern):
                path.unlink()
        shutil.rmtree(self.folder / "wandb", ignore_errors=True)
        self.drop_checkpoints()

    def log_end(self, lines: int = 12) -> list[str]:
        """The last lines of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return text.splitlines()[-lines:]


def trial_id(folder: str) -> str:
    """The id of a trial whose folder has this name, whatever a user has made of what stands before it."""
    return folder.rpartition("-")[2]


def trial_folder(row: str, seed: int, id_: str) -> str:
    """The name of a trial's folder, such as `N=2-h=4-s1-0123456789ab`: the first words of its row, its seed, its id.

    row: what differs from the base of its sweep, or `base`.
    """
    words = textwrap.shorten(row, 50, placeholder="", break_long_words=False, break_on_hyphens=False).split()
    return "-".join([*(re.sub(r"[^A-Za-z0-9.=_+]+", "_", word) for word in words), f"s{seed}", id_])


def as_safetensors(state: "Mapping[str, Tensor]") -> bytes:
    """A state dict as a file of safetensors."""
    from safetensors.torch import save  # imports torch

    return save({name: value.cpu().contiguous().clone() for name, value in state.items()})


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))
