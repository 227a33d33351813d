"""The folder of one trial: its status, result, weights and translations. `result.json` is written last, atomically."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError, model_validator

from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import (
    broken_name_rule,
    check_digest,
    put_in_place,
    read_json,
    set_aside,
    sha256,
    try_lock,
    write_atomically,
    write_json,
)
from transformer_pl.trials.metrics import metrics_from_json, metrics_to_json, read_metrics
from transformer_pl.trials.names import CHECKPOINT_FILES, DAMAGED_FILES, LOG_FILES, TRIAL_FILES, trial_folder

if TYPE_CHECKING:
    import numpy as np

DIGESTED = ("weights.pt", "metrics.jsonl", "hyp.*.txt", "scores.*.jsonl")  # the files that reported numbers come from
# The twelve numbers of a sentence: BLEU's ten integers (see `score.sentence_statistics`), then nats and tokens.
# The last number of each group depends on the reference alone.
BLEU_COLUMNS, LOSS_COLUMNS = slice(0, 10), slice(10, 12)
LOCK_FD = "TRANSFORMER_PL_LOCK_FD"  # a variable: the descriptor of a lock that the parent took for this process
LOCK_S = 0.5  # seconds to wait for a trial's lock: a process that only asks for its state holds it for an instant


# The schemas of a trial's files. The files may hold more.


LARGEST = 10**18  # of any count in a result: beyond it, floats overflow
_Count = Annotated[int, Field(gt=0, le=LARGEST)]


class _Metrics(BaseModel, strict=True, extra="allow"):
    __pydantic_extra__: dict[str, FiniteFloat | None]
    bleu: FiniteFloat = Field(alias="val/bleu")
    ppl: FiniteFloat | None = Field(alias="val/ppl")  # null: infinite


class _Convergence(BaseModel, strict=True, extra="forbid"):
    fall: FiniteFloat
    noise: FiniteFloat | None
    validations: int


class _Result(BaseModel, strict=True):
    id: str
    weights_id: str
    name: str
    tags: list[str]
    scale: str
    seed: int
    config: dict[str, Any]
    metrics: _Metrics
    signature: str
    params: _Count
    steps: _Count
    flops: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    dropped: Annotated[int, Field(ge=0, le=LARGEST)]
    tokens_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    wall_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    finished: str
    digests: dict[str, str] = {}  # sha256 by file name; older results have none
    digest: str | None = None  # of the other keys; older results have none
    exempt: dict[str, dict[str, str]] = {}  # see `checks.run.check_model`
    convergence: _Convergence | None = None  # null: not known; older results lack it
    version: str | None = None  # of this project; older results lack it

    @model_validator(mode="before")
    @classmethod
    def _is_what_was_written(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("digest") not in (None, _digest(content)):
            raise ValueError("its content is not what was written (its digest differs)")
        return content


def _digest(result: Mapping[str, Any]) -> str:
    """The sha256 of the content of result.json, without the digest in it."""
    others = {key: value for key, value in result.items() if key != "digest"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


class _Sentence(BaseModel, strict=True):
    """A line of scores.*.jsonl: the numbers in BLEU_COLUMNS and in LOSS_COLUMNS."""

    bleu: Annotated[list[NonNegativeInt], Field(min_length=BLEU_COLUMNS.stop, max_length=BLEU_COLUMNS.stop)]
    nll: FiniteFloat
    pieces: PositiveInt


class _Status(BaseModel, strict=True):
    state: str


class Environment(BaseModel, strict=True):
    data: str | None = None
    packages: dict[str, str] = {}
    gpus: list[str] = []  # older versions did not record them
    threads: int | None = None
    changed: bool | None = None


class IdentityInputs(BaseModel, strict=True):
    core: int
    data: dict[str, Any]
    parts: dict[str, str]


class Trial:
    """The folder of one trial, `runs/trials/<readable>-<id>`."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def at(cls, runs: Path, trial_id: str, readable: str) -> "Trial":
        """The trial with this id. Its folder may have been renamed before the id; a new one is named `readable`."""
        existing = sorted((runs / "trials").glob(f"*-{trial_id}"))
        return cls(existing[0] if existing else runs / "trials" / trial_folder(readable, trial_id))

    @property
    def log(self) -> Path:
        """The file that holds what the trial printed in its last attempt."""
        return self.folder / "log.txt"

    @property
    def sources(self) -> Path:
        """The folder that holds the sources of its components as they were trained."""
        return self.folder / "sources"

    # State

    def result(self) -> dict[str, Any] | None:
        """The content of result.json; None where the trial is not finished, or where the file is damaged."""
        consequence = "the trial counts as not finished, and the command that trained it trains it anew"
        result = read_json(self.folder / "result.json", _Result, consequence)
        if result:
            result["metrics"] = metrics_from_json(result["metrics"])
            result.pop("digest", None)
        return result

    def diverged_at(self) -> int | None:
        """The step at which the training diverged; None where it did not."""
        status = self.status()
        return status.get("step") if status["state"] == "diverged" else None

    def needs_training(self) -> bool:
        """Whether the trial has neither finished nor diverged, or what it has finished with is damaged."""
        result = self.result()
        return self.diverged_at() is None if result is None else bool(self._damaged(result))

    def _damaged(self, result: Mapping[str, Any]) -> list[str]:
        """The names of the files of a trial with this result that are not what was written. Each gives a warning.

        Missing files are not among them: somebody may have removed weights who wanted room. A file is read once.
        """
        names = []
        for name, digest in result.get("digests", {}).items():
            path = self.folder / name
            with suppress(FileNotFoundError):
                stat = path.stat()
                if damage := _damage(path, digest, stat.st_mtime_ns, stat.st_size):
                    warn(f"{path}: {damage}; the command that trained the trial sets it aside and trains it anew")
                    names.append(name)
        return names

    def status(self) -> dict[str, Any]:
        """A mapping with `state`: `new`, `running`, `stopped`, `failed`, `diverged` (with its `step`), `done`, or
        `damaged` where result.json is.

        Other keys are for people. A trial that no process trains is done if and only if it has a result.
        """
        status = read_json(self.folder / "status.json", _Status, "only the result tells the trial's state")
        status = status or {"state": "new"}
        if status["state"] == "running" and self.locked():
            return status
        if self.result():
            status["state"] = "done"
        elif (self.folder / "result.json").exists():
            status["state"] = "damaged"
        elif status["state"] in ("running", "done"):
            status["state"] = "stopped"  # its process was killed, or its result was removed
        return status

    def set_status(self, state: str, **details: Any) -> None:
        """Write status.json."""
        write_json(self.folder / "status.json", {"state": state, "time": time.time(), "pid": os.getpid()} | details)

    # Where and on what it ran

    def environment(self) -> dict[str, Any]:
        """The content of env.json; empty where the trial never ran."""
        consequence = "it is not known where the trial ran, and on which text"
        return read_json(self.folder / "env.json", Environment, consequence) or {}

    def identity_inputs(self) -> dict[str, Any] | None:
        """The content of identity.json: what the id was made from; None for trials of older versions."""
        return read_json(self.folder / "identity.json", IdentityInputs, "it is not compared with other trials")

    def data(self) -> str | None:
        """The name of the folder of its text under runs/data; None where the trial never ran."""
        name = self.environment().get("data")
        return name if isinstance(name, str) and not broken_name_rule(name) else None

    def why_gone(self) -> str | None:
        """What to say where the folder of a trial in training has vanished; None where it has not."""
        if self.folder.is_dir():
            return None
        return f"{self.folder}: has vanished while its trial was trained; bring it back, and the same command continues"

    def threads_begun(self) -> int | None:
        """How many threads a process of an unfinished trial began with; None for one that has yet to begin."""
        return None if self.result() else self.environment().get("threads")

    def threads(self, configured: int | None, share: int) -> int:
        """The number of threads for each process of the trial. Its results depend on it in their last bits.

        configured: trainer.threads, which wins; then the number the trial began with; then `share`, this process's
        share of the machine.
        """
        return configured or self.threads_begun() or share

    # The lock

    def make(self) -> None:
        """Make the folder and its empty lock file, by which `--clean` recognises a trial.

        A link in the place of the lock is removed: what it leads to is not the trial's. Raises an InputError where the
        file cannot be made.
        """
        lock = self.folder / "lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if lock.is_symlink():
                lock.unlink()
            lock.open("a").close()
        except OSError as error:
            raise InputError(
                f"{error.filename or lock}: must be a file that can be written, but: {error.strerror}; remove it"
            ) from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training this trial. The system releases the lock when the process ends.

        A lock that the parent process has taken for this one is used.
        """
        self.make()
        with self._inherited_lock() or (self.folder / "lock").open("a") as file:
            deadline = time.monotonic() + LOCK_S
            while not try_lock(file, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise InputError(
                        f"{self.folder}: another process trains this trial, and only one may; wait for it, or end it"
                    )
                time.sleep(0.05)
            yield

    def take_lock(self) -> IO | None:
        """The lock as an open file, which releases it when it is closed; None where another process trains the trial.

        A process that is started with this file and its descriptor in LOCK_FD has the lock until it ends.
        """
        self.make()
        file = (self.folder / "lock").open("a")
        if try_lock(file, fcntl.LOCK_EX):
            return file
        file.close()
        return None

    def _inherited_lock(self) -> IO | None:
        """The lock file that the parent process opened for this trial; None where it did not."""
        with suppress(KeyError, ValueError, OSError):
            descriptor = int(os.environ.pop(LOCK_FD))
            if os.path.samestat(os.fstat(descriptor), (self.folder / "lock").stat()):
                os.set_inheritable(descriptor, False)
                return os.fdopen(descriptor, "w")
        return None

    def locked(self) -> bool:
        """Whether a process trains the trial."""
        try:
            with (self.folder / "lock").open() as file:  # opened to read: the caller may have no right to write
                return not try_lock(file, fcntl.LOCK_SH)
        except OSError:  # no process ever took a lock
            return False

    # Files that the result is made from

    def save_weights(self, state: Mapping[str, Any]) -> None:
        """Write a state dict to weights.pt, on the CPU, atomically."""
        import torch

        unfinished = self.folder / ".weights.pt"
        torch.save({name: value.cpu() for name, value in state.items()}, unfinished)
        put_in_place(unfinished, self.folder / "weights.pt")

    def link(self, other: Path, *names: str) -> None:
        """Hard-link files of another trial's folder. Nothing may write to them in place."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
            crash_point("shared weights: before their link")
            os.link(other / name, self.folder / name)

    def save_sentences(
        self, split: str, hypotheses: list[str], statistics: list[list[int]], nll: Iterable, pieces: Iterable
    ) -> None:
        """Write one line per sentence: its translation; BLEU's ten integers, the reference's nats and tokens."""
        _write_lines(self.folder / f"hyp.{split}.txt", hypotheses)
        rows = zip(statistics, nll, pieces, strict=True)
        lines = (json.dumps({"bleu": b, "nll": float(n), "pieces": int(p)}) for b, n, p in rows)
        _write_lines(self.folder / f"scores.{split}.jsonl", lines)

    def hypotheses(self, split: str) -> list[str]:
        """The translations of a split. Raises as `intact` does."""
        with self._reading(f"hyp.{split}.txt") as path:
            return path.read_bytes().decode().split("\n")[:-1]  # splitlines would split at a \r too

    def sentences(self, split: str) -> "np.ndarray":
        """(sentences, 12): the numbers in BLEU_COLUMNS and in LOSS_COLUMNS. Raises as `intact` does."""
        import numpy as np

        with self._reading(f"scores.{split}.jsonl") as path, path.open(encoding="utf-8") as file:
            try:
                lines = [_Sentence.model_validate_json(line) for line in file]
            except ValidationError:
                raise ValueError(f"it does not hold the {LOSS_COLUMNS.stop} numbers of each sentence") from None
            if not lines:
                raise ValueError("it is empty")
        return np.array([[*line.bleu, line.nll, line.pieces] for line in lines], float)

    def metrics(self, last: int | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, or roughly the `last` ones, without damaged and unfinished ones."""
        return read_metrics(self.folder / "metrics.jsonl", last)

    def intact(self, name: str) -> Path:
        """The path of a file of a finished trial, after its bytes were compared with the digest in the result.

        Raises an InputError that names the file where they differ, or where it cannot be read. A result of an older
        version has no digests: then the file is not checked.
        """
        with self._reading(name) as path:
            return path

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        path = self.folder / name
        try:
            check_digest(path, (self.result() or {}).get("digests", {}).get(name))
            yield path
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{path}: cannot be used: {reason}; to have it again, remove {self.folder} and train the trial anew"
            ) from None

    # The end of a trial

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json, which makes the trial a finished one, and remove its checkpoints.

        Adds `digests`, the sha256 of every file that reported numbers come from, by its name, and its own `digest`.
        """
        files = [path for pattern in DIGESTED for path in sorted(self.folder.glob(pattern))]
        digests = {path.name: sha256(path) for path in files}
        content = result | {"metrics": metrics_to_json(result["metrics"]), "digests": digests}
        write_json(self.folder / "result.json", content | {"digest": _digest(content)})
        self.drop_checkpoints()

    def set_aside_damaged(self) -> None:
        """Rename a damaged result, or damaged files of a finished trial and its result, to train the trial anew."""
        path, result = self.folder / "result.json", self.result()
        names = self._damaged(result) if result else []
        if path.exists() and (names or result is None):
            for damaged in (path, *(self.folder / name for name in names)):
                set_aside(damaged)

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints. Files in their folder that are no checkpoints stay, and so do damaged ones."""
        folder = self.folder / "checkpoints"
        if folder.is_symlink():
            return
        with suppress(OSError):  # the folder is missing, or is not empty
            for path in folder.iterdir():
                if CHECKPOINT_FILES.fullmatch(path.name) and not DAMAGED_FILES.fullmatch(path.name):
                    path.unlink()
            folder.rmdir()

    def drop_unfinished(self) -> None:
        """Remove files that could not be written to the end: on a full disk the next write needs their room."""
        for path in (*self.folder.glob("checkpoints/new.*"), self.folder / ".weights.pt"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the trial's files, to train it anew. Its logs, damaged files and files of other programs stay."""
        for path in self.folder.iterdir() if self.folder.exists() else ():
            is_kept = path.name == "lock" or LOG_FILES.fullmatch(path.name) or DAMAGED_FILES.fullmatch(path.name)
            if is_kept or not TRIAL_FILES.fullmatch(path.name):
                continue
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.name == "wandb":
                shutil.rmtree(path)
        self.drop_checkpoints()

    def begin_log(self) -> None:
        """Keep the log of the last attempt as `log.1.txt`, or under the next free number, for a new attempt.

        A link in its place is removed: what it leads to is not the trial's.
        """
        if self.log.is_symlink():
            self.log.unlink()
        if self.log.exists() and self.log.stat().st_size:
            matches = (LOG_FILES.fullmatch(path.name) for path in self.folder.iterdir())
            attempts = [int(match["attempt"] or 0) for match in matches if match]
            self.log.replace(self.folder / f"log.{max(attempts) + 1}.txt")

    def log_end(self, lines: int = 12) -> list[str]:
        """The last lines of the last attempt's log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return text.splitlines()[-lines:]


@cache
def _damage(path: Path, digest: str, changed: int, size: int) -> str | None:
    """What is wrong with a file that was written with this digest; None where nothing is. Kept until it changes."""
    try:
        check_digest(path, digest)
    except (OSError, ValueError) as error:
        return f"cannot be used: {getattr(error, 'strerror', None) or error}"
    return None


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))
