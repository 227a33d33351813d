"""What Table 3 costs at the paper's size on known GPUs, computed from published rates:

    python tests/benchmarks/price.py [--sweep sweeps/table3.yaml] [--scale wmt14] [--price 2.0]

Nothing is measured. The FLOPs of each row are counted (`transformer_pl.experiments.cost`). A card's rate of FLOPs
follows from the tokens a second that somebody published for the Transformer on it, with the same counting. A row that
is smaller than that model uses a card less well, so its hours are a lower bound.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_pl.config import Config, sizes
from transformer_pl.experiments.cost import ASSUMED_LENGTH, short_number, training_cost
from transformer_pl.experiments.sweep_file import Sweep, read_sweep
from transformer_pl.levels import parse_variant, resolve

BIG = "model.d_model=1024 model.d_ff=4096 model.h=16 model.p_drop=0.3"


class Card(NamedTuple):
    """A published rate of training: target tokens a second on `gpus` cards together."""

    name: str
    tokens_per_s: float
    gpus: int
    variant: str  # the model that was trained, as a row of a sweep names it


CARDS = (
    # Section 5.2: 0.4 s a step of about 25,000 tokens
    Card("P100 (paper, base)", 25_000 / 0.4, 8, "base"),
    # NVIDIA DeepLearningExamples, PyTorch/Translation/Transformer/README.md, June 2022: mixed precision, 8 GPUs
    Card("V100 16 GB", 214_656, 8, BIG),
    Card("A100 40 GB", 551_599, 8, BIG),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path, default=Path("sweeps/table3.yaml"), help="the rows (%(default)s)")
    parser.add_argument("--scale", default="wmt14", help="(%(default)s)")
    parser.add_argument("--price", type=float, default=2.0, help="of a GPU for an hour, on any card (%(default)s)")
    options = parser.parse_args()
    print("\n".join(table(read_sweep(options.sweep, scale=options.scale), options.price)))


def flops(config: Config) -> float:
    """Of a whole training, for sentences of ASSUMED_LENGTH tokens."""
    model = sizes(config.model, config.data.vocab_size)
    return training_cost(model, config.steps, config.data.batch_tokens, ASSUMED_LENGTH, ASSUMED_LENGTH).flops


def rate(card: Card) -> float:
    """The FLOPs a second that one such card sustains by the published figure."""
    config = resolve([parse_variant(card.variant, "card")])
    return flops(config) / (config.steps * config.data.batch_tokens) * card.tokens_per_s / card.gpus


def table(sweep: Sweep, price: float) -> Iterator[str]:
    """A line for each row with one seed, and their sum: FLOPs, GPU-hours on each card, and the price on the last."""
    cards = [card.name for card in CARDS]
    yield "| row | FLOPs | " + " | ".join(f"GPU-hours, {name}" for name in cards) + f" | price, {cards[-1]} |"
    yield "|:-|" + "-:|" * (2 + len(cards))
    costs = [(row.name, flops(row.configs[0])) for row in sweep.rows]
    for name, cost in [*costs, ("all", sum(cost for _, cost in costs))]:
        hours = [cost / rate(card) / 3600 for card in CARDS]
        cells = [name, short_number(cost), *(f"{value:,.1f}" for value in hours), f"{price * hours[-1]:,.0f}"]
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
