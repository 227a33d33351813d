"""The table of a search: every trial, the best first, with what was drawn for it."""

from collections import Counter
from typing import Any

from transformer_pl.config import without_section
from transformer_pl.report.cells import marked
from transformer_pl.report.notes import exemption_note, machines_note
from transformer_pl.report.render import Column, Table
from transformer_pl.search.results import SearchResults
from transformer_pl.search.space import OF_MODEL
from transformer_pl.search.study import short_value
from transformer_pl.trials.flops import short_number
from transformer_pl.trials.trial import Trial


def search_table(results: SearchResults) -> Table:
    """The table of a search: the drawn values, the goals, the parameters and the state of every trial, with notes."""
    rows = results.records
    names = [f"#{row['trial']}" + (" base" if row["base"] else "") for row in rows]
    columns = [Column("trial", [marked(name, row["exempt"]) for name, row in zip(names, rows, strict=True)])]
    for key in results.search.space:
        columns.append(Column(without_section(key), [_cell(key, row[key]) for row in rows], setting=True))
    for metric in results.metrics:
        cells = [_cell(metric, row[metric]) for row in rows]
        columns.append(Column(metric, cells, drop_rank=None if metric in results.search.goals else 1))
    columns.append(Column("state", [row["state"] for row in rows]))
    return Table([column for column in columns if any(column.cells)], rows, _notes(results))


def _notes(results: SearchResults) -> list[str]:
    counts = Counter(record["state"] for record in results.records)
    described = ", ".join(f"{count} {state}" for state, count in counts.items())
    total, cap = len(results.records), results.search.run_cap
    exempt = "; ".join(sorted({record["exempt"] for record in results.records} - {None}))
    folders = [results.runs / "trials" / one["folder"] for one in results.records if one["params"]]
    machines = [Trial(folder).machine() for folder in folders]
    notes = [
        f"{total} of {cap} trials: {described}. Scale {results.search.scale}.",
        f"All have seed {results.search.seed}. The best of many looks better than it is, because it was chosen: "
        "train it with other seeds to confirm it.",
        exemption_note(exempt),
        machines_note(machines),
    ]
    return [*filter(None, notes)]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return short_number(value) if name in OF_MODEL else short_value(value)
