"""What several tests share: commands as their user runs them, little text, waiting, processes."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from transformer_pl.config import Config
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.result import Result
from transformer_pl.trials.trial import Origin, Trial
from transformer_pl.trials.trial_folder import TrialFolder

ROOT = Path(__file__).parent.parent
SHIPPED = sorted(path for path in (ROOT / "sweeps").glob("*.yaml") if not path.stem.endswith(".rows"))
GRIDS = [path for path in SHIPPED if "\nmethod: grid\n" in path.read_text()]
SEARCHES = [path for path in SHIPPED if path not in GRIDS]

for name in ("WANDB_API_KEY", "WANDB_MODE", "TRANSFORMER_PL_DATA"):
    os.environ.pop(name, None)
os.environ.update(HF_HUB_OFFLINE="1", OMP_WAIT_POLICY="PASSIVE", NETRC=os.devnull, COLUMNS="120")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes run tests, and their tensors are small


def command(name: str, *argv: object, **environment: str) -> subprocess.CompletedProcess:
    """Run `python -m transformer_pl.<name> ARGV` in a process of its own."""
    words = [sys.executable, "-m", f"transformer_pl.{name}", *map(str, argv)]
    return subprocess.run(words, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=300)


def check_names(found: Iterable[str], expected: Iterable[str], remedy: str) -> None:
    """Fail with the names that are missing or too many in `found`, and with what to do."""
    missing, extra = sorted({*expected} - {*found}), sorted({*found} - {*expected})
    assert not (missing or extra), f"missing: {missing}; too many: {extra}; {remedy}"


def wait_for(condition: Callable[[], object], seconds: float = 60, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come in time"
        time.sleep(every)


def little_text(folder: Path, train: int = 60, val: int = 8, test: int = 6) -> Path:
    """So many sentences of one to eight words, and what they are in a language that says them backwards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
    for split, count in (("train", train), ("val", val), ("test", test)):
        rows = [[words[i] for i in rng.integers(0, 60, rng.integers(1, 9))] for _ in range(count)]
        (folder / f"{split}.en").write_text("".join(f"{' '.join(row)}\n" for row in rows))
        (folder / f"{split}.de").write_text("".join(f"{' '.join(reversed(row))}.\n" for row in rows))
    return folder


def write_sweep(path: Path, keys: dict[str, Any], **more: Any) -> Path:
    """A sweep file that is a grid over these keys: of a list, each value makes rows. `more` stands beside them."""
    entries = {
        key: {"values": value} if isinstance(value, list) else {"value": str(value) if key == "data.path" else value}
        for key, value in keys.items()
    }
    content = {"program": "p.py", "name": path.stem, "method": "grid", "parameters": entries} | more
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@functools.cache
def shared_text() -> Path:
    """The folder of a little text for the trials of several tests. 31 sentences for validation make batches uneven."""
    folder = Path(tempfile.mkdtemp(prefix="text"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return little_text(folder, 800, 31, 21)


def a_trial(folder: Path, config: Config, **origin: Any) -> Trial:
    """A made-up trial of a config in this folder. origin: the fields of `Origin`."""
    return Trial(TrialFolder(folder), config, Identity({}), Corpus({}, "", lambda split: iter(())), Origin(**origin))


def a_result(**keys: object) -> Result:
    """The result of a made-up trial; `keys` in the place of some of it."""
    return Result(**result_keys(**keys))


def result_keys(**keys: object) -> dict[str, Any]:
    """The content of its result.json, which need not be valid."""
    result = {"id": "0123456789ab", "weights_id": "ba9876543210", "name": "base s1", "tags": ["demo"], "scale": "demo"}
    result |= {"seed": 1, "config": {}, "metrics": {"val/ppl": 2.0, "val/bleu": 30.0}, "score": "bleu"}
    result |= {"signature": "nrefs:1", "params": 1, "steps": 1, "flops": 1.0}
    return result | {"tokens_per_s": None, "wall_s": 1.0, "finished": "2026-11-21 00:00:00"} | keys


def read_back(run: Path, *options: str) -> str:
    """What W&B's own reader says of an offline run: its records, or with --summary what they come to."""
    words = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", *options, str(run)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    command: str


def processes() -> list[Process]:
    """Every process that is alive; one that has ended and only waits to be heard of is not."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state not in "ZX":
                found.append(Process(int(folder.name), int(parent), int(session), command))
    return found


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and theirs."""
    children = [process.pid for process in processes() if process.parent == pid]
    return [*children, *(one for child in children for one in descendants(child))]
