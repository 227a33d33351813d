"""What the looks at a sweep have decided, as the files beside its plan.json say.

The file of a decision states the planned looks, and the trials that it was made by. Whoever makes a table computes the
verdicts again from their results, so that no table says what its results do not show.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock

from transformer_pl.plan.plan import main_metric
from transformer_pl.plan.shared_options import TableOptions
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.sweep_rows import Grid, sweep_rows
from transformer_pl.report.sweep_table import outcomes_of, priors_of
from transformer_pl.runtime.command_line import words_of
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_json
from transformer_pl.table.comparison import compare
from transformer_pl.table.looks import Looks
from transformer_pl.table.row import Contrast, LookedAt
from transformer_pl.trials.records import LookRecord, LooksPlan
from transformer_pl.trials.runs_folder import DECIDE_ANEW, begun_looks, read_look
from transformer_pl.trials.trial import Trial, with_trunks

ANOTHER = "or give the sweep another name"


@dataclass(frozen=True)
class Decisions:
    """What is decided of a sweep, by all of its planned trials.

    A row is decided at each look until one stops it. A row with a trial that has failed or diverged is left out: it
    lags behind, and is decided when the trial is there.
    """

    sweep: Sweep
    planned: Sequence[Trial]
    folder: Path  # of the sweep's results
    plan: LooksPlan
    taken: Sequence[LookRecord] = ()  # in their order: of each look, and between them of rows that lagged behind

    @cached_property
    def looks(self) -> Looks:
        return planned_looks(self.sweep)

    @cached_property
    def base(self) -> str:
        """The name of base."""
        of_base = self.sweep.of_base  # which compares configs, and a queue asks for it several times a second
        assert of_base is not None  # see `read_sweep`
        return of_base.name

    @cached_property
    def looked(self) -> int:
        """How many looks were taken."""
        return max((decision["look"] for decision in self.taken), default=0)

    @cached_property
    def verdicts(self) -> Mapping[str, Sequence[str]]:
        """By row other than base: the verdict of each look that decided it."""
        each, names = [decision["verdicts"] for decision in self.taken], self._by_row.keys() - {self.base}
        return {name: [verdicts[name] for verdicts in each if name in verdicts] for name in names}

    @cached_property
    def stopped(self) -> Mapping[str, int]:
        """The rows that need no more seeds, with the look that decided it."""
        return {name: len(seen) - 1 for name, seen in self.verdicts.items() if seen[-1:] not in ([], ["open"])}

    @cached_property
    def last(self) -> Mapping[str, int]:
        """By row, the last look that it has seeds for: that which stopped it, or at which it lags, or the last one."""
        final = len(self.looks.seeds) - 1
        last = {
            name: self.stopped.get(name, len(seen) if len(seen) < self.looked else final)
            for name, seen in self.verdicts.items()
        }
        return last | {self.base: max(last.values())}

    def at(self, look: int) -> dict[str, list[Trial]]:
        """By row, the trials that a look needs. A row that was stopped before it keeps the seeds that it had then."""
        seeds = {name: self.looks.seeds[min(look, last)] for name, last in self.last.items()}
        seeds[self.base] = self.looks.base_seeds[min(look, self.last[self.base])]
        return {name: trials[: seeds[name]] for name, trials in self._by_row.items()}

    @property
    def trials(self) -> list[Trial]:
        """Those of the planned trials that are, or may still be, needed."""
        return [*chain(*self.at(len(self.looks.seeds) - 1).values())]

    def needed(self, waiting: Sequence[Trial]) -> list[Trial]:
        """Those of the waiting trials that are needed now: by the next look, or then by base for the one after it."""
        now = {trial.id for trial in with_trunks([*chain(*self.at(self.looked).values())])}
        following = {trial.id for trial in with_trunks(self.at(self.looked + 1)[self.base])} - now
        return [trial for ids in (now, following) for trial in waiting if trial.id in ids]

    def decide(self) -> "Decisions | None":
        """What is decided after one more decision, which is written, by the trials that the next look needs.

        Returns None where they decide nothing: no row goes on, or all that do, or base, have a trial without a result.
        Returns what another command has decided first; or the same again if it trains one of the trials.
        """
        for look in range(min(self.looked + 1, len(self.looks.seeds))):
            due, trials = self._due(look), self.at(look)
            decided = {name for name in due if _is_whole(trials[name])}
            by = self._decided_by(look, decided)
            if due and (decided or look == self.looked) and _is_whole(chain(*by.values())):
                return self._decided(look, decided, by)
        return None

    def _due(self, look: int) -> Set[str]:
        """The rows that a look decides, if all of their trials have results."""
        return {name for name, seen in self.verdicts.items() if len(seen) == look and name not in self.stopped}

    def _decided_by(self, look: int, decided: Collection[str]) -> dict[str, list[Trial]]:
        """By row, the trials that a look decides by. decided: the rows on which it decides, which need not be all."""
        others = {name for name, seen in self.verdicts.items() if len(seen) <= look and name not in self.stopped}
        return {name: trials for name, trials in self.at(look).items() if name in decided or name not in others}

    def _decided(self, look: int, decided: Set[str], by: Mapping[str, Sequence[Trial]]) -> "Decisions":
        results = {name: [trial.id for trial in trials] for name, trials in by.items()}
        found = self._compare(look, results)
        if any(trial.folder.lock.is_held() for trial in chain(*by.values())):
            return self  # another command trains one again, and its result may be gone
        verdicts = {name: self._verdict(look, found[name]) for name in by if name in decided}
        with FileLock(self.folder / "lock"):
            if self.again().taken == self.taken:
                decision = {"plan": self.plan, "look": look + 1, "results": results, "verdicts": verdicts}
                write_json(_path(self.folder, len(self.taken)), decision)
            return self.again()

    def again(self) -> "Decisions":
        """What is decided by now. Raises an InputError for a file that cannot be read, or that is of another plan."""
        files = enumerate(self.folder.glob("look_*.json"))
        now = replace(self, taken=[read_look(_path(self.folder, number)) for number, _ in files])
        now.check()
        return now

    def looked_at(self) -> LookedAt:
        """What the table states of the looks.

        Raises an InputError where a result is missing that a row was decided by, or shows another verdict now.
        """
        contrasts: dict[str, list[Contrast]] = {name: [] for name in self._by_row}
        if lacking := self.lacking:
            rule = f"must be there, as decisions were made by them, but {len(lacking)} are not"
            raise InputError(f"{self.folder}: results: {rule}: {lacking[0].name}; train them with the same command")
        for number, decision in enumerate(self.taken):
            look = decision["look"] - 1
            found = self._compare(look, decision["results"])
            for name, verdict in decision["verdicts"].items():
                if (shown := self._verdict(look, found[name])) != verdict:
                    what = f"verdicts: {name} = {verdict}: its results show `{shown}`"
                    raise InputError(f"{_path(self.folder, number)}: {what}; {DECIDE_ANEW}")
                contrasts[name].append(found[name])
            if look == len(contrasts[self.base]):
                contrasts[self.base].append(found[self.base])
        left_out = [name for name, seen in self.verdicts.items() if len(seen) <= self.last[name] < self.looked]
        return LookedAt(self.looks, self.plan["metric"], contrasts, left_out)

    @property
    def lacking(self) -> list[Trial]:
        """Trials that decisions were made by, and that have no result now, or are trained again by another command."""
        ids = {trial for decision in self.taken for trial in chain(*decision["results"].values())}
        used = [trial for trial in self.planned if trial.id in ids]
        return [trial for trial in used if trial.folder.result() is None or trial.folder.lock.is_held()]

    def check(self) -> None:
        """Raise an InputError for a decision that is not by the first trials of the rows that it needed."""
        for number, decision in enumerate(self.taken):
            before, look = replace(self, taken=self.taken[:number]), decision["look"] - 1
            by = before._decided_by(look, decision["verdicts"])
            ids = {name: [trial.id for trial in trials] for name, trials in by.items()}
            is_next = 0 <= look <= before.looked and decision["verdicts"].keys() <= before._due(look)
            if not is_next or ids != decision["results"] or decision["plan"] != self.plan:
                rule = "must be of this sweep's rows and first trials, but some are of other seeds, keys or code"
                raise InputError(f"{_path(self.folder, number)}: {rule}; undo the change, {ANOTHER}")

    @cached_property
    def _by_row(self) -> Mapping[str, list[Trial]]:
        rows = enumerate(self.sweep.rows)
        return {row.name: [trial for trial in self.planned if trial.place == place] for place, row in rows}

    def _compare(self, look: int, results: Mapping[str, Sequence[str]]) -> dict[str, Contrast]:
        """By row, how it differs from base by results of trials, with intervals that hold at all looks.

        A row that was stopped before stays among the tested ones, and so it counts in the correction of the others.
        """
        ids = {*chain(*results.values())}
        grid = Grid(self.sweep, [trial for trial in self.planned if trial.id in ids])
        rows = sweep_rows(grid, grid.task.measure)
        base, outcome = next(row for row in rows if row.is_base), outcomes_of(grid)[0]
        prior = priors_of(self.sweep).get(outcome.key)
        contrasts = compare(rows, outcome, base, 1 - self.looks.levels[look], prior)
        return {contrast.row.name: contrast for contrast in contrasts}

    def _verdict(self, look: int, contrast: Contrast) -> Any:
        if contrast.estimate is None or contrast.p_value is None:
            return "equal" if contrast.is_rounding else "open"
        return self.looks.verdict(look, contrast.estimate, contrast.p_value, self.plan["margin"])


def _is_whole(trials: Iterable[Trial]) -> bool:
    return all(trial.folder.result() for trial in trials)


def _path(folder: Path, number: int) -> Path:
    return folder / f"look_{number + 1}.json"


def planned_looks(sweep: Sweep) -> Looks:
    """The looks at a sweep that asks for some."""
    return Looks.of(sweep.looks, max(len(row.configs) for row in sweep.rows), len(sweep.rows) - 1)


def options_of_looks(plan: LooksPlan | None) -> dict[str, Any]:
    """The options for seeds and looks that plan these looks; empty for None."""
    if plan is None:
        return {}
    seeds = tuple(plan["seeds"][: plan["looks"][-1]])
    return {"seeds": seeds, "looks": tuple(plan["looks"]), "base_seeds": len(plan["seeds"])}


def read_decisions(
    file: Path, sweep: Sweep, planned: Sequence[Trial], folder: Path, margin: float | None = None
) -> Decisions | None:
    """What the looks at a sweep have decided; None for a sweep without looks.

    file: of the sweep. folder: of its results. margin: a difference within it counts as none; None: the planned one.
    Raises an InputError if the looks are not those with which the training began, and for a decision that is not by
    this sweep's trials.
    """
    begun = begun_looks(folder)
    first = next(filter(None, begun.values()), None)
    plan = _plan_of(sweep, first["margin"] if first and margin is None else margin) if sweep.looks else None
    for path, other in begun.items():
        if other != plan:
            rule = "must be those with which the training began, for the same rows, margin and seeds, in their order"
            words = " ".join(words_of(TableOptions(**options_of_looks(other)))) or "no looks"
            found = f"looks = {list(sweep.looks)}: {rule}: {words} ({path})"
            raise InputError(f"{file}: {found}; repeat them, {ANOTHER}")
    if plan is None:
        return None
    return Decisions(sweep, planned, folder, plan).again()


def _plan_of(sweep: Sweep, margin: float | None) -> LooksPlan:
    return {
        "looks": [*sweep.looks],
        "levels": [*planned_looks(sweep).levels],
        "seeds": [config.seed for config in max((row.configs for row in sweep.rows), key=len)],
        "rows": [row.name for row in sweep.rows],
        "metric": main_metric(sweep),
        "margin": margin,
    }
