"""The queue of a grid that is looked at while it trains: rows that are decided get no more seeds."""

from collections.abc import Sequence

from transformer_pl.plan.plan import Plan
from transformer_pl.plan.queue import ENDED, GridQueue, Remaining
from transformer_pl.report.decisions import Decisions
from transformer_pl.trials.trial import Trial, with_trunks


class LooksQueue(GridQueue):
    """The trials of the looks that are not decided.

    Those of one look are given out first, then base's of the next one, which is needed while any row goes on. Several
    commands act on the same decisions; one that finds nothing to train waits until the others have ended the look.
    """

    def __init__(self, plan: Plan, missing: Sequence[Trial], decisions: Decisions):
        super().__init__(missing, plan.estimates)
        self.decisions = decisions
        self._is_over = False  # whether nothing more can be decided
        self._news = described(decisions)
        self._drop_needless()
        self._go_on()

    def remaining(self) -> Remaining:
        needed = {trial.id for trial in with_trunks(self.decisions.trials)}
        left = [trial for trial in self.waiting if trial.id in needed]
        return Remaining(len(left), sum(self.estimates[trial.place].cost.flops for trial in left))

    def next(self, taken: set[str]) -> Trial | None:
        self._go_on()
        return super().next(taken)

    def ready(self) -> Sequence[Trial]:
        return self.decisions.needed(super().ready())

    def waits(self) -> str | None:
        if self.ready() or self._is_over:
            return super().waits()
        return "waiting for other commands, which train for the next look"

    def news(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def _go_on(self) -> None:
        """Decide what can be decided, when all trials of the next look have ended."""
        while not self._is_over and self._has_ended():
            known = len(self.decisions.taken)
            if decisions := self.decisions.decide():
                self.decisions = decisions
                self._news += described(decisions)[known:]
                self._drop_needless()
            self._is_over = decisions is None

    def _drop_needless(self) -> None:
        """Remove the checkpoints of the trials that no look needs any more."""
        needed = {trial.id for trial in with_trunks(self.decisions.trials)}
        for folder in (trial.folder for trial in self.decisions.planned if trial.id not in needed):
            if folder.checkpoints.exists() and not folder.lock.is_held():
                folder.drop_checkpoints()

    def _has_ended(self) -> bool:
        """Whether all trials that the next look needs have ended, here or elsewhere.

        One that had ended, and that another command has begun to train again and left, is given out again.
        """
        trials = [trial for of_row in self.decisions.at(self.decisions.looked).values() for trial in of_row]
        stranded = {trial.id for trial in self.stranded()}
        if any(trial.id in self.open - stranded or trial.folder.lock.is_held() for trial in trials):
            return False
        failed = stranded | {trial.id for trial in self.failed}  # which a full disk may not have let them say
        left = [trial for trial in trials if trial.id not in failed and trial.folder.state() not in (*ENDED, "refused")]
        self.add(left)
        return not left


def described(decisions: Decisions) -> list[str]:
    """A line for each decision: which rows were decided, and how."""
    lines = []
    for decision in decisions.taken:
        by_verdict: dict[str, list[str]] = {}
        for name, verdict in decision["verdicts"].items():
            by_verdict.setdefault(verdict, []).append(name)
        verdicts = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in by_verdict.items())
        look = decision["look"]
        lines.append(f"look {look}, after {decisions.looks.seeds[look - 1]} seeds a row: {verdicts or 'nothing'}")
    return lines
