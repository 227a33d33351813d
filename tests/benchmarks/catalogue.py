"""Makes the catalogue in ablations/README.md, from the files of the ablations and sweeps/results/tables.csv.

It also makes the tables of slots and of laws in ablations/SLOTS.md, from the types and from the functions that test
them.

python tests/benchmarks/catalogue.py
"""

import ast
import csv
import importlib
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

from torch import nn

from transformer_pl.check import slot_of
from transformer_pl.config import COMPONENTS, Component, custom_components, sizes
from transformer_pl.config.components import before_options, options_of_class
from transformer_pl.config.levels import Level, resolve, scale_level
from transformer_pl.laws import (
    callbacks,
    effects,
    interventions,
    law,
    losses,
    optimizers,
    resuming,
    schedules,
    tasks,
    tokenizers,
    trainings,
)
from transformer_pl.laws import components as of_models
from transformer_pl.model import Transformer
from transformer_pl.model import slots as slots_of_models
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.published import read_row_names
from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.files import write_atomically
from transformer_pl.trials.flops import forward_costs

ROOT = Path(__file__).parents[2]
SLOTS, README, TABLES = (
    ROOT / "ablations" / "SLOTS.md",
    ROOT / "ablations" / "README.md",
    ROOT / "sweeps" / "results" / "tables.csv",
)
BEGIN, END = "<!-- made by tests/benchmarks/catalogue.py -->\n", "<!-- its end -->\n"
HEADER = "|key|ablation, with its options|what it is|source|weights|Δ BLEU at demo (95 %)|\n|:-|:-|:-|:-|-:|-:|\n"
AUTHORS = r"[A-Z][\w-]+(?:(?:, [A-Z][\w-]+)* and [A-Z]\w+| et al\.| Team)?"
SOURCE = re.compile(rf"({AUTHORS} \d{{4}})(?:, \w+)?,?\s+\(?arXiv:(\d+\.\d+)")


def components(path: Path) -> dict[str, tuple[str, type]]:
    """The components of a file, without those that an architecture in it brings: by name, the key and the class."""
    code = path.read_text(encoding="utf-8")
    module = importlib.import_module(f"ablations.{path.stem}")
    found = {}
    for node in ast.parse(code).body:
        if isinstance(node, ast.ClassDef) and not re.search(rf"with_own\([^)]*\b{node.name}\)", code):
            component = getattr(module, node.name)
            try:
                key = slot_of(path.stem, component)
            except Exception:  # a class that helps another
                continue
            is_built = "site" in inspect.signature(component).parameters or issubclass(component, Transformer)
            if not key.startswith("model.") or (
                is_built and (key == "model.embedding" or component.forward is not nn.Module.forward)
            ):
                found[node.name] = key, component
    return found


def options(key: str, component: type) -> list[str]:
    """The options of a component's constructor."""
    path = f"{component.__module__}.{component.__qualname__}"
    return [*options_of_class(Component(path=path), before_options(key))]


def sentence(text: str) -> str:
    """The first sentence of a docstring, without its sources."""
    text = re.sub(r"\s*\([^()]*(?:\d{4}|arXiv)[^()]*\)", "", " ".join(text.split("\n\n")[0].split()))
    return re.split(r"(?<!et al)\.(?: (?=[A-Z`])|$)", text)[0].replace("|", "\\|")


def sources(text: str) -> list[str]:
    """Links to the papers that a docstring names."""
    return [f"[{who}](https://arxiv.org/abs/{number})" for who, number in SOURCE.findall(" ".join(text.split()))]


def weights(key: str, path: str) -> str:
    """How many more weights than base a model of scale demo has, in percent; empty for what is no part of a model."""
    if not key.startswith("model."):
        return ""
    models = [resolve([scale_level("demo"), Level("catalogue", keys)]) for keys in ({}, {key: path})]
    base, ours = (cost.params for cost in forward_costs([(sizes(one.model, 1000), 1, 11, 11) for one in models]))
    return f"{ours / base - 1:+.1%}".replace("+0.0%", "as base").replace("-0.0%", "as base").replace("%", " %")


def measured() -> dict[str, str]:
    """By the name of a class: the difference and its interval, from the first row of demo's tables with this class.

    Rows with this class alone come before rows that have others, too, and then tables whose base is the paper's before
    others. If the base of a table has components that are not the paper's, they are named.
    """
    differences = list[tuple[list[str], str, str]]()  # the classes of a row, its difference, and what base has
    lines = csv.DictReader(TABLES.read_text(encoding="utf-8").splitlines())
    for words, rows in itertools.groupby(lines, key=lambda line: line["sweep"]):
        file, _, options = words.partition(" ")
        if file == "sweeps/table3.yaml" or re.search("--(scale|looks)", options) or "language" in file:
            continue
        sweep = read_sweep(ROOT / file, None, None, {})
        if sweep.scale == "demo":
            own = read_row_names(sweep, ROOT / file, None)
            row_of = {entry.name: entry.row for entry in own.rows if entry.row} if own else {}
            of_base = custom_components(sweep.base.model).values()
            base = "".join(f" from {component.path.rpartition('.')[2]}" for component in of_base)
            for row in rows:
                classes = re.findall(r"=([A-Z]\w+)", row_of.get(row["row"], row["row"]))
                differences.append((classes, f"{row['Δ BLEU']} ({row['Δ 95 %']})", base))
    found: dict[str, str] = {}
    for classes, difference, base in sorted(differences, key=lambda one: (len(one[0]), bool(one[2]))):
        for name in classes:
            found.setdefault(name, difference + base)
    return found


def catalogue() -> str:
    """The table: a row for each component."""
    rows: list[tuple[Any, ...]] = []
    differences = measured()
    for path in sorted((ROOT / "ablations").glob("[!_]*.py")):
        document = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found_here = components(path)
        for name, (key, component) in found_here.items():
            own = sentence(inspect.getdoc(component) or "")
            is_alone = [other for other, _ in found_here.values()].count(key) == 1
            about = sentence(document) if is_alone else f"{sentence(document)}. {own}"
            found = sources(document) or sources(inspect.getdoc(component) or "")
            shown = f"[`{name}`]({path.name})" + "".join(f" `{option}`" for option in options(key, component))
            cells = (shown, about, ", ".join(found), weights(key, f"ablations.{path.stem}.{name}"))
            rows.append(
                (list(COMPONENTS).index(key) if key in COMPONENTS else 99, key, *cells, differences.get(name, ""))
            )
    return HEADER + "".join(f"|`{key}`|{'|'.join(cells)}|\n" for _, key, *cells in sorted(rows))


KINDS = {
    "component": of_models,
    "optimizer": optimizers,
    "schedule": schedules,
    "loss": losses,
    "tokenizer": tokenizers,
    "task": tasks,
    "loss, optimizer, schedule, batches": effects,
    "callback": callbacks,
    "intervention": interventions,
    "training": trainings,
    "stopped training": resuming,
}


def laws() -> str:
    """A table of the laws of each kind: the sentences of the functions that test them."""
    lines = ["|part|law|what it says|\n|:-|:-|:-|\n"]
    for kind, module in KINDS.items():
        lines += [f"|{kind}|`{name}`|{law.sentence(one)}|\n" for name, one in law.laws_of(module).items()]
    return "".join(lines)


def slots() -> str:
    """A table of what each slot is called with, from the types of the slots."""
    lines = ["|slot|called as|what it is given, and returns|\n|:-|:-|:-|\n"]
    for slot, kind in slots_of_models.SLOTS.items():  # whose docstrings begin with their keys
        for name, arguments in slots_of_models.call_signatures(slot).items():
            call = arguments if name == "__call__" else f".{name}{arguments}"
            of_slot, of_call = (" ".join((inspect.getdoc(one) or "").split()) for one in (kind, getattr(kind, name)))
            lines.append(f"|{of_slot.removesuffix('.')}|`{call}`|{of_call}|\n")
    return "".join(lines)


def written(page: Path, *texts: str) -> str:
    """A page with these texts in the places of what this script made before."""
    before, *parts = page.read_text(encoding="utf-8").split(BEGIN)
    made = (f"{BEGIN}\n{text}\n{END}{part.partition(END)[2]}" for text, part in zip(texts, parts, strict=True))
    return before + "".join(made)


def main(argv: list[str]) -> int:
    write_atomically(README, written(README, catalogue()))
    write_atomically(SLOTS, written(SLOTS, slots(), laws()))
    return 0


if __name__ == "__main__":
    run_command(main)
