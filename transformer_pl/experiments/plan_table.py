"""The plan as it is printed: a table of the rows, what is left to do, and what to beware of."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from transformer_pl.config import SIZE_NAMES, Config, effective_sizes, nominal_sizes
from transformer_pl.experiments.cost import ASSUMED_LENGTH, short_number, short_numbers
from transformer_pl.experiments.plan import CostEstimate, Plan, PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.runtime.terminal import counted, format_duration, say
from transformer_pl.trials.why_new import reasons_by_names


def print_plan(plan: Plan, missing: Sequence[PlannedTrial], console: Console, at_once: int = 1) -> None:
    """Print every row with its trials: what differs, nominal and effective sizes, cost, time, and what is done.

    missing: the trials that are to be trained, so many of them at once.
    """
    sweep, trials, estimates = plan
    states = [planned.trial.state() for planned in trials]
    say(console, f"{sweep.name} at scale {sweep.scale}: {counted(len(trials), 'trial')}, {len(missing)} to train")
    base = _sizes(sweep.base)
    say(console, f"base: {' '.join(base)}")
    console.print(_table(plan, states, base))
    if ">" in "".join(base):
        say(console, "a>b: a is the size as configured, b what it is at this scale's width and depth")
    if any(estimate.assumed for estimate in estimates.values()):
        say(console, f"FLOPs: for sentences of {ASSUMED_LENGTH} tokens, until the text is prepared")
    if missing:
        say(console, _describe_work_left([estimates[planned.row] for planned in missing], at_once))
    new = {one.name: one.identity.inputs for one, state in zip(trials, states, strict=True) if state == "new"}
    runs = trials[0].trial.folder.parents[1]
    for reason, names in reasons_by_names(new, [planned.identity.inputs for planned in trials], runs).items():
        say(console, f"to be trained, because a finished trial differs ({reason}): {', '.join(names)}")


def plan_notes(sweep: Sweep) -> list[str]:
    """What may waste a sweep: one line each."""
    notes = []
    if len(sweep.rows) > 1 and sweep.base_row is None:
        remedy = "add `base` to variant, or base's value to the values of a key"
        notes.append(f"the table will have no differences, because base is not a row of this sweep; {remedy}")
    if rows := [row.name for row in sweep.rows if row.configs[0].optim.warmup > row.configs[0].steps]:
        remedy = "the learning rate never reaches its peak; lower optim.warmup"
        notes.append(f"the warm-up does not end within the steps of {', '.join(rows)}: {remedy}")
    return notes


def _describe_work_left(estimates: Sequence[CostEstimate], at_once: int) -> str:
    """estimates: of each trial that is to be trained."""
    seconds = [estimate.seconds for estimate in estimates if estimate.seconds is not None]
    if len(seconds) < len(estimates):
        return "remaining training time: unknown, as no finished trial is comparable; --plan --measure measures it"
    left = max(sum(seconds) / at_once, *seconds) if at_once > 1 else sum(seconds)
    return f"about {format_duration(left)} of training left to do, {at_once} at a time"


def _table(plan: Plan, states: Sequence[str], base: Sequence[str]) -> Table:
    """states: of the trials. base: its sizes, of which a row shows those that differ."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    differing = [" ".join(size for size in _sizes(row.configs[0]) if size not in base) for row in plan.sweep.rows]
    for heading, cells in (("row", [row.name for row in plan.sweep.rows]), ("sizes", differing)):
        longest = max(len(word) for cell in cells for word in (cell or heading).split())  # is not broken
        table.add_column(heading, min_width=longest)
    for heading in ("params", "FLOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trials", no_wrap=True)
    counts = [Counter[str]() for _ in plan.sweep.rows]
    for planned, state in zip(plan.trials, states, strict=True):
        counts[planned.row][state] += 1
    estimates = [plan.estimates[index] for index in range(len(plan.sweep.rows))]
    params = short_numbers([one.cost.params for one in estimates])
    for index, (row, one) in enumerate(zip(plan.sweep.rows, estimates, strict=True)):
        time = "unknown" if one.seconds is None else f"~{format_duration(one.seconds)}"
        trials = ", ".join(f"{count} {state}" for state, count in counts[index].items())
        table.add_row(row.name, differing[index], params[index], short_number(one.cost.flops), time, trials)
    return table


def _sizes(config: Config) -> list[str]:
    """`N=6>2`: as the file says it, and as it is at this scale's width and depth; `h=8` where they are equal."""
    nominal = nominal_sizes(config.model) | {"model.max_steps": config.optim.max_steps}
    effective, words = effective_sizes(config), []
    for name in (*SIZE_NAMES, "max_steps"):
        written, built = nominal[f"model.{name}"], effective[f"effective.{name}"]
        words.append(f"{name}={written}" if written == built else f"{name}={written}>{built}")
    return words
