"""A small model that is built around a component, and sentences for it: what the checks run and measure."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from transformer_pl.config import PAD, Sizes
from transformer_pl.config.components import build
from transformer_pl.model import Transformer

SPECIAL_TOKENS = 4  # ids below are special tokens
SENTENCES, SOURCE_LENGTH, TARGET_LENGTH = 3, 23, 19  # longer than 16, which is a usual block of positions
SEED = 1


class Subject(NamedTuple):
    """A model to measure, and sentences for it."""

    config: Sizes
    model: Transformer
    source: Tensor  # (SENTENCES, SOURCE_LENGTH) ids; the second sentence is padded
    target: Tensor  # (SENTENCES, TARGET_LENGTH) ids; the third sentence is padded


def small_model(config: Sizes, seed: int = SEED) -> Subject:
    """A model with these sizes and random sentences."""
    torch.manual_seed(seed)
    model = build(config.architecture, config)
    move_zeros(model)
    source, target = (
        torch.randint(min(SPECIAL_TOKENS, config.vocab_size - 1), config.vocab_size, (SENTENCES, length))
        for length in (SOURCE_LENGTH, TARGET_LENGTH)
    )
    source[1, SOURCE_LENGTH - 6 :] = PAD
    target[2, TARGET_LENGTH - 5 :] = PAD
    return Subject(config, model, source, target)


@torch.no_grad()
def move_zeros(module: nn.Module) -> None:
    """Replace the weights that are zero by random numbers."""
    for parameter in module.parameters():
        parameter[parameter == 0] = 0.1 * torch.randn(int((parameter == 0).sum()))


def rebuilt(subject: Subject, seed: int = SEED, p_drop: float = 0.0) -> Subject:
    """A new model with the weights and the sentences of this one. seed: for the random numbers of its construction."""
    config = subject.config._replace(p_drop=p_drop)
    torch.manual_seed(seed)
    model = build(config.architecture, config)
    model.load_state_dict(subject.model.state_dict())
    return subject._replace(config=config, model=model)


def logits(subject: Subject, source: Tensor | None = None, target: Tensor | None = None) -> Tensor:
    """Logits (B, L, V) of a pass that leaves no trace. source, target: in place of the subject's.

    Random numbers, such as those of stochastic depth, and buffers, such as a running statistic, are the same in every
    call.
    """
    torch.manual_seed(SEED)
    sentences = (subject.source if source is None else source, subject.target if target is None else target)
    with torch.no_grad():
        buffers = {name: buffer.clone() for name, buffer in subject.model.named_buffers()}
        return functional_call(subject.model, buffers, sentences)


def moved_on(subject: Subject) -> Tensor:
    """Logits of a pass with new random numbers, which leaves its changes in the buffers."""
    with torch.no_grad():
        return subject.model(subject.source, subject.target)


def difference(found: Tensor, expected: Tensor, limit: float, where: Tensor | None = None, position: int = 0) -> str:
    """Where two tensors differ most, and by how much; empty if by no more than the limit.

    found, expected: (sentences, positions, V), or (sentences, V) of one position.
    limit: in units of the standard deviation of expected.
    where: (sentences, positions), True where a difference counts.
    position: what the first position is called in the text.
    """
    found, expected = (x.double() if x.dim() == 3 else x.double()[:, None] for x in (found, expected))
    by_position = (found - expected).abs().amax(-1).nan_to_num(nan=torch.inf)  # (sentences, positions)
    if where is not None:
        by_position = by_position.masked_fill(~where, 0)
    greatest = by_position.max().item() / max(expected.std().item(), 1e-12)
    if greatest <= limit:
        return ""
    sentence, at = divmod(int(by_position.argmax()), by_position.shape[1])
    return f"sentence {sentence}, position {position + at}, by {greatest:.2g} standard deviations"
