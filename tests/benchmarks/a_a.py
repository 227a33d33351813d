"""How often a table would call two rows different that are seeds of one and the same config.

    python -m transformer_pl.sweep sweeps/a_a.yaml
    python tests/benchmarks/a_a.py [--seeds 1,2,...] [--runs DIR]

For three, five and eight seeds a row, two rows that share no seed are drawn a thousand times. All draws are from the
same few trainings, so this is an illustration; the proof is a simulation (tests/benchmarks/chance.py).
"""

import argparse
from pathlib import Path

import numpy as np

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.sweep_rows import of_measure
from transformer_pl.runtime.command_line import DEFAULT_RUNS
from transformer_pl.table.statistics import difference, sample
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.runs_folder import RunsFolder

BLEU = of_measure(Translation.measure)
TIMES = 1000
SWEEP = Path(__file__).parents[2] / "sweeps" / "a_a.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS)
    parser.add_argument("--seeds", help="seeds in place of those of the sweep file")
    options = parser.parse_args()
    seeds = options.seeds.split(",") if options.seeds else None
    planned = plan_trials(read_sweep(SWEEP, seeds=seeds), RunsFolder(options.runs))
    sentences = np.stack([one.folder.sentences("val", Translation.measure)[..., BLEU.columns] for one in planned])
    scores = sample(sentences, BLEU.score).scores
    print(f"{len(scores)} seeds: {scores.mean():.1f} ± {scores.std(ddof=1):.1f} BLEU, {scores.round(1).tolist()}")
    for count in (3, 5, 8):
        if 2 * count <= len(sentences):
            compare_drawn_rows(sentences, count)


def compare_drawn_rows(sentences: np.ndarray, count: int) -> None:
    """Draw and compare two rows of `count` seeds each, TIMES times. sentences (seeds, n, 10)."""
    rng, found = np.random.default_rng(1), []
    for _ in range(TIMES):
        row, base = rng.permutation(len(sentences))[: 2 * count].reshape(2, count)
        between = difference(sample(sentences[row], BLEU.score), sample(sentences[base], BLEU.score))
        found.append((between.value, between.p_value))
    gaps, p_values = np.array(found).T
    share = (p_values < 0.05).mean()
    print(f"{count} seeds a row: differences of up to {abs(gaps).max():.1f} BLEU, p < 0.05 in {share:.1%}")


if __name__ == "__main__":
    main()
