"""What a model costs before it is trained: parameters and floating-point operations."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

from transformer_pl.config import Config, Optim, Sizes, sizes
from transformer_pl.config.components import build, component_names, is_core
from transformer_pl.runtime.calls import call_in_child
from transformer_pl.runtime.machine import peak_flops

ASSUMED_LENGTH = 25  # tokens per sentence, assumed where the dataset is not prepared


class Cost(NamedTuple):
    """The cost of a model and of some computation with it."""

    params: int
    flops: float  # floating-point operations; a multiply-add counts as two


def forward_costs(passes: Sequence[tuple[Sizes, int, int, int]]) -> list[Cost]:
    """The costs of forward passes.

    passes: for each the model, the number of sentence pairs, and the tokens of a source and of a target sentence.

    Only matrix products are counted. Where every component is the paper's, a formula gives the cost, without torch.
    The operations of other models are counted on the meta device, those of the same components in one child process.
    Raises an InputError that names a component which does not run.
    """
    by_components: dict[str, list[tuple[Sizes, int, int, int]]] = {}
    for forward_pass in dict.fromkeys(passes):
        by_components.setdefault(component_names(forward_pass[0]), []).append(forward_pass)
    papers = by_components.pop("", [])
    costs = {forward_pass: _cost_by_formula(*forward_pass) for forward_pass in papers}
    for names, others in by_components.items():
        costs |= zip(others, call_in_child(names, _counted_costs, others), strict=True)
    return [costs[forward_pass] for forward_pass in passes]


def training_costs(trainings: Sequence[tuple[Config, tuple[float, float]]]) -> list[Cost]:
    """The costs of trainings.

    trainings: for each the config, and the mean tokens per sentence of source and target.

    The means are rounded. A backward pass costs two forward passes.
    """
    models = [sizes(config.model, config.data.vocab_size) for config, _ in trainings]
    lengths = [(max(1, round(source)), max(1, round(target))) for _, (source, target) in trainings]
    passes = [(model, 1, *pair) for model, pair in zip(models, lengths, strict=True)]
    of_losses = [loss_flops(config.optim, *each) for (config, _), each in zip(trainings, passes, strict=True)]
    return [
        Cost(cost.params, 3 * config.steps * (cost.flops + of_loss) * config.data.batch_tokens / max(pair))
        for (config, _), pair, cost, of_loss in zip(trainings, lengths, forward_costs(passes), of_losses, strict=True)
    ]


@cache
def loss_flops(optim: Optim, *forward_pass: Any) -> float:
    """What a loss with weights of its own computes beside the model, forward. It is counted in a child process.

    forward_pass: what `forward_costs` takes.
    """
    path = optim.loss.path
    return 0.0 if is_core(path) else call_in_child(f"optim.loss = {path}", _counted_loss, optim, *forward_pass)


def share_of_peak(
    config: Config, cost: Cost, lengths: tuple[float, float], tokens_per_s: float, gpus: Sequence[str]
) -> float | None:
    """The speed of a training as a share of the peak of its GPUs, for matrix products in half precision.

    cost: of the whole training. lengths: the mean tokens per sentence of source and target. tokens_per_s: target tokens
    a second. gpus: the names of the GPUs of a node. None in full precision, and where no peak is known.
    """
    peaks = [peak_flops(gpu) for gpu in gpus]
    if config.trainer.precision == "32-true" or not peaks or None in peaks:
        return None
    tokens = config.steps * config.data.batch_tokens * lengths[1] / max(lengths)
    return cost.flops / tokens * tokens_per_s / (config.trainer.num_nodes * sum(filter(None, peaks)))


def _cost_by_formula(c: Sizes, B: int, Ls: int, Lt: int) -> Cost:
    query_output = c.d_model * c.h * (c.d_k + c.d_v)  # W^Q and W^O, Section 3.2.2
    keys_values = c.d_model * c.h * (c.d_k + c.d_v)  # W^K and W^V
    attention = query_output + keys_values
    cross = attention if c.N_encoder else 0  # a decoder alone attends to nothing else
    ffn = 2 * c.d_model * c.d_ff
    norm = 2 * c.d_model
    encoder = attention + ffn + c.d_ff + c.d_model + 2 * norm
    decoder = attention + cross + ffn + c.d_ff + c.d_model + (3 if c.N_encoder else 2) * norm
    params = c.N_encoder * encoder + c.N_decoder * decoder + c.vocab_size * c.d_model

    products = c.h * (c.d_k + c.d_v)  # the product of a query and a key, and that of its weight and a value
    encoder_layer = Ls * (attention + ffn) + Ls * Ls * products
    decoder_layer = Lt * (attention + ffn) + Lt * Lt * products
    if cross:
        decoder_layer += Lt * query_output + Ls * keys_values + Lt * Ls * products
    layers = c.N_encoder * encoder_layer + c.N_decoder * decoder_layer
    return Cost(params, 2 * B * (layers + Lt * c.d_model * c.vocab_size))


def _counted_costs(passes: Sequence[tuple[Sizes, int, int, int]]) -> list[Cost]:
    return [_counted_cost(*forward_pass) for forward_pass in passes]


def _counted_cost(c: Sizes, B: int, Ls: int, Lt: int) -> Cost:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from transformer_pl.model.dry_run import dry_run

    def count(device: str) -> Cost:
        ids: dict[str, Any] = {"dtype": torch.long, "device": device}
        counter = FlopCounterMode(display=False)
        with counter:
            model = build(c.architecture, c).to(device)
            model(torch.ones(B, Ls, **ids), torch.ones(B, Lt, **ids))
        return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops())

    return _on_meta_tensors(count, dry_run(c))


def _counted_loss(optim: Optim, c: Sizes, B: int, Ls: int, Lt: int) -> float:
    """See `loss_flops`. Nothing is counted of a loss that cannot be computed alone, such as one with a teacher."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from transformer_pl.data.batches import Batch
    from transformer_pl.model.loss import training_loss

    @torch.no_grad()
    def count(device: str) -> float:
        model, loss = build(c.architecture, c).to(device), build(optim.loss, c, optim)
        if not isinstance(loss, torch.nn.Module) or not list(loss.parameters()):
            return 0.0
        source, target = (torch.ones(B, L, dtype=torch.long, device=device) for L in (Ls, Lt))
        calls: list[int] = []
        with FlopCounterMode(display=False) as alone:
            model(source, target)
        model.register_forward_hook(lambda *_: calls.append(1))
        with FlopCounterMode(display=False) as together:
            training_loss(loss.to(device), model, Batch(source, target, target, B * Lt))
        return together.get_total_flops() - max(1, len(calls)) * alone.get_total_flops()

    with suppress(Exception):
        return _on_meta_tensors(count, "cpu")
    return 0.0


def _on_meta_tensors(count: Callable[[str], Any], device: str) -> Any:
    """What is counted on the meta device; on another one where a component reads values, which meta tensors lack."""
    import torch

    try:
        with torch.device("meta"):
            return count("meta")
    except Exception:
        with torch.random.fork_rng(devices=[]), _unfused():
            return count(device)


@contextmanager
def _unfused() -> Iterator[None]:
    """On a CPU, turn off the kernels whose operations torch does not count, and those that compute with zeros."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from transformer_pl.model import kernels

    small, kernels.SMALL = kernels.SMALL, 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that there is no Intel GPU
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        kernels.SMALL = small
