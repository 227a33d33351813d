"""Beam search as in Section 6.1: beam 4, length penalty alpha = 0.6. It ends early only where this changes nothing.

The search knows no model. It calls a function for the logits, which `CachedSteps` is for the model of this project.
Shapes: S sentences, R of them still searched, k live hypotheses of each (at first 1, then `beam`, or as many as exist),
V tokens, t = length of the prefixes with BOS, C = min(2 beam, k V) candidates of a sentence.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import PAD
from transformer_pl.model.transformer import Cache, Mask, Transformer

LARGEST_BLOCK = 16  # measured on a CPU at V = 8,000 and 1,600

Step = Callable[[Tensor, Tensor], Tensor]  # (prefixes, origin) -> logits of the next token


class Hypothesis(NamedTuple):
    score: float  # log-probability over the length penalty
    tokens: list[int]  # without BOS and EOS


class _State(NamedTuple):
    """The sentences still searched. An entry without a hypothesis has log-probability, or score, -inf."""

    sentence: Tensor  # (R,)         the sentence's index in the batch
    limit: Tensor  # (R,)            its maximal length
    origin: Tensor  # (R, k)         the row of the last call of `step` that each live hypothesis extends
    live: Tensor  # (R, k, t)        BOS and tokens, the most probable hypothesis first
    logprob: Tensor  # (R, k)        of the live
    finished: Tensor  # (R, t)       the one with the best score: BOS, tokens, then EOS up to t
    score: Tensor  # (R,)            of the finished


def length_penalty(length: float, alpha: float) -> float:
    """Return ((5 + length) / 6)^alpha: Wu et al. 2016 (arXiv:1609.08144), equation 14."""
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def beam_search(
    step: Step, max_lengths: Tensor, *, bos: int, eos: int, beam: int, alpha: float
) -> list[Hypothesis | None]:
    """Return the best output of each sentence; None where no output is possible.

    step(prefixes, origin) returns the logits (R, k, V) of the next token in float32, which the search normalises.
    prefixes (R, k, t) are the live hypotheses, BOS first; k is 1 at first, then it is the beam. origin (R, k) is the
    row of the previous call that each hypothesis extends, at first the sentence. The rows of a call are its hypotheses
    in order. So a cache is reordered by `cache[origin.flatten()]`, and `origin[:, 0] // k`, with the k of the previous
    call, are the sentences of that call that remain. Some rows only fill up the beam: they never win, whatever their
    values.

    max_lengths (S,): the maximal length of each output, EOS included. The search runs on its device.
    bos, eos: the ids of these tokens.
    beam: the hypotheses of a sentence that stay live.
    alpha: the exponent of `length_penalty`.

    At every length, the search looks at the 2 beam best extensions of a sentence. Those that end in EOS are finished;
    the `beam` best of the others stay live. At the maximal length only EOS is allowed. A sentence is done when no live
    hypothesis can exceed its best finished score: log-probabilities only fall and the penalty only grows, so
    logprob / length_penalty(maximal length) is a bound. Of equal scores the shorter wins, so the early end does not
    change the result.

    Raises a FloatingPointError for logits that are NaN or infinite, except -inf.
    """
    limits = max_lengths.tolist()
    assert alpha >= 0, "otherwise the early end would not be exact"
    assert beam >= 1 and min(limits, default=1) >= 1  # EOS is counted
    lengths = range(max(limits, default=0) + 1)
    penalty = torch.tensor([length_penalty(length, alpha) for length in lengths], device=max_lengths.device)
    outputs: list[Hypothesis | None] = [None for _ in limits]
    state = _start(max_lengths, bos)
    while len(state.sentence):
        state = _extend(state, step(state.live, state.origin), eos, beam, penalty)
        done = state.score >= state.logprob[:, 0] / penalty[state.limit]  # (R,)
        if done.any():
            ended = (field[done].tolist() for field in (state.sentence, state.score, state.finished))
            for sentence, score, row in zip(*ended, strict=True):
                if score > -torch.inf:
                    outputs[sentence] = Hypothesis(score, row[1 : row.index(eos, 1)])
            state = _State(*(field[~done] for field in state))
    return outputs


def _start(max_lengths: Tensor, bos: int) -> _State:
    """Return the first state: one live hypothesis per sentence, BOS alone, and nothing finished."""
    S, device = len(max_lengths), max_lengths.device
    sentence = torch.arange(S, device=device)
    begun = torch.full((S, 1), bos, device=device)
    return _State(
        sentence=sentence,
        limit=max_lengths,
        origin=sentence[:, None],
        live=begun[:, None],
        logprob=torch.zeros(S, 1, device=device),
        finished=begun,
        score=torch.full((S,), -torch.inf, device=device),
    )


def _extend(state: _State, logits: Tensor, eos: int, beam: int, penalty: Tensor) -> _State:
    """Extend the live hypotheses by one token, given its logits (R, k, V).

    penalty: the length penalty of every length. eos and beam: see `beam_search`.
    """
    R, k, V = logits.shape
    length = state.live.size(-1)  # of the extensions: BOS is not counted, the new token is
    logprobs = logits.log_softmax(-1).add_(state.logprob[..., None])  # (R, k, V) of the extensions
    logprob, best = _greatest(logprobs.flatten(1), min(2 * beam, k * V))  # (R, C)
    if logprob.isnan().any():  # topk ranks NaN first, and log_softmax turns infinite logits into NaN
        raise FloatingPointError(f"step must return finite logits or -inf, but got others at length {length}")
    closing = state.limit == length  # (R,)
    logprob[closing] = -torch.inf
    logprob[closing, :k] = logprobs[..., eos][closing]
    best[closing, :k] = eos + V * torch.arange(k, device=best.device)
    parent, token = best // V, best % V  # (R, C)

    extended = torch.cat([_gather_hypotheses(state.live, parent), token[..., None]], -1)  # (R, C, t + 1)
    ends = token == eos  # (R, C)

    new = logprob.masked_fill(~ends, -torch.inf) / penalty[length]  # (R, C)
    score, rank = torch.cat([state.score[:, None], new], 1).sort(descending=True, stable=True)  # the earlier wins a tie
    finished = torch.cat([F.pad(state.finished, (0, 1), value=eos)[:, None], extended], 1)  # (R, 1 + C, t + 1)

    live_logprob, survivors = logprob.masked_fill(ends, -torch.inf).topk(min(beam, logprob.size(1)))  # (R, k)
    first = k * torch.arange(R, device=parent.device)[:, None]  # (R, 1): row of the sentence's first hypothesis
    return state._replace(
        origin=first + parent.gather(1, survivors),
        live=_gather_hypotheses(extended, survivors),
        logprob=live_logprob,
        finished=_gather_hypotheses(finished, rank[:, :1])[:, 0],
        score=score[:, 0],
    )


def _greatest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of values (R, n) in each row, best first, and their indexes.

    It sorts few numbers, because the greatest lie in the `count` blocks of a row that have the greatest maxima.
    """
    n = values.shape[1]
    size = max(size for size in range(1, LARGEST_BLOCK + 1) if n % size == 0)  # numbers of a block
    blocks = n // size
    block = values.unflatten(1, (size, blocks)).amax(1).topk(min(count, blocks), sorted=False).indices
    inside = blocks * torch.arange(size, device=block.device)
    index = (block[..., None] + inside).flatten(1)  # (R, numbers that are looked at)
    values, rank = values.gather(1, index).topk(count)
    return values, index.gather(1, rank)


def _gather_hypotheses(hypotheses: Tensor, index: Tensor) -> Tensor:
    """Select hypotheses (R, k, t) by an index (R, m): (R, m, t)."""
    return hypotheses.take_along_dim(index[..., None], 1)


class CachedSteps:
    """The `step` of beam search: logits of the next token, from a model and its caches."""

    def __init__(self, model: Transformer, source: Tensor):
        """source (S, Ls): the sentences, each with EOS, padded. Without an encoder all must have the same length."""
        self.model = model
        self.keys = source != PAD  # (S, Ls)
        self.memory_mask = Mask(self.keys)  # kept for many steps, because it remembers what it has computed
        self.memory = model.encode(source, self.keys)
        self.prompt = source[:, : -1 if model.encoder_norm is None else 0]  # (S, Lp) what the decoder reads before BOS
        self.k = 1  # hypotheses of a sentence in the previous call
        self.count = len(source)  # sentences of the previous call
        self.read = 0  # tokens of a prompt and a prefix that the caches hold
        self.caches: list[Cache] | None = [{} for _ in model.decoder] if model.incremental else None

    def __call__(self, prefixes: Tensor, origin: Tensor) -> Tensor:
        """prefixes (R, k, t) and origin (R, k) to logits (R, k, V) in float32; see `beam_search`."""
        is_greedy = self.k == origin.shape[1] == 1
        if len(origin) < len(self.keys):
            remaining = origin[:, 0] // self.k  # (R,) among the sentences of the previous call
            self.keys = self.keys[remaining]
            self.memory_mask = Mask(self.keys)
            self.memory = [tuple(part.index_select(0, remaining) for part in memory) for memory in self.memory]
            self.prompt = self.prompt[remaining]
        self.k = origin.shape[1]
        start, Lp = 0, self.prompt.shape[1]
        whole = prefixes.flatten(0, 1)
        if Lp:
            whole = torch.cat([self.prompt.repeat_interleave(self.k, 0), whole], 1)
        if self.caches is not None:
            start, self.read = self.read, whole.shape[1]
            if not is_greedy or len(origin) < self.count:  # greedy search reorders only where sentences have ended
                rows = origin.flatten()
                self.caches = [{key: x.index_select(0, rows) for key, x in cache.items()} for cache in self.caches]
            self.count = len(origin)
        mask = Mask(causal=True, source=torch.full((len(whole),), Lp, device=whole.device) if Lp else None)
        states = self.model.decode(whole[:, start:], mask, self.memory, self.memory_mask, start, self.caches)
        return self.model.embedding.logits(states[:, -1:])[:, 0].float().unflatten(0, origin.shape)
