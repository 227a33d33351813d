"""Training and decoding speed at scale multi30k, run by hand:  python tests/benchmarks/throughput.py [--runs DIR]

Rounds of the compared settings alternate, so that ratios hold where the machine's speed drifts; each figure is the
median over rounds with its range. Decoding needs a finished base trial under --runs: an untrained model never ends its
sentences. The text is read as the scale says, so TRANSFORMER_PL_DATA works here too.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rounds import compare, first, sentences_per_s, trained_model, warm_up

from transformer_pl.config import Config, Decode, sizes
from transformer_pl.data.batches import TrainStream
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import PAD
from transformer_pl.data.tokens import Tokens
from transformer_pl.evaluation.evaluate import translate
from transformer_pl.levels import Level, resolve, scale_level
from transformer_pl.loss import smoothed_loss
from transformer_pl.model import Transformer
from transformer_pl.runtime import memory
from transformer_pl.runtime.environment import describe_environment
from transformer_pl.trials.runs_folder import DEFAULT_RUNS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="training steps a round")
    parser.add_argument("--sentences", type=int, default=200, help="validation sentences to decode a round")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    memory.keep_freed()
    config = resolve([scale_level("multi30k")])
    prepared = prepare(config.data, options.runs)
    where = describe_environment(["torch"])
    print(f"{where['cpu']}, {where['cores']} cores, {options.threads} thread(s), torch {where['packages']['torch']}")

    trainings = {name: training(config, prepared, name, options.steps) for name in ("bf16-mixed", "32-true")}
    warm_up(trainings)
    compare("training, target pieces/s", trainings, options.rounds)

    model = trained_model(config, prepared, options.runs)
    if model is None:
        print(f"decoding: no finished base trial of scale multi30k under {options.runs}")
        return
    source = first(prepared.split("val"), options.sentences).source
    beams = [resolve([scale_level("multi30k"), Level("here", {"decode.beam": beam})]).decode for beam in (4, 1)]
    decodings = {
        "beam 4": decoding(model, source, beams[0], config, cached=True),
        "beam 4, no cache": decoding(model, source, beams[0], config, cached=False),
        "beam 1": decoding(model, source, beams[1], config, cached=True),
    }
    warm_up(decodings)
    compare("decoding in fp32, sentences/s", decodings, options.rounds)


def training(config: Config, prepared: Prepared, precision: str, steps: int) -> Callable[[], float]:
    """Whole training steps of the scale's base: a function that returns the target pieces a second of `steps` more."""
    torch.manual_seed(1)
    model = Transformer(sizes(config.model, len(prepared.tokenizer)))
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    stream = iter(TrainStream(prepared.split("train"), config.data.batch_tokens, config.data.max_length, 1, 10**6))

    def run() -> float:
        pieces, began = 0, time.perf_counter()
        for _ in range(steps):
            batch = next(stream)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                states = model.states(batch.source, batch.target_in)
                loss = smoothed_loss(model.embedding, states, batch.target_out, config.optim.eps_ls) / batch.tokens
            loss.backward()
            adam.step()
            adam.zero_grad()
            pieces += int((batch.target_out != PAD).sum())
        return pieces / (time.perf_counter() - began)

    return run


def decoding(model: Transformer, source: Tokens, decode: Decode, config: Config, cached: bool) -> Callable[[], float]:
    def run() -> None:
        model.embedding.incremental = cached
        translate(model, source, decode, config.trainer.eval_tokens)

    return sentences_per_s(run, len(source), time.perf_counter)


if __name__ == "__main__":
    main()
