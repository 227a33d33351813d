"""How often the tests of a table find a difference where there is none, and how often its intervals hold the truth.

    python tests/benchmarks/chance.py [--trials 2000]

Corpora of which everything is known (tests/chance.py), by the seeds of a row and by how far seeds spread; the t-test
that tables use, and approximate randomisation stratified by seed, both at 5 %.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from chance import drawn

from transformer_pl.reporting.stats import bleu, difference, estimate, randomisation, sample

SPREADS = (0.0, 0.015, 0.05)
SENTENCES = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
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


if __name__ == "__main__":
    main()
