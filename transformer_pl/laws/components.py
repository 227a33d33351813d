"""The laws of components: a model is built around a component, and each law is measured.

Differences are in units of the standard deviation of the logits. Weights that start at zero are replaced by random
numbers: a component that begins as the identity would show nothing. Passes that are compared begin with the same
buffers.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from transformer_pl.config import PAD, Component, Config, Site, Sizes, custom_components, sizes
from transformer_pl.config.components import build, component_names, import_component
from transformer_pl.laws.law import HOLDS, Finding, Found, broken, found, laws_of, untested
from transformer_pl.model import Mask, has_weights
from transformer_pl.model.beam_search import CachedSteps
from transformer_pl.model.dry_run import (
    SEED,
    SENTENCES,
    SOURCE_LENGTH,
    SPECIAL_TOKENS,
    TARGET_LENGTH,
    Subject,
    can_be_built,
    check_classes,
    dry_run,
    move_zeros,
    small_model,
    without_files,
)
from transformer_pl.model.slots import Exempt, carried, carry
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.trials.trial_folder import as_safetensors

ENOUGH_SUBWORDS = 1000  # for all but embeddings: no other law depends on the vocabulary
LONG_SENTENCE = 80  # tokens of a long sentence: more than 64, which is a usual block of positions
PLAIN = (bool, int, float, str, tuple, type(None))  # types of attributes by which a component may tell layers apart
MODES = {"in evaluation": False, "in training": True}

# Limits of differences. Those of the paper's and all shipped components at scales demo and multi30k are below a tenth.
SAME_SHAPES = 1e-5  # where tensors have the same shapes
ROUNDING = 1e-4  # where shapes differ, and with them the order of sums
ROUNDING_BFLOAT16 = 0.1
GRADIENT_TRIES = 32  # models; a mixture of experts does not use each of its experts in every model


def findings(row: Config) -> list[Found]:
    """What each law has seen of the components of a row's model.

    Raises an InputError for a component that cannot be called or returns something else than it must. An error of the
    component's own, in a pass of a model with one layer, is passed on.
    """
    components, whole = custom_components(row.model), sizes(row.model, row.data.vocab_size)
    check_classes(whole)
    config = _small(whole)
    device = dry_run(config if config.architecture == whole.architecture else whole)
    config = config._replace(p_drop=0.0)
    excused = {law: (c.path, Finding("exempt", why)) for c in components.values() for law, why in exempt(c).items()}
    known = {law: finding for law, (_, finding) in excused.items()}
    gpus = [] if device == "cpu" else [torch.cuda.current_device()]
    with torch.random.fork_rng(gpus), torch.device(device) if gpus else nullcontext():  # which slows every operation
        measured = found(component_names(row.model), sys.modules[__name__], partial(small_model, config), **known)
    return [one._replace(part=excused[one.law][0]) if one.state == "exempt" else one for one in measured]


def _small(whole: Sizes) -> Sizes:
    """These sizes with few subwords and layers where the components allow it, and without weights of a file."""
    components = custom_components(whole)
    subwords = whole.vocab_size if "embedding" in components else min(whole.vocab_size, ENOUGH_SUBWORDS)
    config = whole._replace(vocab_size=subwords)
    if "architecture" in components:
        config = config._replace(architecture=without_files(config.with_layers(1)).architecture)
    config = config if _differ(config) else config.with_layers(2)
    return config if "architecture" not in components or can_be_built(config) else whole


def _differ(config: Sizes) -> bool:
    """Whether later layers of a stack are built otherwise than the first two, such as every third of another class."""
    try:
        with torch.device("meta"):
            model = build(config.architecture, config)
    except Exception:  # a constructor reads values, and meta tensors have none
        return True
    for stack in (model.encoder, model.decoder):
        plain = [[(type(m), [v for v in vars(m).values() if type(v) in PLAIN]) for m in one.modules()] for one in stack]
        if any(layer not in plain[:2] for layer in plain):
            return True
    return False


def exempt(component: Component) -> dict[str, str]:
    """The laws that a component breaks on purpose, each with the reason: the attribute `exempt` of its class."""
    component_class: Any = import_component(component.path)
    reasons = component_class.exempt if isinstance(component_class, Exempt) else {}
    laws = laws_of(sys.modules[__name__])
    if not isinstance(reasons, dict) or not all(
        name in laws and isinstance(why, str) and why.strip() for name, why in reasons.items()
    ):
        rule = f"must give a reason for each law that it names, of {', '.join(laws)}"
        raise InputError(f"{component.path}.exempt = {reasons!r}: {rule}")
    return reasons


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


def the_logits_are_finite(subject: Subject) -> Finding:
    """The logits are finite, in evaluation and in training.

    Usual cause: a division by zero, a root or logarithm of zero, or a softmax over no keys.
    """
    for mode, training in MODES.items():
        subject.model.train(training)
        if not logits(subject)[subject.target != PAD].isfinite().all():
            return broken(f"{mode}, some logits are NaN or infinite")
    return HOLDS


def the_future_is_hidden(subject: Subject) -> Finding:
    """A later token of the target changes no earlier logits, in evaluation and in training.

    The decoder is trained to predict token t + 1 from the tokens up to t. If it can look at token t + 1, it copies:
    its validation loss is too good, and its translations are bad. It may look in a single path of the code: in
    training, without padding, in long sentences, or after steps of training.

    Usual cause: `mask` is not applied or is inverted (True: may look), or positions are mixed.
    """
    at = torch.arange(LONG_SENTENCE) % SOURCE_LENGTH
    long = subject._replace(source=subject.source[:1, at], target=subject.source[:1, at.roll(1)])  # without padding
    for sentences, positions in (
        (subject, range(1, TARGET_LENGTH)),
        (long, (1, 2, 3, LONG_SENTENCE // 2, LONG_SENTENCE - 1)),
    ):
        for mode, training in MODES.items():
            subject.model.train(training)
            for t, before, after in with_each_token_changed(sentences, "target", positions):
                if leak := difference(after[:, :t], before[:, :t], SAME_SHAPES):
                    where = f"another token at target position {t} of {sentences.target.shape[1]}"
                    return broken(f"{mode}, {where} changes the logits of {leak}")
        moved_on(subject)  # a leak that a counter or a statistic opens later shows in the long sentences
    return HOLDS


def padding_changes_nothing(subject: Subject) -> Finding:
    """The logits of a sentence do not depend on the padding after it, nor on the sentences beside it.

    Otherwise a result would depend on which sentences share a batch, as batches are padded to their longest sentence.

    Usual cause: `mask.keys` is not applied or is inverted (True: a token), or sentences are mixed. (If the model rounds
    inside, such as to 8 bits, it jumps where a sum crosses a boundary, and sums have another order here: declare it.)
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
            return broken(f"{mode}, other values at padded positions change the logits of {change}")
        others = logits(subject, *(torch.cat([ids[:1].roll(1, 1), ids[1:]]) for ids in (source, target)))
        if change := difference(others[1:], before[1:], SAME_SHAPES, where=target[1:] != PAD):
            return broken(f"{mode}, another first sentence changes the logits of others: {change}")
    subject.model.eval()
    before = logits(subject)
    for sentence in range(SENTENCES):
        own_source, own_target = (ids[sentence : sentence + 1] for ids in (source, target))
        alone = logits(subject, own_source[own_source != PAD][None], own_target[own_target != PAD][None])
        if change := difference(alone, before[sentence : sentence + 1, : alone.shape[1]], ROUNDING):
            return broken(f"a batch of sentence {sentence} alone, without padding, changes the logits of {change}")
    return HOLDS


def every_token_is_read(subject: Subject) -> Finding:
    """Every token of the source, and every token of the target up to a position, can change the logits there.

    Usual cause: `mask` hides too much, or `x` or the output of `sublayer` is left out.
    """
    subject.model.eval()
    lengths = {"target": TARGET_LENGTH - 5} | ({"source": SOURCE_LENGTH - 6} if subject.config.N_encoder else {})
    for side, length in lengths.items():  # from there on a sentence is padding
        for t, before, after in with_each_token_changed(subject, side, range(length)):
            read = slice(t, t + 1) if side == "target" else slice(None)
            if not difference(after[:, read], before[:, read], 10 * SAME_SHAPES):
                return broken(f"another token at {side} position {t} does not change the logits that may read it")
    return HOLDS


def every_weight_gets_a_gradient(subject: Subject) -> Finding:
    """The gradient of every parameter that requires one is finite, and in some model not zero everywhere.

    A parameter that gets no gradient is never trained, but it counts in the table's column of parameters.

    Usual cause: an unused parameter, `detach`, a choice without gradient, an infinite derivative, or a head that
    only the loss uses (it belongs to the loss, which may be a `torch.nn.Module` with weights).
    """
    weights = dict(subject.model.named_parameters())
    without = {name for name, weight in weights.items() if weight.requires_grad}
    frozen = [f"{name} ({weight.numel():,})" for name, weight in weights.items() if not weight.requires_grad]
    for seed in range(GRADIENT_TRIES):
        _, model, source, target = small_model(subject.config, seed)
        model(source, target).square().mean().backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        if wrong := [name for name, gradient in gradients.items() if not gradient.isfinite().all()]:
            return broken(f"the gradient of {wrong[0]} is not finite")
        without -= {name for name, gradient in gradients.items() if gradient.any()}
        if not without:
            return Finding("holds", f"frozen: {', '.join(frozen)}" if frozen else "")
    names = shown(", ".join(name for name in weights if name in without))
    return broken(f"{names}: no gradient in {GRADIENT_TRIES} models, each with other weights and sentences")


def decoding_step_by_step_equals_decoding_at_once(subject: Subject) -> Finding:
    """Decoding token by token, as beam search does, gives the logits of decoding all tokens at once, as in training.

    This is measured with the cache and without it, while hypotheses change places and a sentence ends, and with a cache
    that begins with several tokens at once, as when a language model continues a text. A component that cannot continue
    from a cache says `incremental = False`; then each step computes the whole prefix.

    Usual cause: `start` is ignored, or `cache` misses what later steps need (where that is the whole prefix, write
    `incremental = False`). (If the model rounds inside, such as to 8 bits, it jumps where a sum crosses a boundary, and
    the order of sums differs here: declare that.)
    """
    model = subject.model.eval()
    first = min(SPECIAL_TOKENS, subject.config.vocab_size - 1)
    source, target = (ids.clamp(min=first) for ids in (subject.source, subject.target))  # without padding
    if subject.config.N_encoder:
        source = subject.source
    target = torch.stack([target, target.flip(1)], 1).flatten(0, 1)  # two hypotheses per sentence
    expected = logits(subject, source.repeat_interleave(2, 0), target).log_softmax(-1)
    for incremental, first in ((True, 0), (True, 2), (False, 0)) if model.incremental else ((False, 0),):
        if not incremental:
            model.embedding.incremental = False
        with torch.no_grad():
            step = CachedSteps(model, source)
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
                decoded = step(prefixes, origin if t > first else origin // 2).log_softmax(-1).flatten(0, 1)
                if change := difference(decoded, expected[hypotheses, t], ROUNDING, position=t):
                    with_cache = "with the cache" if incremental else "without a cache"
                    return broken(f"{with_cache}, step {t} of decoding changes the log-probabilities of {change}")
    return HOLDS


def weights_are_what_attention_computes(subject: Subject) -> Finding:
    """Where an attention has the method `weights`, its output is the sum of the values by these weights.

    Pictures of attention show `weights`.

    Usual cause: `weights` misses a mask, a bias or `start` that `forward` has.
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
            return untested("the attention has no method `weights`")
        move_zeros(attention)
        mask = Mask(causal=True) if site == "decoder" else Mask(keys)
        queries = Q[:, :, start:]
        with torch.no_grad():
            change = attention(queries, K, V, mask, start) - attention(queries, K, other, mask, start)
            error = (change - attention.weights(queries, K, mask, start) @ (V - other)).abs().max().item()
        if not error <= ROUNDING:  # also where it is NaN
            return broken(f"at {site}, start = {start}, it differs from the values times weights by {error:.2g}")
    return HOLDS


def evaluation_repeats(subject: Subject) -> Finding:
    """In evaluation, the same sentences give the same logits again, whatever the first pass has kept.

    Usual cause: dropout or noise that `eval()` does not switch off, or a state that is kept.
    """
    noisy = rebuilt(subject, p_drop=0.5)
    noisy.model.eval()
    before = moved_on(noisy)
    if change := difference(moved_on(noisy), before, SAME_SHAPES):
        return broken(f"a second evaluation changes the logits of {change}")
    return HOLDS


def what_is_carried_reaches_rows_that_go_on(subject: Subject) -> Finding:
    """Where something is carried, it changes the logits of each row that goes on by its own, and no others.

    A batch may be computed several times, so a pass does not change what the next one is given.

    Usual cause: zeros, which a row that begins anew is given, count as what is carried; or rows are mixed.
    """
    subject.model.eval()
    before = logits(subject)
    states = carried(subject.model)
    if not any(value.numel() for state in states for value in state.values()):
        return HOLDS
    carry(subject.model, states, torch.arange(SENTENCES, device=before.device) == 0)
    after, again = logits(subject), logits(subject)
    if change := difference(after[:1], before[:1], ROUNDING):
        return broken(f"where a row begins anew, what the batch before has left changes the logits of {change}")
    for row in range(1, SENTENCES):
        own = slice(row, row + 1)
        if not difference(after[own], before[own], 10 * ROUNDING):
            return broken(f"what is carried does not change the logits of row {row}, which goes on")
        of_row = [{name: value[own] for name, value in state.items()} for state in states]
        carry(subject.model, of_row, torch.zeros(1, dtype=torch.bool, device=before.device))
        if change := difference(logits(subject, subject.source[own], subject.target[own]), after[own], ROUNDING):
            return broken(f"row {row} alone, with what it carries, has other logits: {change}")
    if change := difference(again, after, SAME_SHAPES):
        return broken(f"a second pass of the same batch changes the logits of {change}")
    return HOLDS


def saved_weights_are_all(subject: Subject) -> Finding:
    """A new model that loads the saved weights computes the same, also after a step of training.

    Otherwise a resumed or translated trial is another model.

    Usual cause: a tensor in a plain attribute in place of a buffer or a parameter.
    """
    moved_on(subject)
    try:
        as_safetensors(subject.model.state_dict())
    except Exception as error:  # a component may put anything into its state
        return broken(f"the weights cannot be saved as safetensors: {error}")
    subject.model.eval()
    loaded = rebuilt(subject, seed=SEED + 1)
    loaded.model.eval()
    if change := difference(logits(loaded), logits(subject), SAME_SHAPES):
        return broken(f"loading the weights into a new model changes the logits of {change}")
    return HOLDS


def it_runs_on_the_device_of_its_input(subject: Subject) -> Finding:
    """A model that is moved to another device computes there.

    Otherwise it fails on a GPU. This is measured without a GPU, on torch's meta device, which computes shapes alone: in
    training, and in two steps of decoding. Code that reads values cannot be measured so.

    Usual cause: a tensor in a plain attribute, or made without `device=x.device`.
    """
    model, source, target = rebuilt(subject).model.to("meta"), subject.source.to("meta"), subject.target.to("meta")
    try:
        with torch.no_grad():
            model.train()(source, target)
            step = CachedSteps(model.eval(), source)
            for t in (1, 2):
                step(target[:, None, :t], torch.arange(SENTENCES, device="meta")[:, None])
    except Exception as error:
        why = f"on another device it fails: {str(error).splitlines()[0]}"
        is_elsewhere = "expected device meta" in why or "same device" in why
        return broken(why) if is_elsewhere else untested(f"{why} (the device meta has no values to read)")
    return HOLDS


def bfloat16_is_close(subject: Subject) -> Finding:
    """The logits in bfloat16 are close to those in float32.

    Usual cause: long sums or positions in bfloat16, or a mask value that float32 alone can hold.
    """
    subject.model.eval()
    expected = logits(subject)
    with torch.autocast(subject.source.device.type, torch.bfloat16):
        rounded = logits(subject).float()
    error = ((rounded - expected)[subject.target != PAD].square().mean() / expected.var()).sqrt().item()
    if not error < ROUNDING_BFLOAT16:
        return broken(f"they differ by {error:.2g} standard deviations (root mean square; at most {ROUNDING_BFLOAT16})")
    return HOLDS
