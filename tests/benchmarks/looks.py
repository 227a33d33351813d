"""How often a table that is looked at while it trains has a wrong star, and what the looks save.

    python tests/benchmarks/looks.py [--tables 1000] [--looks 3,5,8,12] [--base-seeds 24]

The scores are simulated, so that the truth is known. In four settings no row differs: 18 rows whose spreads differ, 18
of which half spread five times as far, 18 with one that spreads ten times as far, and five rows. In the last one 12 of
18 rows differ, by one to six standard deviations of a seed. Each table is looked at, and its rows stopped, as a sweep
does. Printed are the share of tables with a wrong star, the share in which all intervals of all looks hold the truth,
the share of the true differences that are found, and the trainings of a table.
"""

import argparse
import sys

import numpy as np

from transformer_pl.table.looks import Looks
from transformer_pl.table.rows import Measure, Row
from transformer_pl.table.statistics import Sample
from transformer_pl.table.table import compare_at

SENTENCES, SCORE = 250, Measure("score", "score")


def settings(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The spreads and the true differences of the rows of a table, base first, by the name of the setting."""
    spreads = rng.uniform(0.5, 1.5, 19)
    wide, wild = spreads.copy(), spreads.copy()
    wide[1::2] *= 5
    wild[-1] *= 10
    differences = np.append(np.zeros(7), np.repeat(np.arange(1.0, 7), 2) * rng.choice([-1, 1], 12))
    none = np.zeros(19)
    return {
        "no row differs": (spreads, none),
        "half spread five times as far": (wide, none),
        "one wild row": (wild, none),
        "five rows": (spreads[:6], none[:6]),
        "12 of 18 differ": (spreads, differences),
    }


def simulate(rng, spreads: np.ndarray, truth: np.ndarray, looks: Looks) -> tuple[bool, bool, float, int]:
    """Look at a table: whether it has a wrong star, whether all intervals hold, the share found, and its trainings."""
    rows, seeds = len(spreads), max(looks.seeds[-1], looks.base_seeds[-1])
    by_sentence = rng.normal(0, 8, SENTENCES) + rng.normal(0, 0.25 * np.sqrt(SENTENCES / 2), (rows, 1, SENTENCES))
    by_seed = spreads[:, None, None] * rng.normal(size=(rows, seeds, 1)) + rng.normal(0, 1, (rows, seeds, SENTENCES))
    table = [
        Row(name=str(i), samples={"score": Sample(y.mean(1), y)}, is_base=not i)
        for i, y in enumerate(truth[:, None, None] + by_sentence + by_seed)
    ]
    last, found, hold = {row.name: len(looks.seeds) - 1 for row in table}, np.zeros(rows, bool), True
    still = set(range(1, rows))
    for look in range(len(looks.seeds)):
        for i, one in enumerate(compare_at(looks, look, table, SCORE, table[0], last)):
            if one.estimate is None:
                continue
            low, high = one.estimate.interval()
            hold &= bool(low <= truth[i] <= high)
            if i in still and (verdict := looks.verdict(look, one.estimate, one.p_value)) != "open":
                last[one.row.name], found[i] = look, verdict == "found"
                still.remove(i)
        if not still:
            break
    trained = looks.base_seeds[look] + sum(looks.seeds[last[row.name]] for row in table[1:])
    differs = truth != 0
    return bool(found[~differs][1:].any()), hold, float(found[differs].mean()) if differs.any() else np.nan, trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--looks", default="3,5,8,12")
    parser.add_argument("--base-seeds", type=int, default=24)
    options = parser.parse_args()
    seeds = [int(word) for word in options.looks.split(",")]
    print("| setting | tables with a wrong star | all intervals hold | found | trainings |\n| :- | -: | -: | -: | -: |")
    for name in settings(np.random.default_rng(1)):
        rng = np.random.default_rng(2)
        looks = Looks.of(seeds, options.base_seeds, len(settings(rng)[name][0]) - 1)
        tables = [simulate(rng, *settings(rng)[name], looks) for _ in range(options.tables)]
        wrong, hold, found, trained = np.mean(tables, 0)
        print(f"| {name} | {wrong:.1%} | {hold:.1%} | {found:.1%} | {trained:.1f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
