"""How often the tests of a table find a difference where there is none, and how often its intervals hold the truth.

    python tests/benchmarks/chance.py [--trials 2000]            one row beside base
    python tests/benchmarks/chance.py --tables 500 [--rows 20]   whole tables, with rows of different spread
    python tests/benchmarks/chance.py --correlations 500         the interval of the rank correlation with the paper

Corpora of which everything is known (tests/chance.py). Alone: by the seeds of a row and by how far seeds spread, the
t-test and approximate randomisation stratified by seed, both at 5 %. In tables: by the seeds and by the factor by which
rows differ in their spread (the standard deviation of its logarithm is the factor's), the t-test with each row's own
variance and with those of moderation.py, which tables use.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, spearmanr

sys.path.insert(0, str(Path(__file__).parents[1]))
from chance import drawn

from transformer_pl.reporting.agreement import rank_correlation
from transformer_pl.reporting.stats import (
    Estimate,
    Sample,
    difference,
    estimate,
    holm,
    randomisation,
    sample,
    seed_prior,
)
from transformer_pl.tasks.translation import bleu

SPREADS = (0.0, 0.015, 0.05)
SENTENCES = 250
FACTORS = (1.0, 1.2, 1.8, 2.7)  # 1.8: that of the 20 rows at scale demo, of 2026-11-21
SPREAD, GAP = 0.115, 0.55  # of the logit: about 3 and 12 BLEU
TRUE_DIFFERENCES = 3
ENDS = (0.025, 0.975)  # the quantiles at the ends of a 95 % interval
# Of --correlations, in BLEU: the spread of true differences from base, how far the paper's are from them, and the
# spread of seeds, which differs between rows by a factor of 1.8.
DIFFERENCES, DISAGREEMENT, BLEU_SPREAD = 1.5, 1.0, 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--tables", type=int, help="tables of each kind")
    parser.add_argument("--rows", type=int, default=20, help="of a table, base among them")
    parser.add_argument("--seeds", default="3,5", help="of a row")
    parser.add_argument("--correlations", type=int, help="tables of each kind")
    options = parser.parse_args()
    if options.correlations:
        simulate_correlations(options.correlations)
    elif options.tables:
        simulate_tables(options.tables, options.rows, [int(seeds) for seeds in options.seeds.split(",")])
    else:
        simulate_pairs(options.trials)


def simulate_pairs(trials: int) -> None:
    print("| seeds | BLEU from seed to seed | t-test | randomisation | 95 % of a row |")
    print("| -: | -: | -: | -: | -: |")
    for spread in SPREADS:
        many = bleu(drawn(np.random.default_rng(1), 1, 50, 20_000, spread)[0].sum(1))
        for seeds in (2, 3, 5):
            rng, found = np.random.default_rng(seeds), np.zeros(3)
            for _ in range(trials):
                rows = drawn(rng, 2, seeds, SENTENCES, spread)
                row, base = (sample(one, bleu) for one in rows)
                low, high = estimate(row).interval()
                between, p_random = difference(row, base), randomisation(*rows, bleu, 200)
                found += (between.p_value < 0.05, p_random < 0.05, low < many.mean() < high)
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


# ---------------------------------------------------------------------------------------------------------------------
# The rank correlation with the paper


def with_replacement(scores: np.ndarray, published: np.ndarray) -> tuple[float, float]:
    """The percentile bootstrap that draws as many seeds of each row as it has, for comparison."""
    rows, seeds = scores.shape
    drawn = np.random.default_rng(0).integers(0, seeds, (500, rows, seeds))
    means = np.take_along_axis(scores[None], drawn, 2).mean(2)
    low, high = np.quantile([np.corrcoef(ranks, rankdata(published))[0, 1] for ranks in rankdata(means, axis=1)], ENDS)
    return float(low), float(high)


def simulate_correlations(tables: int) -> None:
    """How often the interval holds the rank correlation of as many other seeds, and of infinitely many."""
    print("| rows | seeds | other seeds | infinitely many | width | with replacement: other seeds | width |")
    print("| -: | -: | -: | -: | -: | -: | -: |")
    for rows in (4, 8, 19):
        for seeds in (2, 3, 5):
            rng, found = np.random.default_rng(seeds), np.zeros(5)
            for _ in range(tables):
                truth = rng.normal(0, DIFFERENCES, (rows, 1))
                published = truth.ravel() + rng.normal(0, DISAGREEMENT, rows)
                spread = BLEU_SPREAD * 1.8 ** rng.normal(size=(rows, 1)).clip(-2, 2)
                ours, others = (truth + spread * rng.normal(size=(rows, seeds)) for _ in range(2))
                of_others, of_all = (spearmanr(one.mean(1), published).statistic for one in (others, truth))
                bounds = rank_correlation(ours.tolist(), published.tolist()).interval
                assert bounds is not None
                (low, high), (from_low, from_high) = bounds, with_replacement(ours, published)
                held = [
                    one - 1e-9 <= value <= other + 1e-9  # correlations of few rows repeat
                    for one, value, other in (
                        (low, of_others, high),
                        (low, of_all, high),
                        (from_low, of_others, from_high),
                    )
                ]
                found += (held[0], held[1], high - low, held[2], from_high - from_low)
            other, every, width, drawn_other, drawn_width = found / tables
            cells = f"{other:.0%} | {every:.0%} | {width:.2f} | {drawn_other:.0%} | {drawn_width:.2f}"
            print(f"| {rows} | {seeds} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
