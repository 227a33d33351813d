"""The figures of a sweep: which ones its results allow, and what stands in them."""

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from transformer_pl import figures
from transformer_pl.figures import Curve, Figure, Point
from transformer_pl.plan import Planned
from transformer_pl.render import Table
from transformer_pl.sweepfile import Sweep

Record = dict[str, Any]  # of a row: what Table.csv tells
BYPRODUCTS = ("model.d_k", "model.d_v")  # which follow from h and d_model where nobody sets them
COSTS = {"params": "parameters", "flops": "training FLOPs"}


def hang(sweep: Sweep, planned: Sequence[Planned], table: Table) -> dict[str, tuple[str, Figure]]:
    """By file name, each with its caption. `table` has a record for each row of the sweep."""
    found: dict[str, tuple[str, Figure]] = {}
    rows = {row.name: record for row, record in zip(sweep.rows, table.records, strict=True)}
    results: dict[str, Record] = {}  # of a row's first seed
    for one in planned:
        if result := one.trial.result():
            results.setdefault(sweep.rows[one.row].name, result)

    if differences := _points(rows, "val/bleu.difference", lambda name: 0.0):
        paper = {name: record["paper/bleu.difference"] for name, record in rows.items()}
        known = {name: value for name, value in paper.items() if value is not None}
        found["differences"] = ("Differences to base", figures.forest(differences, known))
    for stem, unit, per_step in (
        ("curves_steps", "steps", lambda result: 1.0),
        ("curves_flops", "training FLOPs", lambda result: result["flops"] / result["steps"]),
    ):
        curves = [_curve(sweep, planned, name, per_step(result)) for name, result in results.items()]
        if curves := [curve for curve in curves if curve.at]:
            found[stem] = (f"Validation perplexity by {unit}", figures.curves(curves, unit, "val/ppl"))
    for cost, unit in COSTS.items():
        points = _points(rows, "val/bleu", lambda name, cost=cost: results[name][cost])
        if len({point.cost for point in points}) > 1:
            found[f"front_{cost}"] = (f"BLEU against {unit}", figures.front(points, unit))
    if key := _one_number(table.records):
        points = _points(rows, "val/bleu", lambda name: rows[name][key])
        if len(points) > 2:
            found["grid"] = (f"BLEU over {key}", figures.grid(points, key.partition(".")[2]))
    return found


def _points(rows: dict[str, Record], metric: str, cost: Callable[[str], float]) -> list[Point]:
    """Of the rows that have an interval."""
    points = []
    for name, record in rows.items():
        low, high = record[f"{metric}.low"], record[f"{metric}.high"]
        if low is not None:
            value = record[metric] if metric in record else record[f"{metric}.mean"]
            points.append(Point(name, value, low, high, cost(name)))
    return points


def _curve(sweep: Sweep, planned: Sequence[Planned], name: str, per_step: float) -> Curve:
    """Of the trials that are finished: the others may end anywhere."""
    trials = [one.trial for one in planned if sweep.rows[one.row].name == name and one.trial.result()]
    validated = [[line for line in t.metrics() if "val/ppl" in line and "val/bleu" not in line] for t in trials]
    at = [[line["step"] * per_step for line in lines] for lines in validated if lines]
    return Curve(name, at, [[line["val/ppl"] for line in lines] for lines in validated if lines])


def _one_number(records: Sequence[Record]) -> str | None:
    """The key of the one number in which all rows differ, if there is one."""
    keys = [key for key in records[0] if key.partition(".")[0] in ("model", "optim", "data", "decode")]
    keys = [key for key in keys if key not in BYPRODUCTS] or keys
    numbers = all(isinstance(record[key], Real) for record in records for key in keys)
    return keys[0] if len(keys) == 1 and numbers else None
