"""What a model costs before it is trained: parameters and floating-point operations."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from transformer_pl.config import Config, Optim, Sizes, sizes
from transformer_pl.config.components import component_names, is_core
from transformer_pl.runtime.calls import call_in_child
from transformer_pl.runtime.machine import peak_flops

ASSUMED_LENGTH = 25  # tokens per sentence, assumed where the dataset is not prepared


class Cost(NamedTuple):
    """The cost of a model and of some computation with it."""

    params: int
    flops: float  # floating-point operations; a multiply-add counts as two


class Sentences(NamedTuple):
    """How many sentence pairs, and how many tokens their sources and their targets have."""

    pairs: float
    source: float
    target: float


class Computed(NamedTuple):
    """What a training has computed, as it was counted."""

    batches: Sentences  # that were trained on
    with_gradient: Sentences  # of whole passes of the model with a gradient
    without_gradient: Sentences
    is_whole: bool  # whether there were no other calls of the model or of its parts

    @property
    def passes(self) -> float | None:
        """How many passes with a gradient a batch costs, by target tokens; None where that is not known."""
        passes = (self.with_gradient.target + self.without_gradient.target / 3) / max(1, self.batches.target)
        return round(passes, 2) if self.is_whole else None


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
        counts = call_in_child(names, _counted, "counted_costs", others)
        costs |= {forward_pass: Cost(*count) for forward_pass, count in zip(others, counts, strict=True)}
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


def trained_flops(
    config: Config, lengths: tuple[float, float], steps: int, computed: Computed | None, usual: Sentences | None
) -> float | None:
    """The floating-point operations of a training that has ended.

    lengths: the mean tokens per sentence of source and target. steps: that were trained. computed: what was counted;
    None: one pass for each batch. usual: what as many batches of the core's hold; None: the row has the core's.

    None where they are not known, because parts of the model were called beside whole passes.
    """
    [cost] = training_costs([(config, lengths)])
    flops = cost.flops * steps / config.steps
    if computed is None:
        return flops
    if not computed.is_whole:
        return None
    model, pair = sizes(config.model, config.data.vocab_size), tuple(max(1, round(length)) for length in lengths)
    of_loss = 3 * steps * loss_flops(config.optim, model, 1, *pair) * config.data.batch_tokens / max(pair)
    batches, with_gradient, without_gradient, _ = computed
    kinds = [usual or batches, batches, with_gradient, without_gradient]
    means = [(round(kind.source / max(1, kind.pairs)), round(kind.target / max(1, kind.pairs))) for kind in kinds]
    costs = forward_costs([(model, 1, max(1, source), max(1, target)) for source, target in means])
    unit, trained, of_passes, more = (kind.pairs * cost.flops for kind, cost in zip(kinds, costs, strict=True))
    return (flops - of_loss) * (of_passes + more / 3) / unit + of_loss * trained / unit


@cache
def loss_flops(optim: Optim, *forward_pass: Any) -> float:
    """What a loss with weights of its own computes beside the model, forward. It is counted in a child process.

    forward_pass: what `forward_costs` takes.
    """
    path = optim.loss.path
    place = f"optim.loss = {path}"
    return 0.0 if is_core(path) else call_in_child(place, _counted, "counted_loss", optim, *forward_pass)


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
    read = Lt if c.N_encoder else Ls - 1 + Lt  # positions; a decoder alone reads the source, too, but for its EOS
    decoder_layer = read * (attention + ffn) + read * read * products
    if cross:
        decoder_layer += Lt * query_output + Ls * keys_values + Lt * Ls * products
    layers = c.N_encoder * encoder_layer + c.N_decoder * decoder_layer
    return Cost(params, 2 * B * (layers + Lt * c.d_model * c.vocab_size))


def _counted(function: str, *arguments: Any) -> Any:
    """What a function of `counted_flops.py` returns. It is called in a child process, as it imports torch."""
    from transformer_pl.trials import counted_flops

    return getattr(counted_flops, function)(*arguments)
