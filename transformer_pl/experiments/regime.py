"""The regime of a training in numbers that do not look at its result, beside the paper's.

A table of short trainings, on text that is seen once, at a high learning rate, need not agree with the paper's.
"""

from collections.abc import Iterable
from typing import NamedTuple

from transformer_pl.config import Config, sizes
from transformer_pl.data.prepared import Prepared, epoch
from transformer_pl.schedule import learning_rate


class Regime(NamedTuple):
    """How a model is trained."""

    epochs: float | None  # None: the text is not prepared yet
    tokens_per_param: float | None  # target tokens seen, EOS included and padding not; None as above
    peak_rate: float  # the highest learning rate


def regime(config: Config, prepared: Prepared, params: int) -> Regime:
    """The regime of a trial on its text. params: of its model."""
    peak, data = _peak_rate(config), config.data
    size = epoch(prepared, data.batch_tokens, data.max_length) if prepared.is_counted() else None
    if size is None or not size.batches:
        return Regime(None, None, peak)
    epochs = config.steps / size.batches
    return Regime(epochs, epochs * size.target_tokens / params, peak)


def _peak_rate(config: Config) -> float:
    """At the end of warm-up; of a training that ends before, at its last step."""
    optim = config.optim
    d_model = sizes(config.model, config.data.vocab_size).d_model
    return learning_rate(min(optim.warmup, config.steps), d_model, optim.warmup, optim.lr_scale)


def papers_regime() -> Regime:
    """That of the paper's base: 100K steps of about 25,000 target tokens, which are about 18 epochs of WMT 2014
    English-German, for 65M parameters (Sections 5.1 and 5.2, Table 3). The rate follows from equation 3."""
    base = Config()
    return Regime(18, base.steps * base.data.batch_tokens / 65e6, _peak_rate(base))


def describe_regime(base: Regime, rows: Iterable[Regime] = ()) -> str:
    """One sentence: base's regime, the paper's, and the range of the rows where they differ from base."""
    paper, others, parts = papers_regime(), [base, *rows], []
    units = "{} epochs of the text", "{} target tokens per parameter", "a peak learning rate of {}"
    for index, unit in enumerate(units):
        values = [value for one in others if (value := one[index]) is not None]
        if base[index] is not None:
            low, high = f"{min(values):.2g}", f"{max(values):.2g}"
            span = "" if low == high else f"all rows: {low} to {high}; "
            parts.append(f"{unit.format(f'{base[index]:.2g}')} ({span}the paper's base: {paper[index]:.2g})")
    return "Training regime: " + "; ".join(parts)
