"""This project and Hugging Face's MarianMTModel side by side: training, and decoding with the same weights.

    pip install -c constraints.txt -e '.[bench]'
    python tests/benchmarks/versus_hf.py [--scale multi30k] [--tokens 4096] [--runs DIR]

Training: target tokens a second, on the same batches, sizes, dropout, loss and threads. Hugging Face's model is in a
plain loop with fused Adam, as shipped (fp32) and at its best setting on a CPU (bf16 autocast, attention written out).
This project is the train command: Lightning, its log and W&B. Both have the memory allocator set as this project
sets it.

Decoding in fp32: sentences a second, with the weights of a finished base trial under --runs, which are copied into the
other models; the script stops if the logits differ. The model must be trained, because an untrained one never ends its
sentences. CTranslate2 is measured as a third point of reference. The length penalties of the three differ a little, and
so do a few translations.
"""

import argparse
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from export import marian
from peers import check_logits, check_scores, ctranslate2_model, marian_logits, marian_translate, need_peers, texts
from rounds import (
    CLOCK_HELP,
    CLOCKS,
    Clock,
    compare,
    errors_of,
    first,
    sentences_per_s,
    torch_loss,
    train_command,
    trained_model,
)

from transformer_pl.config import Config, sizes
from transformer_pl.config.levels import Level, resolve, scale_level
from transformer_pl.data.batches import TrainStream, collate, eval_batches, padded
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import EOS, PAD
from transformer_pl.model import Transformer
from transformer_pl.runtime.command_line import DEFAULT_RUNS, names
from transformer_pl.runtime.environment import describe_environment
from transformer_pl.runtime.machine import keep_freed_memory
from transformer_pl.train.evaluate import translate

PACKAGES = ("torch", "transformers", "ctranslate2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="multi30k", help="sizes and text (%(default)s)")
    parser.add_argument("--tokens", type=int, help="tokens of a training batch (the scale's)")
    parser.add_argument(
        "--precisions", type=names, default=["32-true", "bf16-mixed"], help="of this project's trainings"
    )
    parser.add_argument("--steps", type=int, default=8, help="training steps a round, after as many of warm-up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=100, help="validation sentences a round; 0: no decoding")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help=CLOCK_HELP)
    parser.add_argument("--wandb", choices=("offline", "disabled"), default="offline", help="while training")
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS, help="where the base trial lies (%(default)s)")
    parser.add_argument("--only", choices=("training", "decoding"), help="measure one of the two")
    options = parser.parse_args()
    with errors_of(parser):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    need_peers()
    os.environ["WANDB_MODE"] = options.wandb
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    keys = {} if options.tokens is None else {"data.batch_tokens": str(options.tokens)}
    config = resolve([scale_level(options.scale), Level("command line", keys)])
    prepared = prepare(config.data, options.runs)
    machine = describe_environment(PACKAGES)
    print(f"{machine['cpu']}, {options.threads} thread(s),", *(f"{k} {v}" for k, v in machine["packages"].items()))
    if options.only != "decoding":
        compare_training(config, prepared, options)
    if options.only != "training":
        compare_decoding(config, prepared, options)


def compare_training(config: Config, prepared: Prepared, options: argparse.Namespace) -> None:
    shipped, best = "HF fp32, as shipped", "HF bf16 autocast, eager"
    settings = {
        shipped: marian_training(config, prepared, options.steps, None, False, CLOCKS[options.clock]),
        best: marian_training(config, prepared, options.steps, "eager", True, CLOCKS[options.clock]),
    }
    with TemporaryDirectory() as folder:
        for precision in options.precisions:
            runs = Path(folder) / precision
            runs.mkdir()
            (runs / "data").symlink_to(prepared.folder.parent.resolve())
            keys = {"scale": options.scale, "data.batch_tokens": config.data.batch_tokens}
            keys |= {"trainer.precision": precision, "trainer.accelerator": "cpu"}
            settings[f"ours, {precision}"] = train_command(runs, keys, options.steps, options.threads, options.clock)
        what = f"training, batches of {config.data.batch_tokens} tokens, target tokens/s ({options.clock} time)"
        compare(what, settings, options.rounds, (shipped, best))


def marian_training(
    config: Config, prepared: Prepared, steps: int, attention: str | None, bf16: bool, clock: Clock
) -> Callable[[], float]:
    """A function that trains a MarianMTModel for `steps` more, and returns its target tokens a second.

    The batches of a round are those of `train_command` in its round, warm-up included. The loss is the project's,
    which is faster than Hugging Face's own label smoothing.
    """
    torch.manual_seed(1)
    model_sizes = sizes(config.model, len(prepared.tokenizer))
    model = Transformer(model_sizes)
    peer = marian(model, model_sizes, attention)
    batch = collate(prepared.split("val"), eval_batches_of(config, prepared)[0])
    check_logits(model, peer, batch.source, batch.target_in)
    peer.train()
    adam = torch.optim.Adam(peer.parameters(), lr=1e-4, fused=True)
    seeds = itertools.count(1)

    def run() -> float:
        optim = config.optim.model_copy(update={"max_steps": 2 * steps, "duration": 1})
        stream = TrainStream(
            prepared.split("train"), prepared.tokenizer, config.model_copy(update={"seed": next(seeds), "optim": optim})
        )
        for step, batch in enumerate(stream):
            if step in (0, steps):
                tokens, began = 0, clock()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = marian_logits(peer, batch.source, batch.target_in)
                loss = torch_loss(logits, batch.target_out, config.optim.eps_ls) / batch.tokens
            loss.backward()
            adam.step()
            adam.zero_grad()
            tokens += int((batch.target_out != PAD).sum())
        return tokens / (clock() - began)

    return run


def compare_decoding(config: Config, prepared: Prepared, options: argparse.Namespace) -> None:
    model = trained_model(config, prepared, options.runs)
    if model is None:
        print(
            f"\ndecoding: no finished base trial of scale {options.scale} under {options.runs}; train a short one:\n"
            f"  python -m transformer_pl.train --scale={options.scale} --optim.max_steps=500 --runs={options.runs}"
        )
        return
    vocabulary = prepared.tokenizer.vocabulary()
    decode, split = config.decode, first(prepared.split("val"), options.sentences)
    peer = marian(model, sizes(config.model, len(prepared.tokenizer))).eval()
    batch = collate(split, eval_batches_of(config, prepared, options.sentences)[-1])
    check_logits(model, peer, batch.source, batch.target_in)
    with TemporaryDirectory() as folder:
        translator = ctranslate2_model(peer, vocabulary, Path(folder), options.threads)
        check_scores(model, translator, batch, vocabulary)
        budget = max(1, config.trainer.eval_tokens // decode.beam)  # the peers are slower in larger batches
        lengths = split.source.lengths_with_special
        batches = eval_batches(lengths, lengths, budget)

        def ours() -> list[list[int]]:
            return [best.tokens for best in translate(model, split.source, decode, config.trainer.eval_tokens)]

        def hugging_face() -> list[list[int]]:
            rows: list[Any] = [None] * len(split.source)
            for indexes in batches:
                source = torch.from_numpy(padded(split.source, indexes))
                translations = marian_translate(peer, source, decode.beam, decode.alpha, decode.extra)
                for index, tokens in zip(indexes, translations, strict=True):
                    rows[index] = tokens
            return rows

        every = texts([[*map(int, split.source[i]), EOS] for i in range(len(split.source))], vocabulary)
        ids = {name: i for i, name in enumerate(vocabulary)}

        def ctranslate2() -> list[list[int]]:
            results = translator.translate_batch(
                every,
                beam_size=decode.beam,
                length_penalty=decode.alpha,
                max_decoding_length=max(map(len, every)) + decode.extra,
                max_batch_size=budget,
                batch_type="tokens",
            )
            return [[ids[token] for token in result.hypotheses[0]] for result in results]

        settings = {"HF": hugging_face, "ours": ours, "CTranslate2": ctranslate2}
        same = ours()
        for name in ("HF", "CTranslate2"):
            equal = sum(a == b for a, b in zip(same, settings[name](), strict=True))
            print(f"\n{name}: {equal} of {len(same)} translations are ours", end="")
        print(f"; {sum(map(len, same)) / len(same):.1f} tokens each")
        timed = {name: sentences_per_s(run, len(same), CLOCKS[options.clock]) for name, run in settings.items()}
        compare(f"decoding, beam {decode.beam}, fp32, sentences/s ({options.clock} time)", timed, options.rounds)


def eval_batches_of(config: Config, prepared: Prepared, sentences: int = 64) -> list[Any]:
    """Batches of the first validation sentences."""
    lengths = (side.lengths_with_special[:sentences] for side in prepared.split("val"))
    return eval_batches(*lengths, config.trainer.eval_tokens)


if __name__ == "__main__":
    main()
