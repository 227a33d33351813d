"""Looks at a table while its rows are trained: at which levels rows are found, and which rows need no more seeds.

At look l = 1..L every row that still trains has n_l seeds, and base has m_l. Whoever looks often finds more by chance,
so each look has a level a_l of its own, which together spend alpha. Z_kl, the difference of row k from base at look l
in standard errors, is drawn for K rows that do not differ, with the correlation that shared seeds give: a look has the
seeds of the one before it, and all rows share base. U_l is the share of draws whose max over k of |Z_kl| is as large.
The levels are those with which a table has any U_l <= a_l for the first time at look l with the probability
alpha (t_l - t_(l-1)), where t_l = n_l / n_L is the share of the seeds that are spent. This is the test of Dunnett with
looks (Magirr, Jaki and Whitehead 2012, "A generalized Dunnett test for multi-arm multi-stage clinical studies with
treatment selection"; Jennison and Turnbull 2000, "Group Sequential Methods").

A row stops early where it is found, where its interval shows that it is as good as base, or where it has little chance
to be found at the last look. That last rule can only lower the error, because it takes chances away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import scipy

from transformer_pl.table.moderation import SeedVariance
from transformer_pl.table.statistics import LEVEL, Estimate

ALPHA = 1 - LEVEL
DRAWS = 2**15  # of a table in which no row differs
LEAST_CHANCE = 0.1  # to be found at the last look, below which a row stops
Verdict = Literal["found", "within margin", "unlikely", "open"]


@dataclass(frozen=True)
class Looks:
    """When the rows of a table are looked at."""

    seeds: tuple[int, ...]  # n_l, which increase: of each row
    base_seeds: tuple[int, ...]  # m_l, of base
    rows: int  # K, that are tested: those with trainings of their own

    @classmethod
    def of(cls, seeds: Sequence[int], base_seeds: int, rows: int) -> "Looks":
        """base_seeds: at the last look. Before it base has the same share of its seeds as the rows have of theirs."""
        return _looks(tuple(seeds), tuple(math.ceil(n * base_seeds / seeds[-1]) for n in seeds), rows)

    def _drawn(self) -> np.ndarray:
        """|Z_kl| of tables in which no row differs, (DRAWS, rows, looks)."""
        rng, shape = np.random.default_rng(1), (DRAWS, self.rows, len(self.seeds))

        def means(seeds: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
            """Of standard normal scores of seeds, of which each look has those of the look before."""
            steps = np.sqrt(np.diff((0, *seeds))) * rng.standard_normal(shape)
            return steps.cumsum(-1) / np.array(seeds)

        errors = means(self.seeds, shape) - means(self.base_seeds, (DRAWS, 1, len(self.seeds)))
        return np.abs(errors) / np.sqrt(self._variances)

    @property
    def _variances(self) -> np.ndarray:
        """Of the difference of a row from base at each look, if the scores of seeds have the variance 1."""
        return 1 / np.array(self.seeds) + 1 / np.array(self.base_seeds)

    @cached_property
    def _largest(self) -> np.ndarray:
        """max_k |Z_kl| of the same tables, (DRAWS, looks)."""
        return self._drawn().max(1)

    @cached_property
    def _by_chance(self) -> np.ndarray:
        """U_l of the same tables, (DRAWS, looks)."""
        return scipy.stats.rankdata(-self._largest, axis=0) / DRAWS

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """a_l: at look l a row is found where its corrected p is at most that."""
        spent = [math.floor(ALPHA * n / self.seeds[-1] * DRAWS) for n in (0, *self.seeds)]  # tables that are wrong
        levels, still = list[float](), np.ones(DRAWS, bool)
        for look, (before, now) in enumerate(pairwise(spent)):
            levels.append(float(np.sort(self._by_chance[still, look])[now - before - 1]))
            still &= self._by_chance[:, look] > levels[-1]
        return tuple(levels)

    def p_value(self, corrected: Sequence[float]) -> float:
        """The p of a row that has these corrected p-values at its looks: how often any row of a table in which none
        differs comes as near to its levels. It is below alpha exactly where the row is found."""
        spread = ALPHA / np.array(self.levels)
        least = float((np.array(corrected) * spread[: len(corrected)]).min())
        at_most = least / ALPHA * sum(self.levels)  # by the sum over looks, which is exact where p is tiny
        share = float(((self._by_chance * spread).min(1) <= least).mean())
        p = min(share, at_most) if share else at_most
        return min(1.0, p if least <= ALPHA else max(p, ALPHA))

    def verdict(self, look: int, change: Estimate, corrected: float, margin: float | None = None) -> Verdict:
        """Whether a row needs no more seeds after a look, and why.

        change: its difference from base, with the interval of this look. margin: a difference within it counts as none.
        """
        low, high = change.interval()
        if corrected <= self.levels[look]:
            return "found"
        if margin is not None and -margin <= low and high <= margin:
            return "within margin"
        is_last = look + 1 == len(self.seeds)
        return "open" if is_last or self.chance(look, change) >= LEAST_CHANCE else "unlikely"

    def chance(self, look: int, change: Estimate) -> float:
        """The chance that a row is found at the last look, if its true difference is the one that this look sees.

        1 - Phi((c SE_L - |d|) / sqrt(V_L (1 - V_L / V_l))), where V is the variance of the difference d by seeds, at
        this look and at the last one; SE_L^2 is V_L and the variance by sentences, which more seeds do not lower; and c
        is the quantile that belongs to the level of the last look.
        """
        now, end = (self.seeds[look], self.base_seeds[look]), (self.seeds[-1], self.base_seeds[-1])
        last = tuple(
            SeedVariance(part.variance * n / most, part.freedom + most - n)
            for part, n, most in zip(change.parts, now, end, strict=False)  # a row with base's weights has one part
        )
        variance = sum(part.variance for part in last)
        left = variance * (1 - variance / (sum(part.variance for part in change.parts) or 1))
        needed = change._replace(parts=last, degrees_of_freedom=None).half_width(self.level_of_one)
        missing = needed - abs(change.value)
        return float(scipy.stats.norm.sf(missing / math.sqrt(left))) if left > 0 else float(missing <= 0)

    @property
    def most_trainings(self) -> int:
        """Of a table in which no row stops before the last look."""
        return self.rows * self.seeds[-1] + self.base_seeds[-1]

    def expected_trainings(self) -> float:
        """The mean number of trainings of a table in which no row differs, and all rows spread alike."""
        drawn, variances = self._drawn(), self._variances
        critical = [np.quantile(self._largest[:, look], 1 - level) for look, level in enumerate(self.levels)]
        missing = critical[-1] * np.sqrt(variances[-1]) - drawn[..., :-1] * np.sqrt(variances[:-1])
        chance = scipy.stats.norm.sf(missing / np.sqrt(variances[-1] * (1 - variances[-1] / variances[:-1])))
        stops = (drawn[..., :-1] >= critical[:-1]) | (chance < LEAST_CHANCE)
        last = np.insert(stops, len(self.seeds) - 1, True, -1).argmax(-1)  # the look at which a row stops
        return float(np.array(self.seeds)[last].sum(1).mean() + np.array(self.base_seeds)[last.max(1)].mean())

    @cached_property
    def level_of_one(self) -> float:
        """The level of a row's interval at the last look, with which those of all rows hold together."""
        return float(1 - 2 * scipy.stats.norm.sf(np.quantile(self._largest[:, -1], 1 - self.levels[-1])))


_looks = cache(Looks)  # a command asks for the same ones several times, and their levels take a sixth of a second
