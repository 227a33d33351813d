"""The properties that every component keeps. A model is built around a component, and each property is measured.

Each function measures one property of a model and returns how it is broken, or None. Differences are in units of the
standard deviation of the logits. Weights that start at zero are replaced by random numbers: a component that begins as
the identity would show nothing. Passes that are compared begin with the same buffers.
"""

from collections.abc import Iterator, Sequence

import safetensors.torch
import torch
from torch import Tensor

from transformer_pl.check.small_model import (
    SEED,
    SENTENCES,
    SOURCE_LENGTH,
    SPECIAL_TOKENS,
    TARGET_LENGTH,
    Subject,
    difference,
    logits,
    move_zeros,
    moved_on,
    rebuilt,
    small_model,
)
from transformer_pl.config import PAD, Site
from transformer_pl.config.components import build
from transformer_pl.model import Mask, has_weights
from transformer_pl.model.beam_search import CachedSteps

LONG = 80  # tokens of a long sentence: more than 64, which is a usual block of positions
MODES = {"in evaluation": False, "in training": True}

# Limits of differences. Those of the paper's and all shipped components at scales demo and multi30k are below a tenth.
SAME_SHAPES = 1e-5  # where tensors have the same shapes
ROUNDING = 1e-4  # where shapes differ, and with them the order of sums
ROUNDING_BFLOAT16 = 0.1
GRADIENT_TRIES = 32  # models; a mixture of experts does not use each of its experts in every model


def with_another_token(ids: Tensor, t: int) -> Tensor:
    """The same sentences with another token at position t, where they have one."""
    changed = ids.clone()
    is_token = ids[:, t] != PAD
    least, greatest = int(ids[ids != PAD].min()), int(ids.max())
    changed[is_token, t] = torch.where(ids[:, t] == greatest, least, greatest)[is_token]
    return changed


def with_each_token_changed(
    subject: Subject, side: str, positions: Sequence[int]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each position of the `source` or `target`: the position, the logits, and the logits with another token there.

    All are computed in one batch.
    """
    source, target = (ids.repeat(len(positions), 1) for ids in (subject.source, subject.target))
    before = logits(subject, source, target)
    changed = torch.cat([with_another_token(getattr(subject, side), t) for t in positions])
    after = logits(subject, changed, target) if side == "source" else logits(subject, source, changed)
    sentences = len(subject.source)
    yield from zip(positions, before.split(sentences), after.split(sentences), strict=True)


def the_logits_are_finite(subject: Subject) -> str | None:
    """The logits are finite, in evaluation and in training."""
    for mode, training in MODES.items():
        subject.model.train(training)
        if not logits(subject)[subject.target != PAD].isfinite().all():
            return f"{mode}, some logits are NaN or infinite"
    return None


def the_future_is_hidden(subject: Subject) -> str | None:
    """A later token of the target changes no earlier logits, in evaluation and in training.

    The decoder is trained to predict token t + 1 from the tokens up to t. If it can look at token t + 1, it copies:
    its validation loss is too good, and its translations are bad. It may look in a single path of the code: in
    training, without padding, in long sentences, or after steps of training.
    """
    long_positions = torch.arange(LONG)
    long = subject._replace(  # without padding
        source=subject.source[:1, long_positions % SOURCE_LENGTH],
        target=subject.source[:1, long_positions // 2 % SOURCE_LENGTH],
    )
    for kind, sentences, positions in (
        ("", subject, range(1, TARGET_LENGTH)),
        (f" of a sentence of {LONG} tokens", long, (1, 2, 3, LONG // 2, LONG - 1)),
    ):
        for mode, training in MODES.items():
            subject.model.train(training)
            for t, before, after in with_each_token_changed(sentences, "target", positions):
                if leak := difference(after[:, :t], before[:, :t], SAME_SHAPES):
                    return f"{mode}, another token at target position {t}{kind} changes the logits of {leak}"
        moved_on(subject)  # a leak that a counter or a statistic opens later shows in the long sentences
    return None


def padding_changes_nothing(subject: Subject) -> str | None:
    """The logits of a sentence do not depend on the padding after it, nor on the sentences beside it.

    Otherwise a result would depend on which sentences share a batch, as batches are padded to their longest sentence.
    """
    source, target = subject.source, subject.target
    embed = subject.model._embed
    noise = torch.linspace(-2, 2, subject.config.d_model)

    def with_noise(ids: Tensor, site: str, start: int = 0) -> Tensor:
        return embed(ids, site, start) + noise * (ids == PAD)[:, :, None]

    moved_on(subject)
    for mode, training in MODES.items():
        subject.model.train(training)
        before = logits(subject)
        subject.model._embed = with_noise  # type: ignore[method-assign]
        after = logits(subject)
        del subject.model._embed
        if change := difference(after, before, SAME_SHAPES, where=target != PAD):
            return f"{mode}, other values at padded positions change the logits of {change}"
        others = logits(subject, *(torch.cat([ids[:1].roll(1, 1), ids[1:]]) for ids in (source, target)))
        if change := difference(others[1:], before[1:], SAME_SHAPES, where=target[1:] != PAD):
            return f"{mode}, another first sentence changes the logits of others: {change}"
    subject.model.eval()
    before = logits(subject)
    for sentence in range(SENTENCES):
        own_source, own_target = (ids[sentence : sentence + 1] for ids in (source, target))
        alone = logits(subject, own_source[own_source != PAD][None], own_target[own_target != PAD][None])
        if change := difference(alone, before[sentence : sentence + 1, : alone.shape[1]], ROUNDING):
            return f"a batch of sentence {sentence} alone, without padding, changes the logits of {change}"
    return None


def every_token_is_read(subject: Subject) -> str | None:
    """Every token of the source, and every token of the target up to a position, can change the logits there."""
    subject.model.eval()
    positions = range(TARGET_LENGTH - 5)  # from here on the third sentence is padding
    for t, before, after in with_each_token_changed(subject, "target", positions):
        if not difference(after[:, t], before[:, t], 10 * SAME_SHAPES):
            return f"another token at target position {t} does not change the logits at that position"
    if not subject.config.N_encoder:
        return None
    positions = range(SOURCE_LENGTH - 6)  # from here on the second sentence is padding
    for t, before, after in with_each_token_changed(subject, "source", positions):
        if not difference(after, before, 10 * SAME_SHAPES):
            return f"another token at source position {t} changes no logits"
    return None


def every_weight_gets_a_gradient(subject: Subject) -> str | None:
    """The gradient of every parameter that requires one is finite, and in some model not zero everywhere.

    A parameter that gets no gradient is never trained, but it counts in the table's column of parameters.
    """
    without = dict.fromkeys(name for name, weight in subject.model.named_parameters() if weight.requires_grad)
    for seed in range(GRADIENT_TRIES):
        _, model, source, target = small_model(subject.config, seed)
        model(source, target).square().mean().backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return f"the gradient of {name} is not finite"
            if parameter.grad is not None and parameter.grad.any():
                without.pop(name, None)
        if not without:
            return None
    names = ", ".join(list(without)[:3])
    if len(without) > 3:
        names += f" and {len(without) - 3} others"
    return f"{names}: no gradient in {GRADIENT_TRIES} models, each with other weights and sentences"


def decoding_step_by_step_equals_decoding_at_once(subject: Subject) -> str | None:
    """Decoding token by token, as beam search does, gives the logits of decoding all tokens at once, as in training.

    This is measured with the cache and without it, while hypotheses change places and a sentence ends, and with a cache
    that begins with several tokens at once, as when a language model continues a text. A component that cannot continue
    from a cache says `incremental = False`; then each step computes the whole prefix.
    """
    model = subject.model.eval()
    target = subject.target.clamp(min=min(SPECIAL_TOKENS, subject.config.vocab_size - 1))
    target = torch.stack([target, target.flip(1)], 1).flatten(0, 1)  # two hypotheses per sentence
    expected = logits(subject, subject.source.repeat_interleave(2, 0), target).log_softmax(-1)
    for incremental, first in ((True, 0), (True, 2), (False, 0)) if model.incremental else ((False, 0),):
        if not incremental:
            model.embedding.incremental = False
        with torch.no_grad():
            step = CachedSteps(model, subject.source)
            hypotheses = torch.arange(2 * SENTENCES)
            for t in range(first, TARGET_LENGTH):
                pairs = torch.arange(len(hypotheses)).view(-1, 2)
                if t == 3:  # a sentence ends
                    pairs = pairs[1:]
                origin = pairs.flip(1)
                if t == 5:  # both hypotheses of a sentence extend the same one
                    origin = origin[:, :1].expand(-1, 2)
                hypotheses = hypotheses[origin.flatten()]
                prefixes = target[hypotheses.view(-1, 2), : t + 1]
                found = step(prefixes, origin if t > first else origin // 2).log_softmax(-1).flatten(0, 1)
                if change := difference(found, expected[hypotheses, t], ROUNDING, position=t):
                    with_cache = "with the cache" if incremental else "without a cache"
                    return f"{with_cache}, step {t} of decoding changes the log-probabilities of {change}"
    return None


def weights_are_what_attention_computes(subject: Subject) -> str | None:
    """Where an attention has the method `weights`, its output is the sum of the values by these weights.

    Pictures of attention show `weights`.
    """
    config = subject.config
    torch.manual_seed(SEED)
    Q, K = torch.randn(2, 2, config.h, 6, config.d_k)
    V, other = torch.randn(2, 2, config.h, 6, config.d_v)
    keys = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    sites = (("decoder", 0), ("decoder", 5), ("encoder", 0), ("cross", 0))  # decoding has one query
    for site, start in sites if config.N_encoder else sites[:2]:
        attention = build(config.attention, config, Site(site, 0))
        if not has_weights(attention):
            continue
        move_zeros(attention)
        mask = Mask(causal=True) if site == "decoder" else Mask(keys)
        queries = Q[:, :, start:]
        with torch.no_grad():
            change = attention(queries, K, V, mask, start) - attention(queries, K, other, mask, start)
            error = (change - attention.weights(queries, K, mask, start) @ (V - other)).abs().max().item()
        if not error <= ROUNDING:  # also where it is NaN
            return (
                f"at {site}, start = {start}, the output differs from the sum of the values by weights by {error:.2g}"
            )
    return None


def evaluation_repeats(subject: Subject) -> str | None:
    """In evaluation, the same sentences give the same logits again, whatever the first pass has kept."""
    noisy = rebuilt(subject, p_drop=0.5)
    noisy.model.eval()
    before = moved_on(noisy)
    if change := difference(moved_on(noisy), before, SAME_SHAPES):
        return f"a second evaluation changes the logits of {change}"
    return None


def saved_weights_are_all(subject: Subject) -> str | None:
    """A new model that loads the saved weights computes the same, also after a step of training.

    Otherwise a resumed or translated trial is another model.
    """
    moved_on(subject)
    try:
        safetensors.torch.save({name: value.contiguous().clone() for name, value in subject.model.state_dict().items()})
    except Exception as error:  # a component may put anything into its state
        return f"the weights cannot be saved as safetensors: {error}"
    subject.model.eval()
    loaded = rebuilt(subject, seed=SEED + 1)
    loaded.model.eval()
    if change := difference(logits(loaded), logits(subject), SAME_SHAPES):
        return f"loading the weights into a new model changes the logits of {change}"
    return None


def it_runs_on_the_device_of_its_input(subject: Subject) -> str | None:
    """A model that is moved to another device computes there.

    Otherwise it fails on a GPU. This is measured without a GPU, on torch's meta device, which computes shapes alone: in
    training, in evaluation, and in two steps of decoding. Code that reads values cannot be measured so.
    """
    moved = rebuilt(subject).model.to("meta")
    source, target = subject.source.to("meta"), subject.target.to("meta")

    def decode() -> None:
        step = CachedSteps(moved.eval(), source)
        for t in (1, 2):
            step(target[:, None, :t], torch.arange(SENTENCES, device="meta")[:, None])

    runs = {mode: lambda training=training: moved.train(training)(source, target) for mode, training in MODES.items()}
    for mode, run in (runs | {"in decoding": decode}).items():
        try:
            with torch.no_grad():
                run()
        except Exception as error:
            message = str(error)
            if "expected device meta" in message or "same device" in message:
                return f"on another device it fails {mode}: {message.splitlines()[0]}"
    return None


def bfloat16_is_close(subject: Subject) -> str | None:
    """The logits in bfloat16 are close to those in float32."""
    subject.model.eval()
    expected = logits(subject)
    with torch.autocast(subject.source.device.type, torch.bfloat16):
        rounded = logits(subject).float()
    error = ((rounded - expected)[subject.target != PAD].square().mean() / expected.var()).sqrt().item()
    if not error < ROUNDING_BFLOAT16:
        return f"they differ by {error:.2g} standard deviations (root mean square; at most {ROUNDING_BFLOAT16})"
    return None
