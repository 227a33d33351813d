"""The rows of a sweep beside the paper's Table 2: BLEU of the test set, and what the training cost."""

from collections.abc import Iterable, Sequence
from typing import Any

from transformer_pl.config import Config
from transformer_pl.experiments.cost import short_number
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting import cells
from transformer_pl.reporting.notes import diverged_notes, scale_notes
from transformer_pl.reporting.published import Beside, PublishedRow, hides_paper, read_costs
from transformer_pl.reporting.render import Column, Table
from transformer_pl.reporting.rows import RowResults, mean, read_rows
from transformer_pl.task import task_of

TITLES = (
    "test {}",
    "test {} tok.",
    "FLOPs counted",
    "device hours",
    "energy, kWh",
    "FLOPs by time",
    "paper {}",
    "paper FLOPs",
    "seeds",
)
TOKENISED = (
    "test BLEU tok. is of Moses tokens with compounds split at their hyphens: compare this one with the paper's."
)
ENERGY = (
    "energy: by the counters of a trial's GPUs, or without one of the machine's processors and memory, which include "
    "all else that ran there. With evaluation. Empty where a device reports none."
)
DECODED = (
    "Trials that took over the weights of a trial which differs in decoding alone are left out of device hours, energy "
    "and FLOPs by time: they cost no training."
)


def cost_table(sweep: Sweep, planned: Iterable[PlannedTrial], tflops: float, beside: Beside | None = None) -> Table:
    """The table of a sweep's test BLEU and cost from the results that are there; see `build_cost_table`."""
    return build_cost_table([row.name for row in sweep.rows], read_rows(sweep, planned), sweep.base, tflops, beside)


def build_cost_table(
    names: Sequence[str], rows: Sequence[RowResults], base: Config, tflops: float, beside: Beside | None = None
) -> Table:
    """Test BLEU and cost of every row, means over its finished seeds, and below them the paper's other systems.

    names: of the rows. tflops: the rate, in 10^12 operations a second, that one of their devices sustains. beside: as
    in `build_table`.
    """
    paper = None if hides_paper(beside, base.data) else read_costs(base.data)
    measure = task_of(base.data).measure
    published = paper.find_all([row.config for row in rows], base) if paper else [None] * len(rows)
    records, texts = [], []
    for name, results, printed in zip(names, rows, published, strict=True):
        records.append(_record(name, results, tflops, printed))
        texts.append([*_cells(records[-1], measure.name, cells.unmeasured(results)), cells.seed_counts(results)])
    for system in paper.others if paper else []:
        records.append(dict.fromkeys(records[0]) | {"name": system.label} | _printed(system, measure.name))
        texts.append([*_cells(records[-1], measure.name, ""), ""])
    columns = [Column("row", [record["name"] for record in records])]
    columns += [
        Column(title.format(measure.title), list(found))
        for title, found in zip(TITLES, zip(*texts, strict=True), strict=True)
    ]
    notes = [*scale_notes(base), *_notes(rows, tflops), *([f"Columns `paper`: {paper.source}."] if paper else [])]
    return Table([column for column in columns if any(column.cells)], records, notes)


def device_seconds(result: dict[str, Any]) -> float:
    """The wall time of a trial, its evaluation included, times the devices that it had."""
    config = result["config"]
    return result["wall_s"] * config["trainer.devices"] * config["trainer.num_nodes"]


def _record(name: str, row: RowResults, tflops: float, printed: PublishedRow | None) -> dict[str, Any]:
    score = row.measure.name
    trained = [result for result in row.done if not result.get("weights_of")]  # the others only decoded
    seconds = mean([device_seconds(result) for result in trained])
    told = [joules for result in trained if (joules := result.get("energy_j")) is not None]
    joules = mean(told) if len(told) == len(trained) else None
    return {
        "name": name,
        f"test/{score}": mean(row.values(f"test/{score}")),
        "test/bleu_tokenised": mean(row.values("test/bleu_tokenised")),
        "flops": mean([result["flops"] for result in row.done]),
        "device_hours": seconds and seconds / 3600,
        "energy_kwh": joules and joules / 3.6e6,
        "flops_by_time": seconds and seconds * tflops * 1e12,
        "seeds": len(row.done),
    } | _printed(printed, score)


def _printed(row: PublishedRow | None, score: str) -> dict[str, Any]:
    return {f"paper/{score}": row and row.score, "paper/flops": row and row.flops}


def _cells(record: dict[str, Any], score: str, unmeasured: str) -> list[str]:
    """The text of a record below TITLES.

    score: the name of the measure. unmeasured: what stands where a row has no result.
    """
    names = ("test/bleu_tokenised", f"paper/{score}", "paper/flops")
    tokenised, paper_score, paper_flops = (record[key] for key in names)
    return [
        cells.number(record[f"test/{score}"], ".1f") or unmeasured,
        cells.number(tokenised, ".1f"),
        short_number(record["flops"]) if record["flops"] else unmeasured,
        _amount(record["device_hours"]) or unmeasured,
        _amount(record["energy_kwh"]),
        short_number(record["flops_by_time"]) if record["flops_by_time"] else unmeasured,
        cells.number(paper_score, "g"),
        short_number(paper_flops) if paper_flops else "",
    ]


def _amount(value: float | None) -> str:
    """Three digits, or all before the point where there are more."""
    return cells.number(value, ".3g" if value is None or value < 1000 else ",.0f")


def _notes(rows: Sequence[RowResults], tflops: float) -> list[str]:
    described = task_of(rows[0].config.data).described
    results = [result for row in rows for result in row.done]
    signatures = dict.fromkeys(result["signature"] for result in results)
    return [
        *(f"test {described} on the test set; its signature is {signature}." for signature in signatures),
        *([TOKENISED] if any(row.values("test/bleu_tokenised") for row in rows) else []),
        "FLOPs counted: of the matrix products; a backward pass costs two forward passes.",
        "device hours: wall time of a trial, evaluation included, times its devices (a GPU, or a process on a CPU). "
        "Where several trials share a device, each has its whole time.",
        *([DECODED] if any(result.get("weights_of") for result in results) else []),
        *diverged_notes(rows),
        *([ENERGY] if any(result.get("energy_j") is not None for result in results) else []),
        f"FLOPs by time, as the paper counts: device time times {tflops:g} TFLOP/s, the rate that --cost states. The "
        "paper takes 9.5 TFLOP/s for its P100.",
    ]
