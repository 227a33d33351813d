"""The plan as it is printed: a table with a line for each row of the sweep, and what is left to do."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from transformer_pl.config import SIZE_NAMES, Config, effective_sizes, nominal_sizes, sizes
from transformer_pl.experiments.cost import ASSUMED_LENGTH, short_number, short_numbers, training_cost
from transformer_pl.experiments.plan import CostEstimate, Plan, PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.runtime.terminal import counted, fits, print_table, say
from transformer_pl.trials.why_new import reasons_by_names

WRAPPED_NAME = 20  # columns of a row's name where the terminal is narrow, or more for a longer word
LONG = 10 * 3600.0  # seconds from which time is told in hours
COMPARED = ("params", "flops", "steps")  # what --compare knows


def print_plan(
    plan: Plan,
    missing: Sequence[PlannedTrial],
    console: Console,
    compare: str | None = None,
    at_once: int = 1,
    here: bool = True,
) -> None:
    """Print every row with its trials: what differs, nominal and effective sizes, cost, time, and what is done.

    missing: the trials that are to be trained. compare: one of COMPARED; adds a column with how far each row is from
    base in it. at_once: how many trials run at a time. here: whether on this machine.
    """
    sweep, trials, estimates = plan
    states = [planned.trial.state() for planned in trials]
    say(console, f"{sweep.name} at scale {sweep.scale}: {counted(len(trials), 'trial')}, {len(missing)} to train")
    base, rows = _both_sizes(sweep.base), [_both_sizes(row.configs[0]) for row in sweep.rows]
    varied = [name for name in base if any(row[name] != rows[0][name] for row in rows)]
    if shared := [f"{name}={rows[0][name]}" for name in base if name not in varied]:
        say(console, f"every row: {', '.join(shared)}")
    columns = {name: [str(row[name]) for row in rows] for name in varied}
    comparison = {f"{compare} vs base": _compare_with_base(sweep, compare)} if compare else {}
    table = _plan_table(plan, states, columns | comparison)
    if not fits(console, table) and _narrowest(console, table) > console.width:
        say(console, f"base: {', '.join(f'{name}={base[name]}' for name in varied)}")
        comparison = dict(zip(["vs base"], comparison.values(), strict=False))  # it names less, and is narrower
        differing = [[f"{name}={row[name].effective}" for name in varied if row[name] != base[name]] for row in rows]
        table = _plan_table(plan, states, {"sizes": [" ".join(sizes) for sizes in differing]} | comparison)
    print_table(console, table)
    if any(size.nominal != size.effective for row in rows for size in row.values()):
        say(console, "a>b: a is the size as configured, b what it is at this scale's width and depth")
    if any(estimate.assumed for estimate in estimates.values()):
        prepares = "the first training, or --measure, prepares it"
        say(console, f"FLOPs: for sentences of {ASSUMED_LENGTH} tokens, until the text is prepared ({prepares})")
    if any(estimate.by_flops and estimate.seconds is not None for estimate in estimates.values()):
        say(console, "~: estimated by FLOPs from finished trials, of other rows or with other numbers of steps")
    say(console, "FLOPs (of matrix products alone) and time are those of one trial")
    if missing:
        say(console, _describe_work_left(missing, [estimates[planned.row] for planned in missing], at_once, here))
    if len(sweep.rows) > 1 and sweep.base_row is None:
        remedy = "add `base` to variant, or base's value to the values of a key"
        say(console, f"the table will have no differences, because base is not a row of this sweep; {remedy}")
    named = zip(trials, states, strict=True)
    new = {planned.name: planned.identity.inputs for planned, state in named if state == "new"}
    runs = trials[0].trial.folder.parents[1]
    for reason, names in reasons_by_names(new, [planned.identity.inputs for planned in trials], runs).items():
        say(console, f"to be trained, because a finished trial differs ({reason}): {', '.join(names)}")


def _narrowest(console: Console, table: Table) -> int:
    """The columns that a table needs where the names of its rows are broken."""
    return Measurement.get(console, console.options.update(width=1000), table).minimum


def _describe_work_left(
    missing: Sequence[PlannedTrial], estimates: Sequence[CostEstimate], at_once: int, here: bool
) -> str:
    """estimates: of each trial that is to be trained."""
    seconds = [estimate.seconds for estimate in estimates if estimate.seconds is not None]
    if len(seconds) < len(estimates):
        remedy = "; --plan --measure measures it" if here else ""
        return f"remaining training time: unknown, as no finished trial is comparable{remedy}"
    about = "about " if any(estimate.by_flops for estimate in estimates) else ""
    total = sum(seconds)

    def time(seconds: float) -> str:
        return f"{seconds / 3600:,.0f} h" if total >= LONG else f"{seconds / 60:.0f} min"

    together = f"; {about}{time(max(total / at_once, *seconds))}, {at_once} at a time" if at_once > 1 else ""
    devices = [one.config.trainer.devices * one.config.trainer.num_nodes for one in missing]
    hours = sum(each * count for each, count in zip(seconds, devices, strict=True)) / 3600
    price = f": {hours:,.1f} device hours" if max(devices) > 1 else ""
    return f"{about}{time(total)} of training left to do, if trials run one after the other{price}{together}"


def _time_cells(estimates: Sequence[CostEstimate]) -> list[str]:
    """The time of a trial of each row, in one unit."""
    in_hours = max((one.seconds or 0 for one in estimates), default=0) >= LONG

    def cell(seconds: float) -> str:
        return f"{seconds / 3600:,.1f} h" if in_hours else f"{seconds:.0f} s"

    return [
        "unknown" if one.seconds is None else f"{'~' if one.by_flops else ''}{cell(one.seconds)}" for one in estimates
    ]


def _plan_table(plan: Plan, states: Sequence[str], columns: dict[str, list[str]]) -> Table:
    """states: of the trials. columns: those between the row's name and its cost, each with a cell for every row.

    `sizes` is for narrow terminals: names and sizes then take several lines, broken between words.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1 if "sizes" in columns else 2, 0, 0))
    longest_word = max(cell_len(word) for row in plan.sweep.rows for word in row.name.split())
    table.add_column("row", width=max(longest_word, WRAPPED_NAME) if "sizes" in columns else None)
    for heading in columns:
        wraps = heading == "sizes"
        table.add_column(heading, justify="left" if wraps else "right", no_wrap=not wraps)
    for heading in ("params", "FLOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trials", no_wrap=True)
    states_by_row: dict[int, Counter[str]] = {index: Counter() for index in range(len(plan.sweep.rows))}
    for planned, state in zip(plan.trials, states, strict=True):
        states_by_row[planned.row][state] += 1
    estimates = [plan.estimates[index] for index in range(len(plan.sweep.rows))]
    params, times = short_numbers([one.cost.params for one in estimates]), _time_cells(estimates)
    for index, row in enumerate(plan.sweep.rows):
        table.add_row(
            row.name,
            *(cells[index] for cells in columns.values()),
            params[index],
            short_number(estimates[index].cost.flops),
            times[index],
            ", ".join(f"{count} {state}" for state, count in states_by_row[index].items()),
        )
    return table


def _compare_with_base(sweep: Sweep, compare: str) -> list[str]:
    """How much more than base each row has: `+12%`."""

    def amount(config: Config) -> float:
        if compare == "steps":
            return config.steps
        model = sizes(config.model, config.data.vocab_size)
        cost = training_cost(model, config.steps, config.data.batch_tokens, ASSUMED_LENGTH, ASSUMED_LENGTH)
        return cost.params if compare == "params" else cost.flops

    base = amount(sweep.base)
    return [f"{amount(row.configs[0]) / base - 1:+.0%}" for row in sweep.rows]


class _Size(NamedTuple):
    nominal: int  # as the file says it
    effective: int  # at this scale's width and depth

    def __str__(self) -> str:
        return f"{self.nominal}" if self.nominal == self.effective else f"{self.nominal}>{self.effective}"


def _both_sizes(config: Config) -> dict[str, _Size]:
    effective = effective_sizes(config)
    nominal = nominal_sizes(config.model) | {"model.max_steps": config.optim.max_steps}
    return {
        name: _Size(nominal[f"model.{name}"], effective[f"effective.{name}"]) for name in (*SIZE_NAMES, "max_steps")
    }
