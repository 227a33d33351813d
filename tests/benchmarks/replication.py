"""Do the rows of a sweep file come out alike in several sets of trainings, with other seeds, texts or scales?

    python tests/benchmarks/replication.py sweeps/table3_without_big.yaml demo demo-looks
    python tests/benchmarks/replication.py sweeps/training_texts.yaml replications/draw1 replications/draw2
    python tests/benchmarks/replication.py sweeps/table3_without_big.yaml demo captions@captions multi30k@multi30k

A set is the name of an archive in sweeps/results, or a runs folder, with @ and the scale where it is not demo. Of the
rows that every set has trained are printed the differences of means from base, by set, and their rank correlations with
those of the first set: of all rows, and of those that lie less than --small from base there.

For sets of one scale a two-way analysis of variance of the scores follows (statsmodels, sums of squares of type 2).
"set" is what a set adds to all rows alike, "row x set" what it adds to some. Each has an F test against seeds, and the
standard deviation that it stands for, in units of the metric.
"""

import argparse
import tarfile
import tempfile
from pathlib import Path

import pandas
from scipy.stats import spearmanr
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from transformer_pl.config import Config
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.trials.identity import row_identity
from transformer_pl.trials.runs_folder import RunsFolder, trained_config

RESULTS = Path(__file__).parents[2] / "sweeps" / "results"
TEXTS = {"data.path": None, "data.hub": None, "data.name": None}


def scores(runs: Path, rows: dict[str, str], metric: str) -> list[tuple[str, int, float]]:
    """Row, seed and score of each finished trial that is one of these rows, whatever its text."""
    found = {}
    for folder, result in RunsFolder(runs).finished():
        name = rows.get(identity(trained_config(folder, result)))
        if name and metric in result.metrics:
            found[name, result.seed] = result.metrics[metric]
    return [(*key, value) for key, value in found.items()]


def identity(config: Config) -> str:
    return row_identity(config.with_values(TEXTS))


def observations(file: Path, sets: list[str], metric: str) -> pandas.DataFrame:
    """A line for each trial of the rows that all sets have: row, set, score."""
    found = []
    for words in sets:
        name, _, scale = words.partition("@")
        rows = {identity(row.configs[0]): row.name for row in read_sweep(file, scale or "demo").rows}
        with tempfile.TemporaryDirectory() as unpacked:
            if (archive := RESULTS / f"{name}.tar.xz").exists():
                with tarfile.open(archive) as files:
                    files.extractall(unpacked, filter="data")
            trials = scores(Path(unpacked) if archive.exists() else Path(name), rows, metric)
            found += [(row, Path(name).name, score) for row, _, score in trials]
    table = pandas.DataFrame(found, columns=["row", "set", "score"])
    shared = table.groupby("row")["set"].nunique() == len(sets)
    return table[table["row"].map(shared)]


def print_differences(table: pandas.DataFrame, small: float) -> None:
    means = table.groupby(["row", "set"], sort=False)["score"].mean().unstack(sort=False)
    print("|row|" + "|".join(f"Δ {name}" for name in means) + "|\n|:-|" + "-:|" * len(means.columns))
    print(f"|base|{'|'.join(f'{mean:.3f}' for mean in means.loc['base'])}|")
    differences = (means - means.loc["base"]).drop("base")
    for row, cells in differences.iterrows():
        print(f"|{row}|{'|'.join(f'{difference:+.3f}' for difference in cells)}|")
    first, *others = differences
    near = differences[differences[first].abs() < small]
    for name in others:
        print(f"\nrank correlation of {first} and {name}: {spearmanr(differences[first], differences[name])[0]:+.2f}")
        if 2 < len(near) < len(differences):
            correlation = spearmanr(near[first], near[name])[0]
            print(f"of the {len(near)} rows less than {small:g} from base: {correlation:+.2f}")


def print_variances(table: pandas.DataFrame) -> None:
    counts = table.groupby(["row", "set"])["score"].count()
    tests = anova_lm(ols("score ~ C(row) * C(set)", table).fit(), typ=2)
    seeds, freedom = tests.loc["Residual", "sum_sq"] / tests.loc["Residual", "df"], tests.loc["Residual", "df"]
    each = len(counts) / (1 / counts).sum()  # trials of a row in a set: the harmonic mean
    print(f"\nseeds: standard deviation {seeds**0.5:.3g} ({freedom:.0f} degrees of freedom)")
    for name, term, trials in (("set", "C(set)", each * table["row"].nunique()), ("row x set", "C(row):C(set)", each)):
        found = tests.loc[term]
        spread = (max(0.0, found["sum_sq"] / found["df"] - seeds) / trials) ** 0.5
        tested = f"F {found['F']:.2f}, p {found['PR(>F)']:.3f}, chi² {found['sum_sq'] / seeds:.1f} of {found['df']:.0f}"
        print(f"{name}: standard deviation {spread:.3g} ({tested})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the sweep file that names the rows; the first is base")
    parser.add_argument("sets", nargs="+", metavar="SET[@SCALE]", help="names of archives, or runs folders")
    parser.add_argument("--metric", default="val/bleu")
    parser.add_argument("--small", type=float, default=2.0)
    options = parser.parse_args()
    table = observations(options.file, options.sets, options.metric)
    print_differences(table, options.small)
    if len({words.partition("@")[2] for words in options.sets}) == 1:
        print_variances(table)


if __name__ == "__main__":
    main()
