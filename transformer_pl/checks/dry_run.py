"""The dry run: a small model with the given components runs before anything starts, so that mistakes show at once."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transformer_pl.checks.calls import call_mistakes
from transformer_pl.components import import_component, named
from transformer_pl.config import Sizes, not_papers
from transformer_pl.data.tokenizer import BOS, PAD
from transformer_pl.evaluation.evaluate import CachedSteps, attention_maps
from transformer_pl.model import MultiHeadAttention, Transformer
from transformer_pl.runtime.errors import InputError

SUBWORDS = range(4, 32)  # ids to draw sentences from; the ids below are special tokens
SOURCE_LENGTH, TARGET_LENGTH = 7, 6  # different, so that a mix-up shows


class DryRun(NamedTuple):
    """What every check is given."""

    config: Sizes
    model: Transformer  # one layer in the encoder, and in the decoder
    source: Tensor  # (2, SOURCE_LENGTH) ids, one sentence of which is padded
    target: Tensor  # (2, TARGET_LENGTH) ids, one sentence of which is padded


def dry_run(config: Sizes) -> str:
    """Run every check on a model with one layer per stack.

    Returns the device on which it runs: `cpu`, or `cuda` for a component that does not run on a CPU. Raises an
    InputError where a component cannot be called or returns something else than it must, and whatever it raises itself.
    """
    if mistakes := list(_not_modules(config)) or list(_not_callable(config)):
        raise InputError(*mistakes)
    try:
        _run_checks(config, "cpu")
        return "cpu"
    except Exception:
        if not torch.cuda.is_available():
            raise
    _run_checks(config, "cuda")
    return "cuda"


def _run_checks(config: Sizes, device: str) -> None:
    with torch.random.fork_rng(devices=[]):
        run = _small_model(config._replace(N=1), device)
        for check in CHECKS:
            check(run)


def _not_modules(config: Sizes) -> Iterator[str]:
    for slot, component in not_papers(config).items():
        if not issubclass(imported := import_component(component.path), nn.Module):
            yield f"{named(slot, imported)}: must be a torch.nn.Module, but is another class; derive it from one"


def _not_callable(config: Sizes) -> Iterator[str]:
    """The components that the model cannot build or call."""
    for slot, component in not_papers(config).items():
        imported = import_component(component.path)
        yield from (f"{named(slot, imported)}: {mistake}" for mistake in call_mistakes(slot, imported))


def _small_model(config: Sizes, device: str) -> DryRun:
    model = Transformer(config).to(device)
    stop = min(SUBWORDS.stop, config.vocab_size)
    start = min(SUBWORDS.start, stop - 1)
    source, target = (torch.randint(start, stop, (2, L), device=device) for L in (SOURCE_LENGTH, TARGET_LENGTH))
    source[0, 5:] = target[1, 4:] = PAD
    return DryRun(config, model, source, target)


# ---------------------------------------------------------------------------------------------------------------------
# The checks


def check_embedding(run: DryRun) -> None:
    """`embed` returns (B, L, d_model) at both sites."""
    embedding = run.model.embedding
    for site, ids in (("encoder", run.source), ("decoder", run.target)):
        shape = (*ids.shape, run.config.d_model)
        _check_shape_and_type("embedding", type(embedding), embedding.embed(ids, site), shape, "from embed")


def check_forward_and_backward(run: DryRun) -> None:
    """Every component returns the shape and the type of its slot, and the backward pass runs."""
    for slot, component in _components(run.model):
        if isinstance(component, nn.Module):
            component.register_forward_hook(partial(_check_slot, slot))
    logits = run.model(run.source, run.target)
    shape = (*run.target.shape, run.config.vocab_size)
    _check_shape_and_type("embedding", type(run.model.embedding), logits, shape, "from logits")
    logits.square().mean().backward()


def check_attention_maps(run: DryRun) -> None:
    """Where the attention has `weights`, it returns (B, h, Lq, Lk) at every site."""
    lengths = {
        "encoder": (SOURCE_LENGTH, SOURCE_LENGTH),
        "decoder": (TARGET_LENGTH, TARGET_LENGTH),
        "cross": (TARGET_LENGTH, SOURCE_LENGTH),
    }
    for site, layers in attention_maps(run.model, run.source, run.target).items():
        for weights in layers:
            attention, shape = import_component(run.config.attention.path), (2, run.config.h, *lengths[site])
            _check_shape_and_type("attention", attention, weights, shape, f"from weights at {site}")


def check_beam_search(run: DryRun) -> None:
    """Four steps of a beam search run: two hypotheses begin as one, change places, and at last a sentence is done."""
    run.model.eval()
    with torch.no_grad():
        step = CachedSteps(run.model, run.source)
        for length, origin in enumerate(([[0], [1]], [[0, 0], [1, 1]], [[1, 0], [3, 3]], [[3, 2]]), start=1):
            prefixes = torch.full((len(origin), len(origin[0]), length), BOS, device=run.source.device)
            step(prefixes, torch.tensor(origin, device=run.source.device))


CHECKS = (check_embedding, check_forward_and_backward, check_attention_maps, check_beam_search)


# ---------------------------------------------------------------------------------------------------------------------
# Shapes and types


def _components(model: Transformer) -> Iterator[tuple[str, Any]]:
    """Every component of the model with its slot, but for the embedding."""
    yield from (("position", position) for position in model.position.values())
    for layer in (*model.encoder, *model.decoder):
        yield from (("self_attention", layer.self_attention), ("ffn", layer.ffn))
        yield from (("residual", residual) for residual in layer.residual)
    multi_head = (module for module in model.modules() if isinstance(module, MultiHeadAttention))
    yield from (("attention", module.attention) for module in multi_head)


def _check_slot(slot: str, component: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """A forward hook: the output has the shape and type of the input; of Q, K and V it has (B, h, Lq, d_v)."""
    x = inputs[0]
    shape = (*x.shape[:-1], inputs[2].shape[-1]) if slot == "attention" else tuple(x.shape)
    _check_shape_and_type(slot, type(component), output, shape, f"where it is given {tuple(x.shape)}")


def _check_shape_and_type(slot: str, component: type, output: Any, shape: tuple[int, ...], where: str) -> None:
    """Raise an InputError unless the output is a float32 tensor of this shape."""
    actual = (tuple(output.shape), output.dtype) if isinstance(output, Tensor) else (type(output).__name__,)
    if actual != (shape, torch.float32):
        raise InputError(
            f"{named(slot, component)}: must return {shape} of {torch.float32} {where}, but returns "
            f"{' of '.join(map(str, actual))}"
        )
