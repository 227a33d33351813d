"""The constraints between keys of the configuration: what no type of a single key can say."""

from collections.abc import Iterator

from transformer_pl.config import STACKS, Config
from transformer_pl.config.types import LARGEST, exact_product

BY_WIDTH = ("d_model", "d_ff", "d_k", "d_v")  # the sizes that model.width multiplies
BrokenConstraint = tuple[tuple[str, ...], str]  # the keys; what must hold of them, and the remedy

NEVER_TOGETHER = {  # two settings of the trainer, and why they do not go together
    ("precision", "16-mixed", "accelerator", "cpu"): "16-mixed needs a GPU; choose bf16-mixed or 32-true",
    ("precision", "16-mixed", "strategy", "fsdp2"): "16-mixed scales the loss, and fsdp2 cannot; choose bf16-mixed",
    ("precision", "bf16-master", "strategy", "fsdp2"): "bf16-master needs whole weights; choose bf16-mixed, or ddp",
    ("compile", "on", "strategy", "fsdp2"): "layers that fsdp2 splits are not compiled; choose auto or off, or ddp",
}


def broken_constraints(config: Config) -> Iterator[BrokenConstraint]:
    """Every constraint that this config breaks."""
    yield from _products_are_whole(config)
    yield from _heads_divide_d_model(config)
    trainer = config.trainer
    for (first, value, second, other), constraint in NEVER_TOGETHER.items():
        if (getattr(trainer, first), getattr(trainer, second)) == (value, other):
            yield (f"trainer.{first}", f"trainer.{second}"), constraint
    if config.model.start_with == "all" and config.model.start is None:
        yield ("model.start_with",), "all is the state of a start, but there is none; set model.start"
    if (config.decode.stride or 0) > config.data.longest:
        constraint = f"decode.stride must be at most {config.data.longest}, the tokens of a piece; lower it"
        yield ("decode.stride", "data.max_length", "data.batch_tokens"), constraint
    if config.optim.clip is not None and trainer.precision == "16-mixed":
        yield ("optim.clip", "trainer.precision"), "16-mixed scales the gradients; choose bf16-mixed, or leave clip out"
    if trainer.val_sample and trainer.strategy == "fsdp2":
        keys = "trainer.val_sample", "trainer.strategy"
        yield keys, "with fsdp2 no process holds the whole model, which translating needs; choose ddp, or val_sample=0"


def _products_are_whole(config: Config) -> Iterator[BrokenConstraint]:
    """A size times its multiplier is a whole number."""
    model, optim = config.model, config.optim
    products = [
        *((f"model.{name}", getattr(model, name), "model.depth", model.depth) for name in ("N", *STACKS)),
        *((f"model.{name}", getattr(model, name), "model.width", model.width) for name in BY_WIDTH),
        ("optim.max_steps", optim.max_steps, "optim.duration", optim.duration),
    ]
    for key, size, multiplier_key, multiplier in products:
        product = exact_product(size or 1, multiplier)  # N_encoder may be 0, and stays 0
        if size and (product.denominator != 1 or not 1 <= product <= LARGEST):
            constraint = f"at most {LARGEST:,}" if product > LARGEST else "a whole number of at least 1"
            yield (key, multiplier_key), f"their product must be {constraint}, but is {float(product):.12g}"


def _heads_divide_d_model(config: Config) -> Iterator[BrokenConstraint]:
    """h must divide d_model, before and after the multiplier, if d_k or d_v is unset and thus d_model / h."""
    model = config.model
    unset = [name for name in ("d_k", "d_v") if getattr(model, name) is None]
    d_model = exact_product(model.d_model, model.width)
    if unset and (model.d_model % model.h or (d_model.denominator == 1 and d_model % model.h)):
        effective = "" if model.width == 1 else f" (d_model is {float(d_model):g} at width {model.width:g})"
        constraint = f"h must divide d_model{effective} while {' and '.join(unset)} are unset; set them"
        yield ("model.h", "model.d_model", "model.width"), f"{constraint}, or choose another h"
