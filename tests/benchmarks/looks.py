"""How often a table that is looked at while it trains has a wrong star, and what the looks save.

    python tests/benchmarks/looks.py [--tables 1000] [--looks 3,5,8,12] [--base-seeds 24]
    python tests/benchmarks/looks.py --metric val/loss --looks 3,5 --base-seeds 10      as in the archive of captions

The scores are simulated, so that the truth is known. In four settings no row differs: 18 rows whose spreads differ, 18
of which half spread five times as far, 18 with one that spreads ten times as far, and five rows. In the last one 12 of
18 rows differ, by one to six standard deviations of a seed. Each table is looked at, and its rows stopped, as a sweep
does. Printed are the share of tables with a wrong star, the share in which all intervals of all looks hold the truth,
the share of the true differences that are found, and the trainings of a table. With --metric spreads and differences
are those of Table 3's rows at scale captions, in sweeps/results, and found are the rows among all of them.
"""

import argparse
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.table import statistics
from transformer_pl.table.comparison import compare
from transformer_pl.table.looks import Looks
from transformer_pl.table.row import Outcome, Row
from transformer_pl.table.statistics import Sample
from transformer_pl.trials.identity import row_identity
from transformer_pl.trials.runs_folder import RunsFolder, trained_config

statistics.DRAWS = 2**13  # of each test, half of a table's
SWEEPS, FILE = Path(__file__).parents[2] / "sweeps", "table3_without_big.yaml"
SENTENCES, SCORE = 250, Outcome("score", "score")


def archived(metric: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The same of the archived rows of Table 3 at scale captions, in deviations of the usual row, without differences
    and with those that were seen."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(SWEEPS / "results" / "captions.tar.xz") as files:
            files.extractall(folder, filter="data")
        rows = {row_identity(row.configs[0]): [] for row in read_sweep(SWEEPS / FILE, "captions").rows}
        for trial, result in RunsFolder(Path(folder)).finished():
            if (row := row_identity(trained_config(trial, result))) in rows:
                rows[row].append(result.metrics[metric])
    spreads, means = np.array([(np.std(values, ddof=1), np.mean(values)) for values in rows.values()]).T
    usual = np.median(spreads)
    spreads, differences = spreads / usual, (means - means[0]) / usual
    return {
        f"{metric}, no row differs": (spreads, 0 * differences),
        f"{metric}, as they differ": (spreads, differences),
    }


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
    scores = truth[:, None, None] + by_sentence + by_seed
    last, found, hold = [len(looks.seeds) - 1] * rows, np.zeros(rows, bool), True
    still = set(range(1, rows))
    for look in range(len(looks.seeds)):
        seen = [looks.base_seeds[look], *(looks.seeds[min(look, of_row)] for of_row in last[1:])]
        table = [
            Row(name=str(i), samples={"score": Sample(y[:count].mean(1), y[:count])}, is_base=not i)
            for i, (y, count) in enumerate(zip(scores, seen, strict=True))
        ]
        for i, one in enumerate(compare(table, SCORE, table[0], level=1 - looks.levels[look])):
            if one.estimate is None:
                continue
            low, high = one.estimate.interval()
            hold &= bool(low <= truth[i] <= high)
            if i in still and (verdict := looks.verdict(look, one.estimate, one.p_value)) != "open":
                last[i], found[i] = look, verdict == "found"
                still.remove(i)
        if not still:
            break
    trained = looks.base_seeds[look] + sum(looks.seeds[of_row] for of_row in last[1:])
    differs = truth != 0
    return bool(found[~differs][1:].any()), hold, float(found[differs].mean()) if differs.any() else np.nan, trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--looks", default="3,5,8,12")
    parser.add_argument("--base-seeds", type=int, default=24)
    parser.add_argument("--metric", help="val/loss or val/bleu of the archive, in place of the settings")
    options = parser.parse_args()
    known = archived(options.metric) if options.metric else {}
    seeds = [int(word) for word in options.looks.split(",")]
    print("| setting | tables with a wrong star | all intervals hold | found | trainings |\n| :- | -: | -: | -: | -: |")
    for name in known or settings(np.random.default_rng(1)):
        rng = np.random.default_rng(2)
        looks = Looks.of(seeds, options.base_seeds, len((known or settings(rng))[name][0]) - 1)
        tables = [simulate(rng, *(known or settings(rng))[name], looks) for _ in range(options.tables)]
        wrong, hold, found, trained = np.mean(tables, 0)
        print(f"| {name} | {wrong:.1%} | {hold:.1%} | {found:.1%} | {trained:.1f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
