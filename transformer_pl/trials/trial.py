"""The folder of one trial: its status, result, weights and translations. `result.json` is written last, atomically."""

import errno
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import (
    broken_name_rule,
    check_digest,
    json_text,
    put_in_place,
    read_checked,
    read_json,
    set_aside,
    sha256,
    write_atomically,
    write_json,
)
from transformer_pl.task import Measure
from transformer_pl.trials.index import Index, index_of
from transformer_pl.trials.lock import Timeout, TrialLock
from transformer_pl.trials.metrics import metrics_from_json, metrics_to_json, read_metrics
from transformer_pl.trials.names import (
    CHECKPOINT_FILES,
    CLAIM_FILES,
    DAMAGED_FILES,
    LOG_FILES,
    TRIAL_FILES,
    TRIAL_FOLDER,
    trial_folder,
)
from transformer_pl.trials.schemas import Environment, IdentityInputs, Result, Sentence, Status, result_digest

if TYPE_CHECKING:
    import numpy as np

DIGESTED = ("weights.pt", "metrics.jsonl", "hyp.*.txt", "scores.*.jsonl")  # the files that reported numbers come from
_SENTENCES = TypeAdapter(list[Sentence])


class Trial:
    """The folder of one trial, `runs/trials/<readable>-<id>`."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def at(cls, runs: Path, trial_id: str, readable: Callable[[], str]) -> "Trial":
        """The trial with this id. Its folder may have been renamed before the id; a new one is named `readable()`."""
        trials = runs / "trials"
        name = _names_by_id(trials, _changed(trials)).get(trial_id) or trial_folder(readable(), trial_id)
        return cls(trials / name)

    @property
    def log(self) -> Path:
        """The file that holds what the trial printed in its last attempt."""
        return self.folder / "log.txt"

    @property
    def sources(self) -> Path:
        """The folder that holds the sources of its components as they were trained."""
        return self.folder / "sources"

    @cached_property
    def _index(self) -> Index:
        return index_of(self.folder.parent.parent)

    @cached_property
    def _result_file(self) -> Path:
        return self.folder / "result.json"

    # State

    def result(self) -> dict[str, Any] | None:
        """The content of result.json; None where the trial is not finished, or where the file is damaged."""
        result = self._index.result(self._result_file, _schema(), self._read_result)
        return None if result is None else result | {"metrics": metrics_from_json(result["metrics"])}

    def _read_result(self) -> dict[str, Any] | None:
        consequence = "the trial counts as not finished, and the command that trained it trains it anew"
        result = read_json(self._result_file, Result, consequence) or {}
        return {key: value for key, value in result.items() if key != "digest"} or None

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
        names, index = [], self._index
        for name, digest in result.get("digests", {}).items():
            path = self.folder / name
            with suppress(FileNotFoundError):
                stat = os.stat(path)
                if index.is_whole(path, digest, stat):
                    continue
                if damage := _damage(path, digest, stat.st_mtime_ns, stat.st_size):
                    warn(f"{path}: {damage}; the command that trained the trial sets it aside and trains it anew")
                    names.append(name)
                else:
                    index.keep_whole(path, digest, stat)
        return names

    def status(self) -> dict[str, Any]:
        """A mapping with `state`: `new`, `running`, `stopped`, `failed`, `diverged` (with its `step`), `done`,
        `pruned` by a search, or `damaged` where result.json is.

        Other keys are for people. A trial that no process trains is done if and only if it has a result.
        """
        status = read_json(self.folder / "status.json", Status, "only the result tells the trial's state")
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

    def state(self) -> str:
        """The state that `status` tells; faster for a trial that is done."""
        return "done" if self.result() else self.status()["state"]

    def out_of_memory_with(self) -> int | None:
        """The parts of a batch with which its training ran out of a device's memory; None where it did not."""
        status = self.status()
        return status.get("out_of_memory") if status["state"] == "failed" else None

    def set_status(self, state: str, **details: Any) -> None:
        """Write status.json."""
        self.check_lock()
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
        return (
            f"{self.folder}: has vanished while its trial was trained; bring it back, and run the same command again "
            "to continue"
        )

    def threads_begun(self) -> int | None:
        """How many threads a process of an unfinished trial began with; None for one that has yet to begin."""
        return None if self.result() else self.environment().get("threads")

    def parts_begun(self) -> int | None:
        """The parts of a batch (trainer.accumulate) that its checkpoints count; None where it has none."""
        has_checkpoints = any((self.folder / "checkpoints").glob("*.ckpt"))
        return self.environment().get("accumulate") if has_checkpoints else None

    def threads(self, configured: int | None, share: int) -> int:
        """The number of threads for each process of the trial. Its results depend on it in their last bits.

        configured: trainer.threads, which wins; then the number the trial began with; then `share`, this process's
        share of the machine.
        """
        return configured or self.threads_begun() or share

    # Whose it is

    def make(self) -> None:
        """Make the folder. Raises an InputError where it cannot be made."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{error.filename or self.folder}: must be a folder that can be written, but: {error.strerror}; "
                "remove it"
            ) from None

    @cached_property
    def _lock(self) -> TrialLock:
        return TrialLock(self.folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training this trial. Raises an InputError where one trains it.

        If another process takes the trial over, this one is told to stop, and `check_lock` raises Lost from then on.
        """
        self.make()
        try:
            with self._lock.hold(lambda: os.kill(os.getpid(), signal.SIGTERM)):
                yield
        except Timeout:
            raise InputError(
                f"{self.folder}: another process trains this trial, and only one may; wait for it, or end it"
            ) from None

    def check_lock(self) -> None:
        """Raise Lost where this process trained the trial, and another one has taken it over."""
        self._lock.check()

    def locked(self) -> bool:
        """Whether a living process trains the trial."""
        return self._lock.is_held()

    # Files that the result is made from

    def save_weights(self, state: Mapping[str, Any]) -> None:
        """Write a state dict to weights.pt, on the CPU, atomically."""
        import torch

        self.check_lock()
        unfinished = self.folder / ".weights.pt"
        torch.save({name: value.cpu() for name, value in state.items()}, unfinished)
        put_in_place(unfinished, self.folder / "weights.pt")

    def link(self, other: Path, *names: str) -> None:
        """Hard-link files of another trial's folder, or copy them from another disk. Nothing may write to them."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
            crash_point("shared weights: before their link")
            try:
                os.link(other / name, self.folder / name)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):  # where no link can be made
                    raise
                unfinished = self.folder / (f".{name}" if name == "weights.pt" else f".{name}.{os.getpid()}")
                shutil.copyfile(other / name, unfinished)
                put_in_place(unfinished, self.folder / name)

    def save_sentences(
        self,
        split: str,
        hypotheses: list[str],
        measure: str,
        statistics: list[list[int]],
        nll: Iterable,
        pieces: Iterable,
    ) -> None:
        """Write one line per sentence: its output; the numbers of the task's measure, the reference's nats and tokens.

        measure: the name of the measure, such as bleu.
        """
        self.check_lock()
        _write_lines(self.folder / f"hyp.{split}.txt", hypotheses)
        rows = zip(statistics, nll, pieces, strict=True)
        lines = (json.dumps({measure: s, "nll": float(n), "pieces": int(p)}) for s, n, p in rows)
        _write_lines(self.folder / f"scores.{split}.jsonl", lines)

    def hypotheses(self, split: str) -> list[str]:
        """The translations of a split. Raises as `intact` does."""
        with self._reading(f"hyp.{split}.txt") as (path, digest):
            return read_checked(path, digest).decode().split("\n")[:-1]  # splitlines would split at a \r too

    def sentences(self, split: str, measure: Measure) -> "np.ndarray":
        """(sentences, k + 2): the numbers in SCORE_COLUMNS and in LOSS_COLUMNS. Raises as `intact` does."""
        import numpy as np

        with self._reading(f"scores.{split}.jsonl") as (path, digest):
            try:
                lines = _SENTENCES.validate_json(b"[%b]" % b",".join(read_checked(path, digest).splitlines()))
            except ValidationError:
                lines = []
            counts = [(line.model_extra or {}).get(measure.name, []) for line in lines]
            if {len(numbers) for numbers in counts} != {measure.numbers}:
                raise ValueError(f"it does not hold the {measure.numbers + 2} numbers of each sentence")
        return np.array([[*of, line.nll, line.pieces] for of, line in zip(counts, lines, strict=True)], float)

    def metrics(self, last: int | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, or roughly the `last` ones, without damaged and unfinished ones."""
        return read_metrics(self.folder / "metrics.jsonl", last)

    def intact(self, name: str) -> Path:
        """The path of a file of a finished trial, after its bytes were compared with the digest in the result.

        Raises an InputError that names the file where they differ, or where it cannot be read. A result of an older
        version has no digests: then the file is not checked.
        """
        with self._reading(name) as (path, digest):
            check_digest(path, digest)
            return path

    @contextmanager
    def _reading(self, name: str) -> Iterator[tuple[Path, str | None]]:
        """The path of a file, and its digest in the result. An error of reading it becomes an InputError."""
        path = self.folder / name
        try:
            yield path, (self.result() or {}).get("digests", {}).get(name)
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
        text = json_text(content | {"digest": result_digest(content)})
        crash_point("a result: before it is written")
        self.check_lock()
        write_atomically(self.folder / "result.json", text)
        crash_point("a result: before the checkpoints are removed")
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
            is_kept = any(kind.fullmatch(path.name) for kind in (CLAIM_FILES, LOG_FILES, DAMAGED_FILES))
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
def _schema() -> str:
    """What stands for the form of a result that this version reads."""
    return hashlib.sha256(json.dumps(Result.model_json_schema()).encode()).hexdigest()[:12]


def _changed(folder: Path) -> int | None:
    """When something was last made, renamed or removed in a folder; None where there is none."""
    with suppress(OSError):
        if folder.is_dir():
            return folder.stat().st_mtime_ns
    return None


@lru_cache(maxsize=1)
def _names_by_id(trials: Path, changed: int | None) -> dict[str, str]:
    """The names of the folders of trials by their ids, of several the first. Kept until the folder changes."""
    try:
        names = sorted(os.listdir(trials), reverse=True) if changed is not None else []
    except OSError as error:
        raise InputError(
            f"{trials}: must be a folder that can be read, but: {error.strerror}; choose another --runs"
        ) from None
    return {match["id"]: name for name in names if (match := TRIAL_FOLDER.fullmatch(name))}


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
