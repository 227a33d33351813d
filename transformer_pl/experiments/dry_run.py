"""Parts that are not the paper's are tried out before anything starts, in a small model."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transformer_pl.components import definition_place, described, import_component
from transformer_pl.config import SLOTS, Sizes, is_papers
from transformer_pl.data.tokenizer import BOS, PAD
from transformer_pl.evaluation.evaluate import CachedSteps, attention_maps
from transformer_pl.model import MultiHeadAttention, Transformer
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code

PIECES = range(4, 32)  # of the vocabulary; the first are marks


def dry_run(c: Sizes) -> str:
    """One layer a stack: padded sentences forward and backward, then three steps of a beam search.

    Returns where it runs: `cpu`; or `cuda`, for a part that does not run on a CPU. Raises an InputError that names the
    part, its file and line where one fails, or returns another shape or type than its seam has.
    """
    messages: list[str] = []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        try:
            with component_code():
                _play(c._replace(N=1), device)
            return device
        except InputError:
            raise
        except Exception as error:
            messages += component_failure(c, error).messages
    raise InputError(*messages)


def component_failure(c: Sizes, error: Exception) -> InputError:
    """What to tell of a model that does not run."""
    parts = {seam: getattr(c, seam) for seam in SLOTS if not is_papers(seam, getattr(c, seam))}
    own = ", ".join(_told(seam, import_component(part.path)) for seam, part in parts.items())
    return InputError(f"{own}: must run, but {described(error)}")


def _play(c: Sizes, device: str) -> None:
    with torch.random.fork_rng(devices=[]):
        model = Transformer(c).to(device)
        last = min(PIECES.stop, c.vocab_size)
        source, target = (torch.randint(min(PIECES.start, last - 1), last, (2, L), device=device) for L in (7, 6))
        source[0, 5:] = target[1, 4:] = PAD
        for seam, part in _parts(model):
            if isinstance(part, nn.Module):
                part.register_forward_hook(partial(_as_its_seam_has, seam))
        embedding = partial(_expect, "embedding", type(model.embedding))
        for site, ids in (("encoder", source), ("decoder", target)):
            embedding(model.embedding.embed(ids, site), (*ids.shape, c.d_model), "from embed")
        logits = model(source, target)
        embedding(logits, (*target.shape, c.vocab_size), "from logits")
        logits.square().mean().backward()
        pairs = {"encoder": (7, 7), "decoder": (6, 6), "cross": (6, 7)}
        for site, layers in attention_maps(model, source, target).items():
            for weights in layers:
                _expect(
                    "attention",
                    import_component(c.attention.path),
                    weights,
                    (2, c.h, *pairs[site]),
                    f"from weights at {site}",
                )
        model.eval()
        with torch.inference_mode():
            step, first = CachedSteps(model, source, beam=2), torch.full((4, 1), BOS, device=device)
            for prefixes, origin in (
                (first, [0, 1, 2, 3]),
                (first.repeat(1, 2), [1, 0, 3, 3]),
                (first[:2].repeat(1, 3), [3, 2]),  # the first sentence is done
            ):
                step(prefixes, torch.tensor(origin, device=device))


def _parts(model: Transformer) -> Iterator[tuple[str, nn.Module]]:
    yield from (("position", part) for part in model.position.values())
    for layer in (*model.encoder, *model.decoder):
        yield from (("self_attention", layer.self_attention), ("ffn", layer.ffn))
        yield from (("residual", part) for part in layer.residual)
    yield from (("attention", door.attention) for door in model.modules() if isinstance(door, MultiHeadAttention))


def _as_its_seam_has(seam: str, part: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
    """What goes in comes out, in shape and type; of Q, K and V a (B, h, Lq, d_v)."""
    x = given[0]
    shape = (*x.shape[:-1], given[2].shape[-1]) if seam == "attention" else tuple(x.shape)
    _expect(seam, type(part), returned, shape, f"where it is given {tuple(x.shape)}")


def _expect(seam: str, part: type, returned: Any, shape: tuple[int, ...], place: str) -> None:
    found = (tuple(returned.shape), returned.dtype) if isinstance(returned, Tensor) else (type(returned).__name__,)
    if found != (shape, torch.float32):
        raise InputError(
            f"{_told(seam, part)}: must return {shape} of {torch.float32} {place}, but returns "
            f"{' of '.join(map(str, found))}"
        )


def _told(seam: str, part: type) -> str:
    return f"model.{seam} = {part.__module__}.{part.__qualname__} ({definition_place(part)})"
