"""Seeds of one config, held against each other: how often a table would call rows of them different.

    python -m transformer_pl.sweep sweeps/a_a.yaml
    python tests/benchmarks/a_a.py [--seeds 1,2,...] [--runs DIR]

All 35 ways to split eight seeds in two. They share their trainings, so this is an illustration; the proof is a
simulation (tests/benchmarks/chance.py).
"""

import argparse
import itertools
from pathlib import Path

import numpy as np

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.statistics import difference, of_measure, sample
from transformer_pl.runtime.command_line import DEFAULT_RUNS
from transformer_pl.tasks.translation import Translation

BLEU = of_measure(Translation.measure)
SWEEP = Path(__file__).parents[2] / "sweeps" / "a_a.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS)
    parser.add_argument("--seeds", help="other than those of the sweep file")
    options = parser.parse_args()
    seeds = options.seeds.split(",") if options.seeds else None
    planned = plan_trials(read_sweep(SWEEP, seeds=seeds), options.runs)
    sentences = np.stack([one.trial.sentences("val", Translation.measure)[..., BLEU.columns] for one in planned])
    scores = sample(sentences, BLEU.score).scores
    print(f"{len(scores)} seeds: {scores.mean():.1f} ± {scores.std(ddof=1):.1f} BLEU, {scores.round(1).tolist()}")
    compare_halves(sentences)


def compare_halves(sentences: np.ndarray) -> None:
    """sentences (seeds, n, 10)."""
    scores = sample(sentences, BLEU.score).scores
    found = []
    for half in itertools.combinations(range(1, len(scores)), len(scores) // 2 - 1):
        row = [0, *half]
        base = [i for i in range(len(scores)) if i not in row]
        between = difference(sample(sentences[row], BLEU.score), sample(sentences[base], BLEU.score))
        found.append((between.value, between.p_value))
    gaps, p_values = np.array(found).T
    print(f"{len(found)} splits, differences of {abs(gaps).min():.1f} to {abs(gaps).max():.1f} BLEU")
    print(f"p < 0.05: {(p_values < 0.05).mean():.0%}")


if __name__ == "__main__":
    main()
