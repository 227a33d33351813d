"""Put the finished trials of a scale into sweeps/results, which the tables of sweeps/README.md are compared with.

    python tests/benchmarks/archive.py SCALE RUNS [NAME]
    python tests/benchmarks/archive.py              only writes sweeps/results/tables.csv anew

Adds to sweeps/results/NAME.tar.xz, by default SCALE.tar.xz, what a table needs of each trial of a runs folder: results,
scores of sentences and identity, without weights and text. A trial that the archive has already stays as it is. Paths
of the machine are left out. Of a sweep with looks it adds the plan and the decisions. Then every row of the tables
whose commands stand in sweeps/README.md is written into sweeps/results/tables.csv.
"""

import csv
import json
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tables import COMMAND, ROOT, printed

RESULTS = ROOT / "sweeps" / "results"
COLUMNS = ("row", "PPL", "BLEU", "bits/byte", "Δ BLEU", "Δ bits/byte", "Δ 95 %", "p", "seeds", "step")
PRINTED = ("paper Δ BLEU", "Narang et al. 2021 Δ BLEU")
FILES = ("env.json", "identity.json", "result.json", "scores.val.jsonl", "status.json")


def add_trials(scale: str, runs: Path, trials: Path) -> int:
    """Copy the trials of a scale that the folder `trials` lacks, and return their number."""
    added = 0
    for result in sorted((runs / "trials").glob("*/result.json")):
        target = trials / result.parent.name
        if json.loads(result.read_text())["scale"] == scale and not target.exists():
            target.mkdir(parents=True)
            for name in FILES:
                (target / name).write_text(without_paths((result.parent / name).read_text()).replace("-dirty", ""))
            added += 1
    return added


def without_paths(text: str) -> str:
    return re.sub(r'(--runs[= ])[^" ]+', r"\1runs", text)


def add_looks(runs: Path, sweeps: Path) -> None:
    """Copy the plan and the decisions of each sweep with looks."""
    for decision in (runs / "sweeps").glob("*/look_*.json"):
        target = sweeps / decision.parent.name
        target.mkdir(parents=True, exist_ok=True)
        for file in (decision, decision.with_name("plan.json")):
            (target / file.name).write_text(without_paths(file.read_text()))


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    mode = 0o755 if member.isdir() else 0o644
    return member.replace(mtime=0, uid=0, gid=0, uname="", gname="", mode=mode, deep=False)


def write_tables() -> None:
    with tempfile.TemporaryDirectory() as runs, (RESULTS / "tables.csv").open("w", encoding="utf-8") as file:
        for archive in RESULTS.glob("*.tar.xz"):
            with tarfile.open(archive) as trials:
                trials.extractall(runs, filter="data")
        writer = csv.DictWriter(file, ["sweep", *COLUMNS, *PRINTED], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for words in COMMAND.findall((RESULTS.parent / "README.md").read_text(encoding="utf-8")):
            text = printed([*words.replace("sweeps/", f"{RESULTS.parent}/").split(), "--runs", runs, "--format", "md"])
            lines = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
            lines = [[cell.strip() for cell in line] for line in lines if not line[0].startswith(" **")]
            head, _, *rows = lines or [[], []]  # of a sweep whose trials are not here
            writer.writerows({"sweep": words} | dict(zip(head, row, strict=True)) for row in rows)


def main(scale: str, runs: str, name: str = "") -> None:
    archive = RESULTS / f"{name or scale}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        trials = Path(folder, "trials")
        if archive.exists():
            with tarfile.open(archive) as old:
                old.extractall(folder, filter="data")
        added = add_trials(scale, Path(runs), trials)
        add_looks(Path(runs), Path(folder, "sweeps"))
        whole = Path(folder, "whole.tar.xz")
        with tarfile.open(whole, "w:xz", preset=9) as new:
            for one in sorted(Path(folder).glob("*/*")):
                new.add(one, arcname=one.relative_to(folder), filter=without_owner)
        shutil.copy(whole, archive)
        print(f"{archive}: {added} trials added, {len(list(trials.iterdir()))} in all")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    write_tables()
