"""Put the finished trials of a scale into sweeps/results, which the tables of its pages are compared with.

    python tests/benchmarks/archive.py SCALE RUNS [NAME]
    python tests/benchmarks/archive.py --looks      decides the looks of all archived sweeps anew, by their results
    python tests/benchmarks/archive.py              only writes sweeps/results/tables.csv and the pages' tables anew
    python tests/benchmarks/archive.py --figures    draws the pages' pictures of differences anew
    python tests/benchmarks/archive.py --ids        gives the archived trials the ids that they have today

Adds to sweeps/results/NAME.tar.xz, by default SCALE.tar.xz, what a table needs of each trial of a runs folder: results,
scores of sentences and identity, without weights and text. A trial that an archive has already stays as it is; those of
a NAME such as replications/base were trained once more, so that the two can be compared. Paths of the machine are left
out, and losses of sentences have six decimals. Of a sweep with looks it adds the plan and the decisions, and of a
search the study and best.yaml. Then every row of the tables whose commands stand in sweeps/README.md and RESULTS.md is
written into sweeps/results/tables.csv, and the cells of the tables of these pages are written anew. Which rows these
show, and what sentences say of them, is not.

--ids is for a change of what an id is made of, while the code of the components is that of the trials. It makes each
identity anew, from the config and the code that are here, and puts the new ids in the place of the old ones.
"""

import csv
import io
import json
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from tables import COMMAND, PAGES, ROOT, printed, shipped_pages

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.shared_options import sweep_folder
from transformer_pl.plan.sweep_file import Sweep, read_sweep
from transformer_pl.report.__main__ import main as report
from transformer_pl.report.decisions import read_decisions
from transformer_pl.runtime.files import write_json
from transformer_pl.sweep.sweep_options import SweepOptions, read_options
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import CORE_REVISION, Identity
from transformer_pl.trials.runs_folder import RunsFolder, corpus_of_trials, trained_config
from transformer_pl.trials.trial_folder import TrialFolder
from transformer_pl.trials.trial_of import trial_of

RESULTS = ROOT / "sweeps" / "results"
SCORES = ("BLEU", "bits/byte", "F1", "Δ BLEU", "Δ bits/byte", "Δ F1")
COLUMNS = ("row", "PPL", "PPL / base", "PPL / base 95 %", "p of PPL", *SCORES, "Δ 95 %", "p", "seeds", "step")
PICTURE = re.compile(r"^    python -m transformer_pl.(?:sweep|report) (.*)$|^!\[.*\]\((figures/.*)\)$", re.MULTILINE)
PRINTED = ("paper PPL / base", "paper Δ BLEU", "Narang et al. 2021 Δ BLEU")
FILES = ("env.json", "identity.json", "result.json", "scores.*.jsonl", "status.json")
NLL = re.compile(r'(?<="nll": )[^,}]+')  # of a sentence; what follows the sixth decimal is a third of an archive
OF_LOOKS, OF_SEARCHES = ("plan.json", "look_*.json"), ("study.journal", "best.yaml")


def add_trials(scale: str, runs: Path, trials: Path, known: Container[str]) -> int:
    """Copy the trials of a scale, but those with known names, and return their number."""
    added = 0
    for result in sorted((runs / "trials").glob("*/result.json")):
        target = trials / result.parent.name
        if json.loads(result.read_text())["scale"] == scale and target.name not in known and not target.exists():
            target.mkdir(parents=True)
            for file in (file for pattern in FILES for file in result.parent.glob(pattern)):
                text = without_paths(file.read_text()).replace("-dirty", "")
                (target / file.name).write_text(NLL.sub(lambda found: f"{float(found[0]):.6f}", text))
            added += 1
    return added


def without_paths(text: str) -> str:
    """The runs folder becomes `runs`, a folder with text only keeps its name, and commands lose its option."""
    text = re.sub(r'(--runs[= ])[^" ]+', r"\1runs", re.sub(r' --set data\.path=[^" ]+', "", text))
    return re.sub(r'("data\.path": "|data\.path=)[^" ]*/', r"\1", re.sub(r'[^" ]*/(sweeps/\w+\.yaml)', r"\1", text))


def add_sweeps(runs: Path, sweeps: Path) -> None:
    """Copy the plan and the decisions of each sweep with looks, and the study of each search.

    A sweep's folder has the name that it has without `--set data.path=FOLDER`.
    """
    for files in (OF_LOOKS, OF_SEARCHES):
        for found in (runs / "sweeps").glob(f"*/{files[-1]}"):
            copied = {file.name: without_paths(file.read_text()) for name in files for file in found.parent.glob(name)}
            folder = found.parent
            if plan := copied.get("plan.json"):
                options, sweep = sweep_of(json.loads(plan))
                folder = sweep_folder(sweep, options)
            (sweeps / folder.name).mkdir(parents=True, exist_ok=True)
            for name, text in copied.items():
                (sweeps / folder.name / name).write_text(text)


def sweep_of(plan: Mapping[str, Any]) -> tuple[SweepOptions, Sweep]:
    """The sweep of an archived plan, and the options of its command."""
    options = read_options(shlex.split(plan["command"])[3:])
    given = (options.scale, options.seeds, options.set, None, options.looks, options.base_seeds)
    return options, read_sweep(options.file, *given)


def decide_anew(folder: Path) -> int:
    """Write the looks of sweeps, and what was decided at them, in the form that the code has now. Returns how many."""
    plans = [file for file in folder.glob("sweeps/*/plan.json") if [*file.parent.glob("look_*.json")]]
    for file in plans:
        plan = json.loads(file.read_text())
        options, sweep = sweep_of(plan)
        runs = RunsFolder(folder)
        trials = plan_trials(sweep, runs, partial(corpus_of_trials, runs=runs))
        for stored, trial in zip(plan["trials"], trials, strict=True):
            stored |= {"id": trial.id, "folder": trial.folder.name}
        for old in file.parent.glob("look_*.json"):
            old.unlink()
        file.unlink()
        decisions = first = read_decisions(options.file, sweep, trials, file.parent)
        while later := decisions.decide():
            decisions = later
        (file.parent / "lock").unlink(missing_ok=True)
        write_json(file, plan | {"looks": first.plan})
    return len(plans)


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """A folder with the files of an archive, which is then written anew with the files that are there."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        if archive.exists():
            with tarfile.open(archive) as old:
                old.extractall(folder, filter="data")
        yield Path(folder)
        whole = Path(beside, "whole.tar.xz")
        with tarfile.open(whole, "w:xz", preset=9) as new:
            for one in sorted(Path(folder).glob("*/*")):
                new.add(one, arcname=one.relative_to(folder), filter=without_owner)
        shutil.copy(whole, archive)
        print(f"{archive}: {len(list(Path(folder).glob('trials/*')))} trials in all")


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    mode = 0o755 if member.isdir() else 0o644
    return member.replace(mtime=0, uid=0, gid=0, uname="", gname="", mode=mode, deep=False)


@contextmanager
def shipped_runs() -> Iterator[str]:
    """A runs folder with all archived trials."""
    with tempfile.TemporaryDirectory() as runs:
        for archive in RESULTS.glob("*.tar.xz"):
            with tarfile.open(archive) as trials:
                trials.extractall(runs, filter="data")
        yield runs


def draw_figures() -> None:
    with shipped_runs() as runs:
        words = ""
        for command, figure in PICTURE.findall(shipped_pages()):
            words = command or words
            if figure:
                with redirect_stdout(io.StringIO()) as out:
                    report(
                        [*shlex.split(words.replace("sweeps/", f"{ROOT}/sweeps/")), "--runs", runs, "--format", "html"]
                    )
                drawn = Path(out.getvalue().splitlines()[-1]).parent / "figures"
                (first,) = [*drawn.glob("differences.svg"), *drawn.glob("scales.svg")]
                shutil.copy(first, RESULTS.parent / figure)


def write_tables() -> None:
    with shipped_runs() as runs, (RESULTS / "tables.csv").open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["sweep", *COLUMNS, *PRINTED], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for words in COMMAND.findall(shipped_pages()):
            text = printed([*words.replace("sweeps/", f"{RESULTS.parent}/").split(), "--runs", runs, "--format", "md"])
            lines = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
            lines = [[cell.strip() for cell in line] for line in lines if not line[0].startswith(" **")]
            head, _, *rows = lines or [[], []]  # of a sweep whose trials are not here
            writer.writerows({"sweep": words} | dict(zip(head, row, strict=True)) for row in rows)


def write_page() -> None:
    """Write the cells of the tables of both pages anew, as tables.csv has them, by the command above each."""
    shipped = {}
    for line in csv.DictReader((RESULTS / "tables.csv").read_text(encoding="utf-8").splitlines()):
        shipped.setdefault(line["sweep"], {})[line["row"]] = line
    for page in PAGES:
        _write_page(page, shipped)


def _write_page(page: Path, shipped: dict[str, dict[str, dict[str, str]]]) -> None:
    known, head, lines = {}, [], []
    for text in page.read_text(encoding="utf-8").splitlines():
        if match := COMMAND.fullmatch(text):
            known = shipped.get(match[1], {})
        cells = text[1:-1].split("|")
        head = cells if text.startswith("|row|") else head if text.startswith("|") else []
        if head and cells[0] in known and cells != head:
            own = known[cells[0]]
            cells = [own.get(name, cell) for name, cell in zip(head, cells, strict=True)]
            text = f"|{'|'.join(cells)}|"
        lines.append(text)
    page.write_text("\n".join([*lines, ""]), encoding="utf-8")


def identity_of(trial: TrialFolder) -> Identity:
    """The identity that a trial has today, on the text that it was trained on."""
    before = trial.identity()
    assert before["core"] == CORE_REVISION, f"{trial.name} has the result of another core"
    corpus = Corpus(before["data"], "", lambda split: iter(()))
    today = trial_of(trained_config(trial, trial.result()), corpus, RunsFolder(trial.runs)).identity
    return Identity({**today.inputs, **{key: before[key] for key in before if key == "teachers"}})


def renew_ids(folder: Path) -> int:
    """Give all trials in a folder the ids of today, and return how many of these are new.

    The id of a trial depends on that of its start, so this goes on until all stay.
    """
    found = {trial: identity_of(trial) for trial in map(TrialFolder, sorted(folder.glob("trials/*")))}
    ids = {Identity(trial.identity()).weights: today.weights for trial, today in found.items()}
    ids |= {trial.id: today.trial for trial, today in found.items()}
    for file in [*folder.glob("trials/*/result.json"), *folder.glob("sweeps/*/*")]:
        text = re.sub(r"\b[0-9a-f]{12}\b", lambda word: ids.get(word[0], word[0]), file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")
    for trial, today in found.items():
        write_json(trial.path / "identity.json", today.inputs)
        trial.path.rename(trial.path.with_name(trial.name.removesuffix(trial.id) + today.trial))
    changed = sum(old != new for old, new in ids.items())
    return changed and changed + renew_ids(folder)


def main(scale: str, runs: str, name: str = "") -> None:
    known = set[str]()
    if not name.startswith("replications/"):
        with shipped_runs() as shipped:
            known = {trial.name for trial in Path(shipped, "trials").iterdir()}
    with unpacked(RESULTS / f"{name or scale}.tar.xz") as folder:
        print(f"{add_trials(scale, Path(runs), folder / 'trials', known)} trials added")
        add_sweeps(Path(runs), folder / "sweeps")


if __name__ == "__main__":
    for_all = {"--looks": decide_anew, "--ids": renew_ids}
    if sys.argv[1:] == ["--figures"]:
        draw_figures()
    elif change := for_all.get(" ".join(sys.argv[1:])):
        for archive in sorted(RESULTS.glob("*.tar.xz")):
            with unpacked(archive) as files:
                print(f"{change(files)} changed")
    else:
        if sys.argv[1:]:
            main(*sys.argv[1:])
        write_tables()
        write_page()
