"""How fast our softmax, products, attention, dropout, FFN and loss are beside torch's, forward and backward.

    python tests/benchmarks/operations.py [--scale demo] [--heads 8] [--length 11] [--rounds 5]

The sizes are those of the scale's base, with as many sentences of this length as a batch holds, and d_k = d_model / h.
The rates are calls per second of CPU time, on one thread.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rounds import compare, torch_loss, warm_up
from torch import Tensor, nn

from transformer_pl.config import Model, sizes
from transformer_pl.config.levels import Level, resolve, scale_level
from transformer_pl.model import FeedForward, Mask, ScaledDotProductAttention, SharedEmbedding
from transformer_pl.model.kernels import Dropout, product, softmax
from transformer_pl.model.loss import smoothed_loss
from transformer_pl.runtime import machine

CALLS = 40  # in a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="demo")
    parser.add_argument("--heads", type=int, default=Model().h, help="h (%(default)s)")
    parser.add_argument("--length", type=int, default=11, help="tokens of a sentence (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine.keep_freed_memory()
    d_k = Model().d_model // options.heads
    heads = Level("--heads", {"model.h": options.heads, "model.d_k": d_k, "model.d_v": d_k})
    config = resolve([scale_level(options.scale), heads])
    model, length = sizes(config.model, config.data.vocab_size), options.length
    B = config.data.batch_tokens // length
    Q, K, V = (leaf(B, length, model.h, d).transpose(1, 2) for d in (model.d_k, model.d_k, model.d_v))
    scores, x = leaf(B, model.h, length, length), leaf(B, length, model.d_model)
    mask = Mask(torch.ones(B, length, dtype=torch.bool), causal=True)
    seen, target = mask.dense(Q, K), torch.randint(4, model.vocab_size, (B, length))
    embedding, dropout = SharedEmbedding(model, None), Dropout(model.p_drop)
    attention, ffn = ScaledDotProductAttention(model, "decoder"), FeedForward(model, "decoder")
    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "softmax": (lambda: scores.masked_fill(~seen, -1e30).softmax(-1), lambda: softmax(scores, seen)),
        "products Q K^T": (lambda: Q @ K.mT, lambda: product(Q, K.mT)),
        "attention": (lambda: F.scaled_dot_product_attention(Q, K, V, seen), lambda: attention(Q, K, V, mask)),
        "dropout": (lambda: F.dropout(x, model.p_drop), lambda: dropout(x)),
        "FFN, ReLU in place or not": (lambda: ffn.W_2(ffn.W_1(x).relu_()), lambda: ffn(x)),
        "projection and loss": (
            lambda: torch_loss(embedding.logits(x), target, config.optim.eps_ls),
            lambda: smoothed_loss(embedding, x, target, config.optim.eps_ls),
        ),
    }
    print(f"{B} sentences of {length} tokens, sizes of base at scale {options.scale}")
    for name, (torchs, ours) in pairs.items():
        settings = {f"{name}, torch's": rate(torchs), f"{name}, ours": rate(ours)}
        warm_up(settings)
        compare("calls/s", settings, options.rounds)


def leaf(*shape: int) -> Tensor:
    return nn.Parameter(torch.randn(*shape))


def rate(run: Callable[[], Tensor]) -> Callable[[], float]:
    """A function that calls `run` and its backward pass, and returns the calls per second of CPU time."""
    gradient = torch.randn_like(run())

    def measure() -> float:
        began = time.process_time()
        for _ in range(CALLS):
            run().backward(gradient)
        return CALLS / (time.process_time() - began)

    return measure


if __name__ == "__main__":
    main()
