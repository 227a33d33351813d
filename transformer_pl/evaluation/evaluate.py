"""A trained model on a whole split: the likelihood of its references, and its own translations."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transformer_pl.config import Config, Decode, sizes
from transformer_pl.data.batches import collate, eval_batches, model_lengths, padded
from transformer_pl.data.prepare import Prepared, Split, Tokens
from transformer_pl.data.tokenizer import BOS, EOS, PAD, Tokenizer
from transformer_pl.evaluation.beam_search import Hypothesis, beam_search
from transformer_pl.loss import negative_log_likelihood
from transformer_pl.model import Cache, Mask, Transformer
from transformer_pl.runtime.errors import InputError
from transformer_pl.training.divergence import perplexity


class Likelihood(NamedTuple):
    """By sentence, in the order of the split."""

    nll: np.ndarray  # nats: the un-smoothed negative log-reference_likelihood, EOS counted
    pieces: np.ndarray  # EOS counted

    @property
    def loss(self) -> float:
        """Nats per piece."""
        return float(self.nll.sum() / self.pieces.sum())

    @property
    def perplexity(self) -> float:
        """Per piece, as in Table 3; infinite where no float can hold it."""
        return perplexity(self.loss)


def reference_likelihood(model: Transformer, split: Split, tokens: int) -> Likelihood:
    """Of every reference, in batches of at most `tokens` pieces a side."""
    nll, pieces = np.zeros(len(split.source)), model_lengths(split.target)
    for indexes in eval_batches(model_lengths(split.source), pieces, tokens):
        batch = collate(split, indexes)
        with _evaluating(model) as device:
            target = batch.target_out.to(device)
            logits = model(batch.source.to(device), batch.target_in.to(device))
            nll[indexes] = negative_log_likelihood(logits, target).double().sum(-1).cpu().numpy()
    return Likelihood(nll, pieces)


def translate(
    model: Transformer, source: Tokens, decode: Decode, tokens: int, n_best: int = 1
) -> list[list[Hypothesis]]:
    """The n_best outputs of every sentence (Section 6.1), in batches of at most `tokens` pieces, beams counted."""
    found: list[list[Hypothesis]] = [[] for _ in range(len(source))]
    for indexes in eval_batches(model_lengths(source), None, max(1, tokens // decode.beam)):
        rows = torch.from_numpy(padded(source, indexes))
        limits = torch.from_numpy(source.lengths[indexes] + decode.extra)
        with _evaluating(model) as device:
            step = CachedSteps(model, rows.to(device), decode.beam)
            outputs = beam_search(
                step,
                limits.to(device).clamp(min=1),
                bos=BOS,
                eos=EOS,
                beam=decode.beam,
                alpha=decode.alpha,
                n_best=n_best,
            )
        for index, hypotheses in zip(indexes, outputs, strict=True):
            found[index] = hypotheses
    return found


def best_translations(
    model: Transformer, source: Tokens, tokenizer: Tokenizer, decode: Decode, tokens: int
) -> list[str]:
    """The best output of every sentence as text; an empty one where there is none."""
    found = translate(model, source, decode, tokens)
    return tokenizer.decode([hypotheses[0].pieces if hypotheses else [] for hypotheses in found])


def load_trained_model(config: Config, prepared: Prepared, weights: Path) -> Transformer:
    """A finished trial's model, on the GPU where there is one. Raises an InputError for weights that do not fit."""
    model = Transformer(sizes(config.model, len(prepared.tokenizer)))
    try:
        model.load_state_dict(torch.load(weights))
    except Exception as error:  # torch raises nearly anything for bytes that it cannot read
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{weights}: cannot be used: {reason}; train the trial again") from None
    return model.cuda() if config.trainer.accelerator != "cpu" and torch.cuda.is_available() else model


def attention_maps(model: Transformer, source: Tensor, target: Tensor) -> dict[str, list[Tensor]]:
    """How much every position takes of every other: for each site, a tensor (B, h, Lq, Lk) a layer.

    source (B, Ls), target (B, Lt), padded. The sites are `encoder`, `decoder` and `cross`; one whose part tells no
    `weights` has none.
    """
    found: dict[str, list[Tensor]] = {}
    hooks = []
    for name, module in model.named_modules():
        stack, _, rest = name.partition(".")
        if callable(getattr(module, "weights", None)) and rest.endswith("attention.attention"):

            def keep(part: torch.nn.Module, given: tuple, site: str = "cross" if "cross" in rest else stack) -> None:
                Q, K, _, *mask_and_start = given
                found.setdefault(site, []).append(part.weights(Q, K, *mask_and_start))

            hooks.append(module.register_forward_pre_hook(keep))
    try:
        with _evaluating(model) as device:
            model(source.to(device), target.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    return found


class CachedSteps:
    """The function that beam search is given: log-probabilities of the next piece, from a model and its caches."""

    def __init__(self, model: Transformer, source: Tensor, beam: int):
        """source (S, Ls): the sentences, each ended by EOS and padded."""
        self.model, self.beam = model, beam
        self.keys = source != PAD  # (S, Ls)
        self.memory = model.encode(source, self.keys)
        self.caches: list[Cache] | None = [{} for _ in model.decoder] if model.incremental else None

    def __call__(self, prefixes: Tensor, origin: Tensor) -> Tensor:
        """prefixes (R * beam, t), origin (R * beam,) to (R * beam, V), as `beam_search` asks."""
        left = origin[:: self.beam] // self.beam  # (R,) of the sentences that the last call served
        if len(left) < len(self.keys):
            self.keys = self.keys[left]
            self.memory = [(K[left], V[left]) for K, V in self.memory]
        start = 0
        if self.caches is not None:
            start = prefixes.shape[1] - 1
            self.caches = [{name: kept[origin] for name, kept in cache.items()} for cache in self.caches]
        logits = self.model.decode(
            prefixes[:, start:], Mask(causal=True), self.memory, Mask(self.keys), start, self.caches
        )
        return logits[:, -1].float().log_softmax(-1)


@contextmanager
def _evaluating(model: Transformer) -> Iterator[torch.device]:
    """Without dropout and without gradients, on the model's own device."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield next(model.parameters()).device
    finally:
        model.train(training)
