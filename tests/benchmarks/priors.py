"""How the trainings of a row spread from seed to seed at a scale, which its file states as `measured.priors`.

    python tests/benchmarks/priors.py SCALE [--runs DIR]     without it: the trials in sweeps/results

Of the rows of Table 3, or of those of sweeps/language_model.yaml, that have two seeds or more are printed the number,
those that spread unlike the others, and the law of the others' variances
(transformer_pl/table/moderation.py): its freedoms as tables take them, which is cautious, and those that are as likely
too high as too low. The files state at most three degrees of freedom, because rows of other tables may be less alike.
"""

import argparse
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.table.moderation import SeedVariance, fit_prior, variance_of
from transformer_pl.trials.identity import row_identity
from transformer_pl.trials.runs_folder import RunsFolder, trained_config

SWEEPS = Path(__file__).parents[2] / "sweeps"


def variances(runs: Path, scale: str, table: Path) -> dict[str, list[SeedVariance]]:
    """By metric, the variance of each row of a sweep file at a scale."""
    rows: dict[str, dict[int, dict[str, float]]] = {
        row_identity(row.configs[0]): {} for row in read_sweep(table, scale).rows
    }
    for folder, result in RunsFolder(runs).finished():
        if result.scale == scale and (row := row_identity(trained_config(folder, result))) in rows:
            rows[row][result.seed] = result.metrics
    found = defaultdict(list)
    for seeds in rows.values():
        for metric in set.intersection(*map(set, seeds.values())) if len(seeds) > 1 else ():
            values = [metrics[metric] for metrics in seeds.values()]
            found[metric].append(SeedVariance(variance_of(values), len(values) - 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scale")
    parser.add_argument("--runs", type=Path, help="a runs folder")
    options = parser.parse_args()
    table = SWEEPS / ("language_model.yaml" if options.scale.endswith("-lm") else "table3.yaml")
    print("| metric | rows | unlike the others | spread | freedoms | at even odds |\n| :- | -: | -: | -: | -: | -: |")
    with tempfile.TemporaryDirectory() as unpacked:
        for archive in [] if options.runs else (SWEEPS / "results").glob("*.tar.xz"):
            with tarfile.open(archive) as files:
                files.extractall(unpacked, filter="data")
        for metric, rows in sorted(variances(options.runs or Path(unpacked), options.scale, table).items()):
            if prior := fit_prior(rows):
                numbers = f"{len(rows)} | {len(prior.outliers)} | {prior.variance**0.5:.2g} | {prior.freedom:.2g}"
                print(f"| {metric} | {numbers} | {fit_prior(rows, caution=0.5).freedom:.2g} |")


if __name__ == "__main__":
    main()
