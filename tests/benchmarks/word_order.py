"""Whether a trained model uses the order of the words in its source.

    python tests/benchmarks/word_order.py TRIAL [--runs DIR]

Prints the validation loss, in nats per target token: with each source sentence as it is, with its subwords in random
order, and with the next sentence in its place. A model whose loss hardly rises in random order reads a bag of words.
"""

import argparse
from pathlib import Path

import numpy as np

from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.command_line import DEFAULT_RUNS
from transformer_pl.train.evaluate import reference_likelihood, trained_model
from transformer_pl.trials.runs_folder import find, trained_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", help="a trial's folder, its id, or a part of its name")
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS)
    options = parser.parse_args()
    folder, result = find(options.runs, options.trial)
    config = trained_config(folder, result)
    prepared = folder.prepared(config.data)
    source, target = prepared.split("val")
    sources = {
        "as it is": source,
        "in random order": in_random_order(source, np.random.default_rng(1)),
        "of the next sentence": source.take(np.roll(np.arange(len(source)), -1)),
    }
    model = trained_model(config, prepared, folder)
    for name, one in sources.items():
        loss = reference_likelihood(model, Split(one, target), config.trainer.eval_tokens).loss
        print(f"source {name}: {loss:.2f}")


def in_random_order(sentences: Tokens, rng: np.random.Generator) -> Tokens:
    """The same sentences, each with its tokens in another order."""
    return Tokens(np.concatenate([rng.permutation(sentence) for sentence in sentences]), sentences.offsets)


if __name__ == "__main__":
    main()
