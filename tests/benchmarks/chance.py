"""How often the tests of a table find a difference where there is none, and how often its intervals hold the truth.

    python tests/benchmarks/chance.py [--trials 2000]            one row beside base
    python tests/benchmarks/chance.py --tables 500 [--rows 19]   whole tables, with rows of different spread
    python tests/benchmarks/chance.py --documents 10             one row beside base, with so many sentences a document
    python tests/benchmarks/chance.py --power 300                how often a plan's difference is found
    python tests/benchmarks/chance.py --few 1000                 tables of one to three rows with the prior of a scale
    python tests/benchmarks/chance.py --chosen 1000 [--rows 10]  tables of equal rows: pairs, and a base that was chosen
    python tests/benchmarks/chance.py --wide 1000                the same, whose base spreads three times as far
    python tests/benchmarks/chance.py --retune 1000              how near to its optimum a row of --retune is trained

The corpora are simulated, so that the truth is known (tests/chance.py). One row beside base gets the t-test at 5 %, for
several numbers of seeds and spreads of them. Whole tables get two tests: Holm's correction with each row's own
variance, and the test that tables use, which has the variances of moderation.py, steps down from the smallest p and
takes into account that all rows share base's errors. In tables of equal rows the share with a wrong star is printed
beside the first row, beside the row with the lowest mean, corrected for the rows alone and as such a choice is
corrected, and of all pairs.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from chance import drawn
from scipy.stats import chi2

from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.table import statistics
from transformer_pl.table.moderation import Prior, holm
from transformer_pl.table.statistics import (
    Estimate,
    Sample,
    by_cluster,
    compared,
    correct,
    difference,
    differences_of_pairs,
    estimate,
    found_by_plan,
    sample,
    sample_of_seeds,
    seed_prior,
)
from transformer_pl.tasks.translation import bleu

statistics.DRAWS = 2**12  # of each test, a quarter of a table's: p = 0.05 then has a standard error of 0.003
SPREADS = (0.0, 0.015, 0.05)
SENTENCES = 250
SPREADS_OF_ROWS = ((0.2, 1.1), (0.5, 0.5))  # BLEU from seed to seed, drawn uniformly; at scale multi30k: 0.1 to 1.7
WILD, WILD_SPREAD = (0, 1, 2), 10.0  # such rows spread as big did at multi30k, at equation 3's full rate
TRUE_DIFFERENCES, GAP = 6, 2.0
FREEDOMS = (6.0, 2.5)  # of rows' variances: about what priors.py finds at even odds, and what a plan is cautious by


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--tables", type=int, help="how many tables of each kind are simulated")
    parser.add_argument("--documents", type=int, help="how many sentences a document has")
    parser.add_argument("--chosen", type=int, help="how many tables of each kind have a base that was chosen")
    parser.add_argument("--power", type=int, help="how many tables of each kind have differences as a plan finds them")
    parser.add_argument("--retune", type=int, help="how many rows try rates")
    parser.add_argument("--wide", type=int, help="how many tables of each kind have a base that spreads further")
    parser.add_argument("--few", type=int, help="how many tables of each kind have few rows")
    parser.add_argument("--rows", type=int, default=19, help="rows of a table, base included")
    parser.add_argument("--seeds", default="3,5", help="numbers of seeds of a row")
    options = parser.parse_args()
    if options.chosen:
        simulate_choices(options.chosen, options.rows, [int(seeds) for seeds in options.seeds.split(",")])
    elif options.retune:
        simulate_retune(options.retune)
    elif options.wide:
        simulate_wide(options.wide, options.rows, [int(seeds) for seeds in options.seeds.split(",")])
    elif options.few:
        simulate_few(options.few)
    elif options.power:
        simulate_power(options.power, options.rows, [int(seeds) for seeds in options.seeds.split(",")])
    elif options.tables:
        simulate_tables(options.tables, options.rows, [int(seeds) for seeds in options.seeds.split(",")])
    elif options.documents:
        simulate_documents(options.trials, options.documents)
    else:
        simulate_pairs(options.trials)


def simulate_documents(trials: int, document: int) -> None:
    """Print how often intervals of a difference and of a row hold, by sentences and by documents."""
    print("| seeds | documents | unit | 95 % of a difference | 95 % of a row |")
    print("| -: | -: | :- | -: | -: |")
    for seeds, documents in itertools.product((1, 3), (40, 100)):
        spread = 0.015 * (seeds > 1)  # the test of one seed is of this very training
        many = drawn(np.random.default_rng(1), 1, 8, 10_000 * document, spread, document=document)[0]
        truth = bleu(many.sum(1)).mean()
        rng, of_documents = np.random.default_rng(seeds), np.arange(documents).repeat(document)
        held = {"sentences": np.zeros(2), "documents": np.zeros(2)}
        for _ in range(trials):
            rows = drawn(rng, 2, seeds, documents * document, spread, document=document)
            for unit, known in (("sentences", None), ("documents", of_documents)):
                row, base = (sample(by_cluster(one, known), bleu) for one in rows)
                intervals = difference(row, base).interval(), estimate(row).interval()
                held[unit] += [low < true < high for (low, high), true in zip(intervals, (0, truth), strict=True)]
        for unit, count in held.items():
            print(f"| {seeds} | {documents} | {unit} | {' | '.join(f'{rate:.1%}' for rate in count / trials)} |")


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
    differences, level = [difference(row, rows[0]) for row in rows[1:]], 1 - 0.05 / (len(rows) - 1)
    p_values = holm([one.p_value for one in differences])
    return [(one._replace(level=level), float(p)) for one, p in zip(differences, p_values, strict=True)]


def stepped_down(rows: Sequence[Sample]) -> list[tuple[Estimate, float]]:
    """The test that tables use."""
    return correct(rows[1:], rows[0], seed_prior(rows))


TESTS: dict[str, Callable] = {"Holm, own": holm_own, "stepped down": stepped_down}


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


def simulate_few(tables: int) -> None:
    """Print how often tables of few rows have a wrong star, and how often a difference of 2 BLEU is found, where base
    spreads by 0.6 BLEU, without and with the prior of its scale."""
    print("| rows | spread of rows | wrong: own | wrong: prior | found: own | found: prior |")
    print("| -: | -: | -: | -: | -: | -: |")
    for rows in (1, 2, 3):
        for wider in (1, 3):
            rng, counts = np.random.default_rng(rows), np.zeros((2, 2))
            for _ in range(tables):
                scores = 0.6 * rng.normal(size=(rows + 1, 3)) * np.append(1, [wider] * rows)[:, None]
                for kind, gap in enumerate((0.0, GAP)):
                    scores[1] += gap
                    for way, prior in enumerate((None, Prior.of_scale(0.6, 3.0))):
                        table = dict(enumerate(map(sample_of_seeds, scores)))
                        of_rows = compared(table, 0, {*table} - {0}, of_scale=prior)
                        found = [of_rows[row].p_value < 0.05 for row in (range(1, rows + 1) if not gap else [1])]
                        counts[kind, way] += any(found)
            rates = " | ".join(f"{rate:.1%}" for rate in counts.ravel() / tables)
            print(f"| {rows} | {0.6 * wider:.1f} | {rates} |", flush=True)


def simulate_power(tables: int, rows: int, numbers_of_seeds: Sequence[int]) -> None:
    """Print how often a table finds the difference of which its plan says that it is found in 80 % of cases.

    All rows spread by 1, or their variances are drawn from the law of moderation.py with the same middle, by FREEDOMS.
    """
    print("| seeds | difference | rows spread alike | by 6 degrees of freedom | by 2.5 |\n| -: | -: | -: | -: | -: |")
    statistics.DRAWS = 2**10  # what is found hardly depends on them
    for seeds in numbers_of_seeds:
        rng, gap = np.random.default_rng(seeds), found_by_plan(1.0, seeds, rows - 1)
        counts = np.zeros(1 + len(FREEDOMS))
        for _ in range(tables):
            unlike = [np.sqrt(chi2.median(freedom) / rng.chisquare(freedom, rows)) for freedom in FREEDOMS]
            for kind, spreads in enumerate((np.ones(rows), *unlike)):
                scores = spreads[:, None] * rng.normal(size=(rows, seeds))
                scores[1:4] += gap * rng.choice([-1, 1], (3, 1))
                table = [*map(sample_of_seeds, scores)]
                counts[kind] += np.mean([p < 0.05 for _, p in stepped_down(table)[:3]])
        print(f"| {seeds} | {gap:.2f} | {' | '.join(f'{rate:.1%}' for rate in counts / tables)} |", flush=True)


def simulate_wide(tables: int, rows: int, numbers_of_seeds: Sequence[int]) -> None:
    """Print how often a table in which no row differs has a wrong star, whose base spreads three times as far as its
    rows, and how often a table says so of its base, with as many seeds of base and with three times as many."""
    print("| seeds | seeds of base | wrong | wrong, and nothing says that base spreads |\n| -: | -: | -: | -: |")
    for seeds, more in itertools.product(numbers_of_seeds, (1, 3)):
        rng, counts = np.random.default_rng(seeds), np.zeros(2)
        for _ in range(tables):
            scores = [3 * rng.normal(size=more * seeds), *rng.normal(size=(rows - 1, seeds))]
            of_rows = compared(dict(enumerate(map(sample_of_seeds, scores))), 0, range(1, rows))
            is_wrong = min(of_rows[row].p_value for row in range(1, rows)) < 0.05
            counts += is_wrong, is_wrong and not of_rows[0].is_wide
        print(f"| {seeds} | {more * seeds} | {' | '.join(f'{rate:.1%}' for rate in counts / tables)} |", flush=True)


def simulate_retune(rows: int) -> None:
    """Print how many rows are trained within a factor of two of their best rate, and how many rates each tries.

    The best rates are 0.1 to 10 times the file's. Half or twice the best rate costs a row 1.2 BLEU, as half of the rate
    costs base at scale multi30k; that of one training spreads by 0.7 BLEU, as at demo and captions, or by multi30k's.
    """
    sweep, key = read_sweep(Path(__file__).parents[2] / "sweeps" / "table3_A.yaml"), "optim.lr_scale"
    sweep = replace(sweep, rows=sweep.rows[:1])
    print("| rates at first | BLEU from seed to seed | within a factor of two | tried |\n| -: | -: | -: | -: |")
    for budget, spread in itertools.product((5, 8), (0.42, 0.7)):
        rng, near, tried = np.random.default_rng(budget), 0, 0
        for best in sweep.base.optim.lr_scale * 10 ** rng.uniform(-1, 1, rows):
            further, scores = plan_retuning(sweep, [key], budget, None), list[float]()
            while further:
                tuning, rates = further, [point[key] for point in (*further.points, *further.beyond.get(0, ()))]
                for rate in rates[len(scores) :]:
                    scores.append(spread * rng.normal() - 1.2 * math.log2(rate / best) ** 2)
                tries = [a_try(sweep.base, bleu) for bleu in scores]
                further = tuning.further(sweep, tries)
            chosen = tuning.best(sweep, tries).rows[0].configs[0].optim.lr_scale
            near, tried = near + (0.5 <= chosen / best <= 2), tried + len(tries)
        print(f"| {budget} | {spread} | {near / rows:.1%} | {tried / rows:.1f} |", flush=True)


def a_try(config, bleu: float) -> SimpleNamespace:
    """A finished trial, of which nothing but its score is known."""
    result = SimpleNamespace(metrics={"val/bleu": bleu})
    return SimpleNamespace(config=config, folder=SimpleNamespace(result=lambda: result))


def simulate_choices(tables: int, rows: int, numbers_of_seeds: Sequence[int]) -> None:
    """Print how often a table in which no row differs has a wrong star, whatever base is, and in any pair."""
    print("| seeds | wild rows | first row as base | the lowest, for the rows | the same, for all pairs | all pairs |")
    print("| -: | -: | -: | -: | -: | -: |")
    for seeds in numbers_of_seeds:
        for wild in WILD[:2]:
            rng, counts = np.random.default_rng(seeds), np.zeros(4)
            pairs = [(i, j) for i in range(rows) for j in range(i)]
            for _ in range(tables):
                spreads = rng.uniform(*SPREADS_OF_ROWS[0], rows)
                table = dict(enumerate(drawn_table(rng, rows, seeds, spreads, wild, differences=0)[1]))
                lowest = min(table, key=lambda row: table[row].scores.mean())
                found = []
                for base in (0, lowest):
                    of_rows = compared(table, base, {*table} - {base})
                    found.append(min(row.p_value for key, row in of_rows.items() if key != base))
                of_pairs = [p for _, p in differences_of_pairs([*table.values()], pairs)]
                chosen = [p for p, pair in zip(of_pairs, pairs, strict=True) if lowest in pair]
                found += min(chosen), min(of_pairs)
                counts += np.array(found) < 0.05
            rates = " | ".join(f"{rate:.1%}" for rate in counts / tables)
            print(f"| {seeds} | {wild} | {rates} |", flush=True)


def drawn_table(
    rng, rows: int, seeds: int, spreads: np.ndarray, wild: int, differences: int = TRUE_DIFFERENCES
) -> tuple[np.ndarray, list[Sample]]:
    """The true differences from the first row, and the rows. A difference by sentences alone has a standard deviation
    of 0.25."""
    truth, n = np.zeros(rows), SENTENCES
    truth[1 : 1 + differences] = GAP * rng.choice([-1, 1], differences)
    spreads[rows - wild :] = WILD_SPREAD
    by_sentence = rng.normal(0, 8, n) + rng.normal(0, 0.25 * np.sqrt(n / 2), (rows, 1, n))
    by_seed = spreads[:, None, None] * rng.normal(size=(rows, seeds, 1)) + rng.normal(0, 1, (rows, seeds, n))
    return truth[1:], [Sample(y.mean(1), y) for y in truth[:, None, None] + by_sentence + by_seed]


if __name__ == "__main__":
    main()
