"""What lies on disk of a trial: one folder, found by its identity, its result written last and in one stroke."""

import fcntl
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt

from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.integrity import check, read_json, sha256
from transformer_pl.training.divergence import metrics_from_json, metrics_to_json
from transformer_pl.trials.names import CHECKPOINT_FILES, TRIAL_FILES, broken_rule, trial_folder

if TYPE_CHECKING:
    import numpy as np

DEFAULT_RUNS = Path("runs")
DIGESTED = ("weights.pt", "metrics.jsonl", "hyp.*.txt", "scores.*.jsonl")  # what a trial's numbers are made of
STATISTICS = 12  # of a sentence: BLEU's ten integers, nats, pieces
LOCK_S = 0.5  # for which a trial's lock is tried: who only asks whether it is taken has it for an instant


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def check_writable(runs: Path) -> None:
    """Try the runs folder before anything starts. Raises an InputError with the system's reason."""
    if why := why_unwritable(runs):
        raise InputError(why)


def why_unwritable(runs: Path) -> str | None:
    """Why nothing can be written under the runs folder; None where that works."""
    probe = runs / "trials" / f".probe.{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                file.write(bytes(1 << 20))  # a full disk takes an empty file, but not this
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return (
            f"--runs {runs}: must be a folder that can be written, with room on its disk, but: {error.strerror}"
            f"{place}; make room, or choose another folder with --runs"
        )
    return None


@contextmanager
def runs_lock(runs: Path, alone: bool = False) -> Iterator[None]:
    """Keep --clean out of a runs folder while something is made in it; or, `alone`, everything else."""
    if not runs.is_dir():
        yield
        return
    try:
        file = (runs / "lock").open("a")
    except OSError as error:
        raise InputError(f"{runs / 'lock'}: must be a file that can be written, but: {error.strerror}") from None
    with file:
        if not _flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            who = "a sweep or a trial is at work there" if alone else "it is being cleaned"
            raise InputError(f"--runs {runs}: nothing may be cleaned while it is made, but {who}; wait for it")
        yield


# What the files of a trial and of a sweep must hold to be used. They may hold more.


class _Metrics(BaseModel, strict=True, extra="allow"):
    __pydantic_extra__: dict[str, float | None]
    bleu: float = Field(alias="val/bleu")
    ppl: float | None = Field(alias="val/ppl")  # null: infinite


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
    params: int
    steps: PositiveInt
    flops: PositiveFloat
    dropped: int
    tokens_per_s: float | None
    wall_s: float
    finished: str
    digests: dict[str, str] = {}  # sha256 by file name; older results have none


class _Status(BaseModel, strict=True):
    state: str


class _Environment(BaseModel, strict=True):
    data: str | None = None
    packages: dict[str, str] = {}
    threads: int | None = None


class Trial:
    """The folder of one trial, `runs/trials/<readable>-<id>`."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def at(cls, runs: Path, trial_id: str, readable: str) -> "Trial":
        """The trial of this identity: the folder that is there, whatever it is called, or the one that will be."""
        found = sorted((runs / "trials").glob(f"*-{trial_id}"))
        return cls(found[0] if found else runs / "trials" / trial_folder(readable, trial_id))

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def result(self) -> dict[str, Any] | None:
        """What result.json says; None unless the trial is finished. With a damaged one it is not."""
        otherwise = "the trial counts as not finished, and the command that trained it trains it anew"
        result = read_json(self.folder / "result.json", _Result, otherwise)
        return result and result | {"metrics": metrics_from_json(result["metrics"])}

    def diverged_at(self) -> int | None:
        """The step at which its training diverged, which is its result; None unless it did."""
        status = self.status()
        return status.get("step") if status["state"] == "diverged" else None

    def needs_training(self) -> bool:
        """Whether it is neither finished nor diverged."""
        return self.result() is None and self.diverged_at() is None

    def environment(self) -> dict[str, Any]:
        """Where it ran, as `environment` tells; nothing where it never came to run."""
        otherwise = "it is not known where the trial ran, and on which text"
        return read_json(self.folder / "env.json", _Environment, otherwise) or {}

    def data(self) -> str | None:
        """The folder of its text under runs/data; None where it never came to read it."""
        name = self.environment().get("data")
        return name if isinstance(name, str) and not broken_rule(name) else None

    def threads_begun(self) -> int | None:
        """How many threads a process of it began with. None for a trial that begins, or begins anew."""
        return None if self.result() else self.environment().get("threads")

    def threads(self, config: int | None, share: int) -> int:
        """How many threads each of its processes is to have, for its numbers depend on that, down to the last bits.

        `config`: trainer.threads, which wins; then what the trial began with; `share` where it only begins.
        """
        return config or self.threads_begun() or share

    def status(self) -> dict[str, Any]:
        """`state` is `new`, `running`, `stopped`, `failed`, `diverged` (with its `step`), `done`, or `damaged`
        where the result is.

        What is told beside it is for people. A trial that no process trains is done if and only if it has a result.
        """
        status = read_json(self.folder / "status.json", _Status, "the trial's state is told by its result alone")
        status = status or {"state": "new"}
        if status["state"] == "running" and self.locked():
            return status
        if self.result():
            status["state"] = "done"
        elif (self.folder / "result.json").exists():
            status["state"] = "damaged"
        elif status["state"] in ("running", "done"):
            status["state"] = "stopped"  # its process ended without a word, or its result was removed
        return status

    def set_status(self, state: str, **told: Any) -> None:
        write_json(self.folder / "status.json", {"state": state, "time": time.time(), "pid": os.getpid()} | told)

    def make(self) -> None:
        """Make the folder, with the lock's empty file in it: by that `--clean` knows it for a trial's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "lock").touch()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training this trial. The system lets go of the lock when the process ends."""
        self.make()
        with (self.folder / "lock").open("w") as file:
            until = time.monotonic() + LOCK_S
            while not _flock(file, fcntl.LOCK_EX):
                if time.monotonic() > until:
                    raise InputError(
                        f"{self.folder}: one process trains a trial at a time, and another does; wait for it, or end it"
                    )
                time.sleep(0.05)
            yield

    def locked(self) -> bool:
        try:
            with (self.folder / "lock").open() as file:  # to read: whoever asks may have no right to write
                return not _flock(file, fcntl.LOCK_SH)
        except OSError:  # no lock was ever taken
            return False

    def save_weights(self, state: dict[str, Any]) -> None:
        import torch

        unfinished = self.folder / ".weights.pt"
        torch.save({name: value.cpu() for name, value in state.items()}, unfinished)
        unfinished.replace(self.folder / "weights.pt")

    def link(self, other: Path, *names: str) -> None:
        """Share the files of another trial: the same bytes on disk, so never to be written in place."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
            os.link(other / name, self.folder / name)

    def save_sentences(
        self, split: str, hypotheses: list[str], statistics: list[list[int]], nll: Iterable, pieces: Iterable
    ) -> None:
        """One line a sentence: the translation; and BLEU's ten integers, the reference's nats and pieces."""
        _write_lines(self.folder / f"hyp.{split}.txt", hypotheses)
        rows = zip(statistics, nll, pieces, strict=True)
        lines = (json.dumps({"bleu": b, "nll": float(n), "pieces": int(p)}) for b, n, p in rows)
        _write_lines(self.folder / f"scores.{split}.jsonl", lines)

    def hypotheses(self, split: str) -> list[str]:
        """The translation of every sentence. Raises as `intact` does."""
        with self._reading(f"hyp.{split}.txt") as path:
            return path.read_bytes().decode().split("\n")[:-1]  # there may be a \r in one

    def sentences(self, split: str) -> "np.ndarray":
        """(sentences, STATISTICS): BLEU's ten integers, nats, pieces. Raises as `intact` does."""
        import numpy as np

        with self._reading(f"scores.{split}.jsonl") as path, path.open(encoding="utf-8") as file:
            rows = np.array([[*line["bleu"], line["nll"], line["pieces"]] for line in map(json.loads, file)])
            if rows.shape[1:] != (STATISTICS,):
                raise ValueError(f"it does not hold {STATISTICS} numbers of each sentence")
            return rows

    def intact(self, name: str) -> Path:
        """The path of a file of a finished trial, once its bytes are known to be those that the result came from.

        Raises an InputError that names the file where they are others, or cannot be read. A result of an older version
        has no digests: then its files are taken as they are.
        """
        with self._reading(name) as path:
            return path

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        path = self.folder / name
        try:
            check(path, (self.result() or {}).get("digests", {}).get(name))
            yield path
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{path}: cannot be used: {reason}; to have it again, remove {self.folder} and train the trial anew"
            ) from None

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, which makes the trial a finished one; what only served to resume goes.

        `digests` is added: the sha256 of every file that numbers are made of, by its name.
        """
        files = [path for pattern in DIGESTED for path in sorted(self.folder.glob(pattern))]
        digests = {path.name: sha256(path) for path in files}
        metrics = metrics_to_json(result["metrics"])
        write_json(self.folder / "result.json", result | {"metrics": metrics, "digests": digests})
        self.drop_checkpoints()

    def set_aside_damaged_result(self) -> None:
        """Make room for a new result; a person may want to look at the damaged one."""
        path = self.folder / "result.json"
        if path.exists() and self.result() is None:
            path.replace(path.with_name("result.json.damaged"))

    def drop_checkpoints(self) -> None:
        """It will not be gone on with: its curve stays, what only served to resume does not."""
        folder = self.folder / "checkpoints"
        if folder.is_symlink():
            return
        with suppress(OSError):  # such as of a file that is none of ours, and stays
            for path in folder.iterdir():
                if CHECKPOINT_FILES.fullmatch(path.name):
                    path.unlink()
            folder.rmdir()

    def drop_unfinished(self) -> None:
        """Give back the room of a file that could not be written whole: what is told next may need it."""
        for path in (*self.folder.glob("checkpoints/new.*"), self.folder / ".weights.pt"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything but the log, to train the trial anew. Files that are not the trial's stay."""
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path.name in ("log.txt", "lock") or not TRIAL_FILES.fullmatch(path.name):
                continue
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.name == "wandb":
                shutil.rmtree(path)
        self.drop_checkpoints()

    def metrics(self, last: int | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, or about the `last` ones.

        A damaged line is left out, and so is one that is still being written.
        """
        try:
            with (self.folder / "metrics.jsonl").open("rb") as file:
                if last:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - 200 * last))
                    if file.tell():
                        file.readline()  # the rest of a line
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [metrics_from_json(line) for line in map(_metrics_line, lines) if line]

    def log_end(self, lines: int = 12) -> list[str]:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return text.splitlines()[-lines:]


def finished_results(runs: Path) -> list[dict[str, Any]]:
    """The results of every finished trial under a runs folder, each with its folder's path under `folder`."""
    results = []
    for path in sorted((runs / "trials").glob("*/result.json")):
        if result := Trial(path.parent).result():
            results.append(result | {"folder": path.parent})
    return results


def _flock(file: IO, kind: int) -> bool:
    """False where another process has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _metrics_line(line: bytes) -> dict[str, float] | None:
    """The numbers of a line of metrics.jsonl by their names, its step among them; None for a damaged one."""
    try:
        numbers = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(numbers, dict) and all(isinstance(number, int | float | None) for number in numbers.values())
    return numbers if whole and isinstance(numbers.get("step"), int) else None


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def describe_environment(versions: Iterable[str]) -> dict[str, Any]:
    """Where a trial ran: what its rates and times must be read beside."""
    from importlib.metadata import version

    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (model := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        cpu = model[1]
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in versions},
    }
