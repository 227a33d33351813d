"""How often the tests of a table find a difference where there is none, and how often its intervals hold the truth.

    python tests/benchmarks/chance.py [--trials 2000]            one row beside base
    python tests/benchmarks/chance.py --tables 500 [--rows 19]   whole tables, with rows of different spread

The corpora are simulated, so that the truth is known (tests/chance.py). One row beside base gets the t-test at 5 %, for
several numbers of seeds and spreads of them. Whole tables get three tests: Holm's correction with each row's own
variance, Holm's correction with the variances of moderation.py, and the test that tables use, which steps down from the
smallest p and takes into account that all rows share base's errors.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from chance import drawn

from transformer_pl.table.moderation import holm
from transformer_pl.table.statistics import (
    Estimate,
    Sample,
    correct,
    difference,
    estimate,
    sample,
    seed_prior,
)
from transformer_pl.tasks.translation import bleu

SPREADS = (0.0, 0.015, 0.05)
SENTENCES = 250
SPREADS_OF_ROWS = ((0.2, 1.1), (0.5, 0.5))  # BLEU from seed to seed, drawn uniformly; at scale multi30k: 0.1 to 1.7
WILD, WILD_SPREAD = (0, 1, 2), 10.0  # such rows spread as big did at multi30k, at equation 3's full rate
TRUE_DIFFERENCES, GAP = 6, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--tables", type=int, help="how many tables of each kind are simulated")
    parser.add_argument("--rows", type=int, default=19, help="rows of a table, base included")
    parser.add_argument("--seeds", default="3,5", help="numbers of seeds of a row")
    options = parser.parse_args()
    if options.tables:
        simulate_tables(options.tables, options.rows, [int(seeds) for seeds in options.seeds.split(",")])
    else:
        simulate_pairs(options.trials)


def simulate_pairs(trials: int) -> None:
    print("| seeds | BLEU from seed to seed | t-test | 95 % of a row |")
    print("| -: | -: | -: | -: |")
    for spread in SPREADS:
        many = bleu(drawn(np.random.default_rng(1), 1, 50, 20_000, spread)[0].sum(1))
        for seeds in (2, 3, 5):
            rng, found = np.random.default_rng(seeds), np.zeros(2)
            for _ in range(trials):
                row, base = (sample(one, bleu) for one in drawn(rng, 2, seeds, SENTENCES, spread))
                low, high = estimate(row).interval()
                found += (difference(row, base).p_value < 0.05, low < many.mean() < high)
            completed = " | ".join(f"{rate:.1%}" for rate in found / trials)
            print(f"| {seeds} | {many.std():.2f} | {completed} |", flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def holm_own(rows: Sequence[Sample]) -> list[tuple[Estimate, float]]:
    """Each row with its own variance, and Holm's correction; intervals by Bonferroni's."""
    return of_holm([difference(row, rows[0]) for row in rows[1:]])


def holm_moderated(rows: Sequence[Sample]) -> list[tuple[Estimate, float]]:
    """The same with moderated variances."""
    prior = seed_prior(rows)
    return of_holm([difference(row, rows[0], prior) for row in rows[1:]])


def of_holm(differences: Sequence[Estimate]) -> list[tuple[Estimate, float]]:
    level = 1 - 0.05 / len(differences)
    p_values = holm([one.p_value for one in differences])
    return [(one._replace(level=level), float(p)) for one, p in zip(differences, p_values, strict=True)]


def stepped_down(rows: Sequence[Sample]) -> list[tuple[Estimate, float]]:
    """The test that tables use."""
    return correct(rows[1:], rows[0], seed_prior(rows))


TESTS: dict[str, Callable] = {"Holm, own": holm_own, "Holm, moderated": holm_moderated, "stepped down": stepped_down}


def simulate_tables(tables: int, rows: int, numbers_of_seeds: Sequence[int]) -> None:
    """Print how many true differences have a star, how often any other row has one, and how often all intervals hold.

    In each table TRUE_DIFFERENCES rows differ from base by GAP, and `wild` rows spread far more than the others.
    """
    print("| seeds | spread of rows | wild rows | test | found | tables with a false star | all intervals hold |")
    print("| -: | -: | -: | :- | -: | -: | -: |")
    for seeds in numbers_of_seeds:
        for lowest, highest in SPREADS_OF_ROWS:
            for wild in WILD:
                rng, counts = np.random.default_rng(seeds), {name: np.zeros(3) for name in TESTS}
                for _ in range(tables):
                    truth, table = drawn_table(rng, rows, seeds, rng.uniform(lowest, highest, rows), wild)
                    for name, test in TESTS.items():
                        estimates, p_values = zip(*test(table), strict=True)
                        low, high = np.array([one.interval() for one in estimates]).T
                        stars = np.array(p_values) < 0.05
                        hold = (low <= truth) & (truth <= high)
                        counts[name] += (stars[truth != 0].mean(), stars[truth == 0].any(), hold.all())
                for name, of_test in counts.items():
                    rates = " | ".join(f"{rate:.1%}" for rate in of_test / tables)
                    print(f"| {seeds} | {lowest:g} to {highest:g} | {wild} | {name} | {rates} |", flush=True)


def drawn_table(rng, rows: int, seeds: int, spreads: np.ndarray, wild: int) -> tuple[np.ndarray, list[Sample]]:
    """The true differences from the first row, and the rows. A difference by sentences alone has a standard deviation
    of 0.25."""
    truth, n = np.zeros(rows), SENTENCES
    truth[1 : 1 + TRUE_DIFFERENCES] = GAP * rng.choice([-1, 1], TRUE_DIFFERENCES)
    spreads[rows - wild :] = WILD_SPREAD
    by_sentence = rng.normal(0, 8, n) + rng.normal(0, 0.25 * np.sqrt(n / 2), (rows, 1, n))
    by_seed = spreads[:, None, None] * rng.normal(size=(rows, seeds, 1)) + rng.normal(0, 1, (rows, seeds, n))
    return truth[1:], [Sample(y.mean(1), y) for y in truth[:, None, None] + by_sentence + by_seed]


if __name__ == "__main__":
    main()
