"""What lies on disk of a trial: its folder, with its lock, its status, its result and its files."""

import json
import os
import re
import shutil
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from transformer_pl.config import Data
from transformer_pl.data.prepare import prepared_in
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import (
    check_regular,
    link,
    read_bytes,
    read_json,
    reading,
    unfinished,
    write_atomically,
    write_json,
)
from transformer_pl.task import Measure
from transformer_pl.trials import records
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.lock import TrialLock
from transformer_pl.trials.metrics import read_metrics
from transformer_pl.trials.result import FILE as RESULT
from transformer_pl.trials.result import Result

WEIGHTS, METRICS = "weights.safetensors", "metrics.jsonl"
LAST = "last.ckpt"  # in the folder of the checkpoints
STATE = "state.ckpt"  # the last state of a training, where it is kept
DOCUMENT = "document"  # the key of a line of scores that says of which document its sentence is
TRIAL_FOLDER = re.compile(r".*-(?P<id>[0-9a-f]{12})")  # a user may change what stands before the id

# What training and evaluation write, beside logs and folders
JSON = ("env.json", "identity.json", "status.json", RESULT)
WRITTEN = (*JSON, "config.yaml", METRICS, WEIGHTS, STATE, "hyp.*.txt", "scores.*.jsonl")


class TrialFolder:
    """The folder `runs/trials/<row>-s<seed>-<id>` of a trial, which need not exist yet.

    Its result is the file `result.json`, which is written last. A JSON file is read again only if it has changed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._read: dict[str, tuple[Any, Any]] = {}  # by name, what told the file from earlier ones, and its content

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.name

    @property
    def id(self) -> str:
        """The hash of the trial's identity."""
        return trial_id(self.name)

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return self.path.parents[1]

    @property
    def log(self) -> Path:
        """The file that holds what the trial has printed, attempt after attempt."""
        return self.path / "log.txt"

    @property
    def sources(self) -> Path:
        """The folder that holds the sources of the trial's components as they were trained."""
        return self.path / "sources"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, which a finished trial has no longer."""
        return self.path / "checkpoints"

    def identity(self) -> Mapping[str, Any]:
        """What the identity is a hash of, by identity.json; empty where the trial never ran."""
        return self._json("identity.json", records.IdentityInputs)

    @property
    def weights_id(self) -> str:
        """The id of its weights, which result.json may have from before; its own where identity.json is not there."""
        inputs = self.identity()
        return Identity(inputs).weights if inputs else self.id

    def _json(self, name: str, form: Any) -> Any:
        """What `read_json` reads."""
        path = self.path / name
        try:
            known = path.stat()
            signature = known.st_ino, known.st_mtime_ns, known.st_size
        except OSError:
            signature = None
        if name not in self._read or self._read[name][0] != signature:
            self._read[name] = signature, read_json(path, form)
        return self._read[name][1]

    # State

    def result(self) -> Result | None:
        """What the trial has resulted in; None where it is not finished, or where result.json cannot be read."""
        return self._json(RESULT, Result) or None

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
        status = {"state": "new"} | self._json("status.json", records.Status)
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
        write_json(self.path / "status.json", {"state": state, "time": time.time(), "pid": os.getpid()} | details)

    # Where and on what it ran

    def environment(self) -> dict[str, Any]:
        """The content of env.json; empty where the trial never ran."""
        return self._json("env.json", records.Environment)

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

    def prepared(self, data: Data) -> Prepared:
        """The dataset that it was trained on. Raises an InputError where env.json names none."""
        if name := self.data():
            return prepared_in(self.runs / "data" / name, data)
        raise InputError(f"{self.path / 'env.json'}: must name the dataset as data; train the trial again")

    # The folder, and who writes to it

    def make(self) -> None:
        """Make the folder of the trial."""
        self.path.mkdir(parents=True, exist_ok=True)

    @cached_property
    def lock(self) -> TrialLock:
        """The lock that a process holds while it trains the trial."""
        return TrialLock(self.path)

    # Files that the result is made from

    def save_weights(self, state: Mapping[str, Any]) -> None:
        """Write a state dict to WEIGHTS, atomically and by the umask. Tensors that share memory become separate."""
        self.lock.check()
        with unfinished(self.path / WEIGHTS) as part:
            part.write_bytes(as_safetensors(state))

    def weights(self) -> dict[str, Any]:
        """The state dict that `save_weights` has written. Raises an InputError that names the file."""
        from safetensors.torch import load_file  # imports torch

        path = self.path / WEIGHTS
        try:
            check_regular(path)
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: cannot be read: {error}; train the trial again") from None

    def has_weights(self) -> bool:
        """Whether the files lie there that another trial with the same weights takes from it."""
        return (self.path / WEIGHTS).exists() and (self.path / METRICS).exists()

    def is_whole(self) -> bool:
        """Whether its weights and metrics are there for another trial; where they cannot be read, with a warning."""
        try:
            return bool(self.weights()) and self.has_weights()
        except InputError as error:
            warn(f"{self.path}: has the same weights, but {error}")
            return False

    def link(self, other: "TrialFolder", *names: str) -> None:
        """Hard-link files of another trial's folder, or copy them from another disk. Nothing may write to them."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
            link(other.path / name, self.path / name)

    def save_sentences(
        self,
        split: str,
        hypotheses: list[str],
        measure: Measure,
        sentences: np.ndarray,
        documents: Sequence[int] | None = None,
    ) -> None:
        """Write two files of a split, with one line per sentence: the outputs, and the numbers of each sentence.

        sentences (n, k + 2): the k numbers of the measure, the nats of the reference, and its tokens.
        documents: the document of each sentence; None: not known.
        """
        self.lock.check()
        _write_lines(self.path / f"hyp.{split}.txt", hypotheses)
        of_each = [{}] * len(sentences) if documents is None else [{DOCUMENT: document} for document in documents]
        lines = (
            json.dumps({measure.name: list(map(int, numbers)), "nll": float(nll), "pieces": int(tokens)} | document)
            for (*numbers, nll, tokens), document in zip(sentences, of_each, strict=True)
        )
        _write_lines(self.path / f"scores.{split}.jsonl", lines)

    def hypotheses(self, split: str) -> list[str]:
        """The translations of a split. Raises an InputError that names the file where it cannot be read."""
        with self._reading(f"hyp.{split}.txt") as path:
            return path.read_bytes().decode().split("\n")[:-1]  # splitlines would split at a \r too

    def sentences(self, split: str, measure: Measure) -> np.ndarray:
        """(sentences, k + 2): the numbers in SCORE_COLUMNS and in LOSS_COLUMNS. Raises as `hypotheses` does."""
        with self._reading(f"scores.{split}.jsonl") as path:
            lines = json.loads(f"[{','.join(path.read_text(encoding='utf-8').splitlines())}]")
            numbers = np.array([[*line[measure.name], line["nll"], line["pieces"]] for line in lines], float)
            if numbers.shape[1:] != (measure.numbers + 2,):
                raise ValueError(f"it does not hold the {measure.numbers + 2} numbers of each sentence")
        return numbers

    def documents(self, split: str) -> list[int] | None:
        """The document of each sentence of a split; None where they are not known. Raises as `hypotheses` does."""
        with self._reading(f"scores.{split}.jsonl") as path:
            found = [json.loads(line).get(DOCUMENT) for line in path.read_text(encoding="utf-8").splitlines()]
            return None if None in found else list(map(int, found))

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.path / METRICS)

    def _reading(self, name: str) -> AbstractContextManager[Path]:
        return reading(self.path / name, f"to have it again, remove {self.path} and train the trial again")

    # The end of a trial

    def finish(self, result: Result, keep_state: bool = False) -> None:
        """Write result.json, which makes the trial a finished one, and remove its checkpoints.

        keep_state: whether the last of them stays, as STATE.
        """
        self.lock.check()
        if keep_state:
            os.replace(self.checkpoints / LAST, self.path / STATE)
        write_json(self.path / RESULT, result.model_dump())
        self.drop_checkpoints()

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def clear(self) -> None:
        """Remove what training and evaluation have written, to train the trial again. Its logs and other files stay."""
        for pattern in WRITTEN:
            for path in self.path.glob(pattern):
                path.unlink()
        shutil.rmtree(self.path / "wandb", ignore_errors=True)
        self.drop_checkpoints()

    def log_end(self, lines: int = 12) -> list[str]:
        """The last lines of the log."""
        with suppress(OSError):
            return read_bytes(self.log).decode(errors="replace").splitlines()[-lines:]
        return []


def trial_id(folder: str) -> str:
    """The id of a trial whose folder has this name, whatever a user has made of what stands before it."""
    return folder.rpartition("-")[2]


def folder_name(row: str, seed: int, id_: str) -> str:
    """The name of a trial's folder, such as `N=2-h=4-s1-0123456789ab`: the first words of its row, its seed, its id.

    row: what differs from the base of its sweep, or `base`.
    """
    words = textwrap.shorten(row, 50, placeholder="", break_long_words=False, break_on_hyphens=False).split()
    return "-".join([*(re.sub(r"[^A-Za-z0-9.=_+]+", "_", word) for word in words), f"s{seed}", id_])


def as_safetensors(state: Mapping[str, Any]) -> bytes:
    """A state dict as a file of safetensors."""
    from safetensors.torch import save  # imports torch

    return save({name: value.cpu().contiguous().clone() for name, value in state.items()})


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))
