"""How often the tests of a table find a difference where there is none, and how often its intervals hold the truth.

    python tests/benchmarks/chance.py [--trials 2000]            one row beside base
    python tests/benchmarks/chance.py --tables 500 [--rows 20]   whole tables, with rows of different spread

Corpora of which everything is known (tests/chance.py). Alone: by the seeds of a row and by how far seeds spread, the
t-test at 5 %. In tables: by the seeds and by the factor by which rows differ in their spread (the standard deviation of
its logarithm is the factor's), the t-test with each row's own variance and with those of moderation.py, as in tables.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from chance import drawn

from transformer_pl.report.statistics import (
    Estimate,
    Sample,
    difference,
    estimate,
    holm,
    sample,
    seed_prior,
)
from transformer_pl.tasks.translation import bleu

SPREADS = (0.0, 0.015, 0.05)
SENTENCES = 250
FACTORS = (1.0, 1.2, 1.8, 2.7)  # 1.8: that of the 20 rows at scale demo, of 2026-11-21
SPREAD, GAP = 0.115, 0.55  # of the logit: about 3 and 12 BLEU
TRUE_DIFFERENCES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--tables", type=int, help="tables of each kind")
    parser.add_argument("--rows", type=int, default=20, help="of a table, base among them")
    parser.add_argument("--seeds", default="3,5", help="of a row")
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


def own(rows: Sequence[Sample]) -> list[tuple[Estimate, Estimate]]:
    """The mean of each row but the first, and its difference to the first: each row's own variance."""
    return [(estimate(row), difference(row, rows[0])) for row in rows[1:]]


def moderated(rows: Sequence[Sample]) -> list[tuple[Estimate, Estimate]]:
    """As tables do."""
    prior = seed_prior(rows)
    return [(estimate(row, prior), difference(row, rows[0], prior)) for row in rows[1:]]


VARIANCES: dict[str, Callable] = {"own": own, "moderated": moderated}


def simulate_tables(tables: int, rows: int, numbers_of_seeds: Sequence[int]) -> None:
    """Where no row differs from base: false alarms before Holm's correction, of all rows and of the quarter of them
    with the widest spread; coverage of a row's interval; tables with any false star. Then the share of three true
    differences that have a star."""
    print("| seeds | factor | variances | false alarms | of the widest | 95 % of a row | any false star | found |")
    print("| -: | -: | :- | -: | -: | -: | -: | -: |")
    gaps = np.zeros(rows)
    gaps[1 : 1 + TRUE_DIFFERENCES] = GAP
    grid = np.geomspace(SPREAD / 10, SPREAD * 10, 13)
    on_grid = [bleu(drawn(np.random.default_rng(1), 1, 50, 5000, one)[0].sum(1)).mean() for one in grid]
    for seeds in numbers_of_seeds:
        for factor in FACTORS:
            rng, found = np.random.default_rng(seeds), {name: np.zeros(5) for name in VARIANCES}
            for _ in range(tables):
                spread = SPREAD * factor ** rng.normal(size=rows).clip(-2, 2)
                truth = np.interp(np.log(spread), np.log(grid), on_grid)  # it falls a little as the spread grows
                widest = np.argsort(-spread[1:])[: max(1, rows // 4)]
                alike, unlike = (
                    [sample(one, bleu) for one in drawn(rng, rows, seeds, SENTENCES, spread[:, None, None], gap)]
                    for gap in (np.zeros(rows), gaps)
                )
                for name, estimates in VARIANCES.items():
                    means, between = zip(*estimates(alike), strict=True)
                    shift = truth[1:] - truth[0]
                    p = [one._replace(value=one.value - by).p_value for one, by in zip(between, shift, strict=True)]
                    bounds = np.array([one.interval() for one in means]).T
                    alarms, held = np.array(p) < 0.05, (bounds[0] < truth[1:]) & (truth[1:] < bounds[1])
                    stars = np.array(holm([one.p_value for _, one in estimates(unlike)])) < 0.05
                    any_star = min(holm(p)) < 0.05
                    of_true = stars[:TRUE_DIFFERENCES].mean()
                    found[name] += (alarms.mean(), alarms[widest].mean(), held.mean(), any_star, of_true)
            for name, counts in found.items():
                completed = " | ".join(f"{rate:.1%}" for rate in counts / tables)
                print(f"| {seeds} | {factor:g} | {name} | {completed} |", flush=True)


if __name__ == "__main__":
    main()
