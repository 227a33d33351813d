"""The table of a search: every trial, the best first, with what was drawn for it."""

from collections import Counter
from pathlib import Path
from typing import Any

from transformer_pl.config import without_section
from transformer_pl.plan.shared_options import TableOptions
from transformer_pl.report.tables import Report
from transformer_pl.runtime.terminal import short_number
from transformer_pl.search.results import BEST, BEST_FILE, FRONT, SearchResults, find_results, fresh_seeds
from transformer_pl.search.space import COST_METRICS
from transformer_pl.search.study import INFEASIBLE, short_value, shown_number
from transformer_pl.table.cells import marked
from transformer_pl.table.formats import Column, Table
from transformer_pl.table.notes import exemption_note, machines_note, signature_note
from transformer_pl.trials.trial_folder import TrialFolder


def search_report(results: SearchResults) -> Report:
    """The report of a search."""
    search = results.search

    def draw_page(folder: Path, title: str, table: Table) -> None:
        from transformer_pl.search.search_page import write_search_page  # matplotlib takes a second

        write_search_page(results, folder, title, table)

    return Report(search.name, search.project, search.scale, search_table(results), draw_page)


def search_records(
    file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False
) -> list[dict[str, Any]]:
    """A record of each trial of a search. planned: whether there may be none."""
    if (results := find_results(file, content, options, planned)) is None:
        return []
    labels = {"sweep": results.search.name, "scale": results.search.scale, "seed": results.search.seed}
    return [labels | record for record in results.records]


def search_table(results: SearchResults) -> Table:
    """The table of a search: the drawn values, the goals, the parameters and the state of every trial, with notes."""
    rows = results.records
    names = [marked(f"#{row['trial']}" + " base" * row["base"], bool(row["exempt"])) for row in rows]

    def column(key: str, name: str, page: int = 1, rank: int | None = None) -> Column:
        return Column(name, [_cell(key, row[key]) for row in rows], drop_rank=rank, page=page)

    columns = [column("trial", "trial", page=0)._replace(cells=names)]
    columns += [column(key, without_section(key), page=2) for key in results.search.space]  # last on the page
    for metric in results.metrics:
        columns.append(column(metric, metric, rank=None if metric in results.search.goals else 1))
    columns.append(column("state", "state"))
    return Table(columns, rows, _notes(results))


def _notes(results: SearchResults) -> list[str]:
    counts = Counter(record["state"] for record in results.records)
    described = ", ".join(f"{count} {state}" for state, count in counts.items())
    total, cap = len(results.records), results.search.run_cap
    exempt = sorted({record["exempt"] for record in results.records} - {None})
    folders = [results.runs / "trials" / record["folder"] for record in results.records if record["params"]]
    machines = [TrialFolder(folder).machine() for folder in folders]
    invalid = [trial for trial in results.trials if INFEASIBLE in trial.user_attrs]
    why = [f" #{shown_number(trial)}: {trial.user_attrs[INFEASIBLE].splitlines()[0]}." for trial in invalid[:1]]
    notes = [
        f"{total} of {cap} trials: {described}.{''.join(why)} Scale {results.search.scale}.",
        _chosen_note(results),
        exemption_note(exempt),
        machines_note(machines),
        signature_note(result.signature for folder in folders if (result := TrialFolder(folder).result())),
    ]
    return [*filter(None, notes)]


def _chosen_note(results: SearchResults) -> str:
    """Why the scores of the best trials are too good, and what to train."""
    note = f"All have seed {results.search.seed}."
    if not any(record["state"] in (BEST, FRONT) for record in results.records):
        return note
    if not results.best_sweep:
        return f"{note} None is better than base."
    several = len(results.search.goals) > 1
    note += " The front looks" if several else " The best of many looks"
    note += " better than it is, because it was chosen: "
    return f"{note}{BEST_FILE} trains it, and base, with the seeds {', '.join(map(str, fresh_seeds(results.search)))}."


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return short_number(value) if name in COST_METRICS else short_value(value)
