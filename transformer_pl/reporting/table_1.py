"""Table 1, measured: the times of a layer at several lengths, how they grow, and the tables of both."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch.utils.benchmark import Timer

from transformer_pl.components import build
from transformer_pl.config import Config, Sizes, sizes
from transformer_pl.model import Mask
from transformer_pl.reporting.render import Column, Table
from transformer_pl.runtime.environment import describe_environment
from transformer_pl.runtime.errors import InputError

PASSES = ("forward", "training")  # training: forward and backward
ROUNDS = 3
RUN_S = 0.2  # seconds that each timing takes at least
LONG = 512  # the exponent is fitted from here on; below, the overhead of a call is most of its time
LAYER_KEYS = ("self_attention", "attention", "d_model", "h", "d_k", "d_v")
ORDERS = {"complexity": None, "sequential operations": 2, "longest path": 1}  # columns of Table 1: Column.drop_rank


class Layer(NamedTuple):
    """A layer in the place of self-attention, and its times."""

    name: str
    table_1: tuple[str, ...]  # its ORDERS, where its class states them
    seconds: dict[str, dict[int, float]]  # by pass and length; lengths that did not fit into memory are missing


class Growth(NamedTuple):
    """How time grows with n."""

    exponent: float  # p of n^p, by least squares on the logarithms, from length LONG on
    error: float  # its standard error
    quadratic: float  # the share of c n^2 in a + b n + c n^2 at the greatest length


def measure(rows: Mapping[str, Config], lengths: Sequence[int], device: str) -> list[Layer]:
    """Time the encoder's layer of each row. Rows with equal layers share one measurement.

    A layer has the name of its class, or of its row where several have the same class. Layers alternate within a
    round, so that a machine whose speed drifts favours none.
    """
    different: dict[str, tuple[str, Sizes]] = {}
    for row, config in rows.items():
        model = sizes(config.model, 1)
        different.setdefault(str([getattr(model, size) for size in LAYER_KEYS]), (row, model))
    models = [model for _, model in different.values()]
    built = [build(model.self_attention, model, "encoder").to(device) for model in models]
    layers = [_described(layer, model) for layer, model in zip(built, models, strict=True)]
    if len({layer.name for layer in layers}) < len(layers):
        layers = [layer._replace(name=row) for layer, (row, _) in zip(layers, different.values(), strict=True)]
    for n in lengths:
        print(f"n = {n}", file=sys.stderr, flush=True)
        for which in PASSES:
            passes = [_pass(layer, model.d_model, n, device, which) for layer, model in zip(built, models, strict=True)]
            rounds = [[_seconds(run) for run in passes] for _ in range(ROUNDS)]
            for layer, seconds in zip(layers, zip(*rounds, strict=True), strict=True):
                if None not in seconds:
                    layer.seconds[which][n] = statistics.median(seconds)
    return layers


def growth(seconds: dict[int, float]) -> Growth | None:
    """Fit how seconds grow with the length. None where fewer than three lengths are at least LONG.

    a, b and c are not negative, and fitted by least squares on relative errors.
    """
    n, t = np.array(list(seconds), float), np.array(list(seconds.values()))
    if (n >= LONG).sum() < 3:
        return None
    x, y = np.log(n[n >= LONG]), np.log(t[n >= LONG])
    x, y = x - x.mean(), y - y.mean()
    exponent = x @ y / (x @ x)
    error = np.sqrt(np.sum((y - exponent * x) ** 2) / (len(x) - 2) / (x @ x))
    terms = np.stack([n**0, n, n**2], 1)
    at_greatest = terms[-1] * nnls(terms / t[:, None], np.ones_like(t))[0]
    return Growth(float(exponent), float(error), float(at_greatest[2] / at_greatest.sum()))


def growth_table(layers: Sequence[Layer], conditions: str) -> Table:
    """One line per layer: the paper's orders beside the measured growth. One record per layer, pass and length."""
    columns = [Column("layer", [layer.name for layer in layers])]
    for i, (order, drop_rank) in enumerate(ORDERS.items()):
        cells = [f"O({layer.table_1[i]})" if layer.table_1 else "" for layer in layers]
        columns.append(Column(order, cells, drop_rank=drop_rank))
    for which in PASSES:
        fits = [growth(layer.seconds[which]) for layer in layers]
        columns.append(Column(f"{which} n^p, p =", [f"{f.exponent:.2f} ± {f.error:.2f}" if f else "-" for f in fits]))
        columns.append(Column("n² part", [f"{f.quadratic:.0%}" if f else "-" for f in fits]))
    notes = [
        f"One layer, one sequence; {conditions}.",
        f"Orders: Table 1 of the paper. n^p: fitted from n = {LONG} on, ± the standard error of the fit.",
        "n² part: share of c n² in a + b n + c n² at the greatest n. Projections to Q, K and V are O(n d²).",
    ]
    records = [
        {"layer": layer.name, "pass": which, "n": n, "seconds": seconds}
        for layer in layers
        for which in PASSES
        for n, seconds in layer.seconds[which].items()
    ]
    return Table(columns, records, notes)


def times_table(layers: Sequence[Layer], which: str, lengths: Sequence[int]) -> Table:
    """The times of one pass: one line per layer, one column per length."""
    columns = [Column(f"{which}, ms, at n =", [layer.name for layer in layers])]
    for n in lengths:
        columns.append(Column(f"{n}", [_milliseconds(layer.seconds[which].get(n)) for layer in layers]))
    return Table(columns, [], [f"Medians of {ROUNDS} rounds; layers alternate within a round."])


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{float(f'{1e3 * seconds:.3g}'):,g}"


def _described(layer: torch.nn.Module, model: Sizes) -> Layer:
    """Name a layer after its class and options, or after those of its attention. Either may state its `table_1`."""
    component, declared = (
        (layer.attention, model.attention) if hasattr(layer, "attention") else (layer, model.self_attention)
    )
    options = "".join(f" {option}={value}" for option, value in declared.options.items())
    return Layer(type(component).__name__ + options, getattr(component, "table_1", ()), {which: {} for which in PASSES})


def _pass(layer: torch.nn.Module, d_model: int, n: int, device: str, which: str) -> Callable[[], None]:
    """A function that runs one pass of the layer over one sequence of n positions without padding."""
    x = torch.randn(1, n, d_model, device=device, requires_grad=True)

    def forward() -> None:
        with torch.no_grad():
            layer(x, Mask())

    def training() -> None:
        layer(x, Mask()).sum().backward()

    return forward if which == "forward" else training


def _seconds(run: Callable[[], None]) -> float | None:
    """The median time of a call; None where it does not fit into memory."""
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    try:
        return timer.blocked_autorange(min_run_time=RUN_S).median
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in ("memory", "bad_alloc")):
            raise
        return None


def device(chosen: str | None) -> str:
    """`cuda` or `cpu`; where none is chosen, `cuda` if there is a GPU. Raises an InputError where there is none."""
    if chosen == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch must find a GPU, but there is none; leave it out")
    return chosen or ("cuda" if torch.cuda.is_available() else "cpu")


def machine(device: str) -> str:
    """The device and torch, for the note under a table."""
    here = describe_environment(["torch"])
    where = torch.cuda.get_device_name() if device == "cuda" else f"{here['cpu']}, {torch.get_num_threads()} threads"
    return f"{where}, torch {here['packages']['torch']}"
