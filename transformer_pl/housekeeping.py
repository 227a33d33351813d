"""Looking back over a runs folder: what lies there, and what of it is of no more use."""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from transformer_pl.results import Trial, planned_folders


def show(runs: Path, console: Console) -> None:
    """Every sweep and every trial: state, age, size on disk, score."""
    sweeps = sorted((runs / "sweeps").glob("*/plan.json"), key=_age, reverse=True)
    trials = sorted(_trials(runs), key=lambda trial: _age(trial.folder), reverse=True)
    if not trials and not sweeps:
        console.print(f"{runs}: no sweep and no trial")
        return
    table = _table("sweep", "trials", "age")
    for path in sweeps:
        states = Counter(Trial(runs / "trials" / name).status()["state"] for name in planned_folders(path.parent) or ())
        told = ", ".join(f"{count} {state}" for state, count in states.items()) or "unknown"
        table.add_row(path.parent.name, told, _ago(path.parent))
    console.print(table)
    console.print()
    table = _table("trial", "state", "age", "size", "val/bleu")
    for trial in trials:
        result = trial.result()
        score = f"{result['metrics']['val/bleu']:.1f}" if result else "-"
        table.add_row(
            trial.folder.name, trial.status()["state"], _ago(trial.folder), _bytes(_size([trial.folder])), score
        )
    console.print(table)
    whole = sum(_size(runs.glob(f"{part}/*")) for part in ("trials", "sweeps", "data"))
    console.print(f"{len(trials)} trials, {_bytes(whole)} under {runs}, vocabularies and token arrays among it")


class Waste(NamedTuple):
    path: Path
    why: str


def clean(runs: Path, console: Console) -> int:
    """List what is broken, orphaned or superseded; remove it when the answer is yes."""
    waste = find_waste(runs)
    if not waste:
        console.print(f"{runs}: nothing to clean")
        return 0
    table = _table("what", "why", "size")
    for one in waste:
        table.add_row(str(one.path.relative_to(runs)), one.why, _bytes(_size([one.path])))
    console.print(table)
    console.print(f"Remove {len(waste)}, {_bytes(_size(one.path for one in waste))} in all? [y/N] ", end="")
    try:
        answer = input()
    except EOFError:
        answer = ""
        console.print()
    if answer.strip().lower() not in ("y", "yes"):
        console.print("nothing was removed")
        return 0
    for one in waste:
        if one.path.is_dir():
            shutil.rmtree(one.path)
        else:
            one.path.unlink(missing_ok=True)
    console.print(f"removed {len(waste)}")
    return 0


def find_waste(runs: Path) -> list[Waste]:
    """What nobody will ask for again; not what the same command continues. Nothing may be at work there."""
    waste: list[Waste] = []
    kept: list[Trial] = []
    for trial in _trials(runs):
        status, finished = trial.status(), (trial.folder / "result.json").exists()
        if finished and trial.result() is None and os.access(trial.folder / "result.json", os.R_OK):
            waste.append(Waste(trial.folder, "broken: its result is damaged"))
        elif finished or any(trial.folder.glob("checkpoints/*.sha256")):
            kept.append(trial)
        elif status["state"] == "failed":
            waste.append(Waste(trial.folder, f"broken: failed ({status.get('why', 'see its log')})"))
        elif status["state"] == "new":
            waste.append(Waste(trial.folder, "broken: never begun"))
        else:
            kept.append(trial)
    waste += [Waste(trial.folder, "superseded: the same config has a newer result") for trial in _superseded(kept)]
    gone = {one.path for one in waste}
    kept = [trial for trial in kept if trial.folder not in gone]
    for trial in kept:
        if trial.result() and (trial.folder / "checkpoints").exists():
            waste.append(Waste(trial.folder / "checkpoints", "orphaned: its trial is finished"))
        waste += [Waste(path, "broken: never finished") for path in trial.folder.glob(".*")]
    used = {trial.data() for trial in kept}
    if None not in used:
        orphans = [path for path in sorted((runs / "data").glob("*")) if path.name not in used]
        waste += [Waste(path, "orphaned: no trial is of this text") for path in orphans]
    names = {trial.folder.name for trial in kept}
    for path in sorted((runs / "sweeps").glob("*/plan.json")):
        planned = planned_folders(path.parent)
        if planned is not None and not names & set(planned):
            waste.append(Waste(path.parent, "orphaned: none of its trials is left"))
    return waste


def _superseded(trials: list[Trial]) -> Iterable[Trial]:
    """Finished trials of which a newer one says the same of the same text: a part or the core has changed since."""
    newest: dict[str, Trial] = {}
    for trial in sorted((trial for trial in trials if trial.result()), key=lambda trial: trial.result()["finished"]):
        result = trial.result()
        same = json.dumps([result["scale"], result["config"], trial.data()], sort_keys=True)
        if same in newest:
            yield newest[same]
        newest[same] = trial


def _trials(runs: Path) -> list[Trial]:
    return [Trial(path) for path in sorted((runs / "trials").glob("*")) if path.is_dir()]


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(
            heading, overflow="fold", justify="right" if heading in ("age", "size", "val/bleu") else "left"
        )
    return table


def _age(path: Path) -> float:
    """Seconds since anything in it was written."""
    return time.time() - max((file.st_mtime for file in _files(path)), default=time.time())


def _ago(path: Path) -> str:
    seconds = _age(path)
    unit, size = next(((u, n) for u, n in (("d", 86400), ("h", 3600), ("min", 60)) if seconds >= 2 * n), ("s", 1))
    return f"{seconds / size:.0f} {unit}"


def _files(path: Path) -> list[os.stat_result]:
    """Of every file in it; one that goes while we look is not there."""
    found = []
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(FileNotFoundError):
            if not file.is_dir():
                found.append(file.stat())
    return found


def _size(paths: Iterable[Path]) -> int:
    """Bytes on disk; a file that two trials share counts once."""
    return sum({(file.st_dev, file.st_ino): file.st_size for path in paths for file in _files(path)}.values())


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
