"""Rows with made-up results, for the tests of tables."""

import math
import re
from dataclasses import replace

import numpy as np
from chance import drawn

from transformer_pl.report.sweep_rows import LOSS, Grid, of_measure
from transformer_pl.report.sweep_table import rows_and_about
from transformer_pl.table.comparison import compare
from transformer_pl.table.row import About, Outcome, Row
from transformer_pl.table.table import make_table
from transformer_pl.tasks.translation import Translation, bleu

BLEU = Outcome("val/bleu", "BLEU", 1, False, 0.0, 100.0, learned=1.0)
PPL = Outcome("val/loss", "PPL", 2, True, 0.0, is_logarithm=True, of_tokens=True)
ABOUT = About(
    outcomes=[BLEU, PPL],
    others={"val/chrf": "chrF"},
    unit="sentences",
    has_page=True,
)


def row(name, *bleus, state="new", ppl=3.0, **more):
    """A row with one seed per BLEU; None stands for a seed without a result whose trial is in this state."""
    done = [one for one in bleus if one is not None]
    values = (
        {
            "val/ppl": [ppl] * len(done),
            "val/loss": [math.log(ppl)] * len(done),
            "val/bleu": done,
            "val/chrf": [50.0] * len(done),
        }
        if done
        else {}
    )
    states = ["done" if one is not None else state for one in bleus]
    known = {"params": 1_490_000, "flops": 1e15, "scored_steps": [1000] * len(done)} if done else {}
    return Row(name=name, **{"values": values, "states": states, "is_base": name == "base"} | known | more)


def sampled(name, sentences, weights=(), **more):
    """A row with the numbers of its sentences by seed (seeds, sentences, 12)."""
    scores = [float(bleu(one[:, :10].sum(0))) for one in sentences]
    metrics = {"val/bleu": of_measure(Translation.measure), "val/loss": LOSS}
    samples = {key: metric.sample(sentences)._replace(weights=weights) for key, metric in metrics.items()}
    return row(name, *scores, samples=samples, **more)


def open_ended(sign=1):
    """A table of an outcome x whose third row has an interval that the test ends at zero: a later step finds it."""
    scores = {"base": (8.064, 8.072, 8.003), "a": (7.962, 7.945, 8.002), "b": (8.149, 8.128, 8.21)}
    scores |= {"c": (8.207, 8.227, 8.154)}
    rows = [Row.of_values(name, {"x": [sign * s for s in of]}, is_base=name == "base") for name, of in scores.items()]
    return make_table(rows, About(outcomes=[Outcome("x", "x", 2)]))


def comparisons(samples, base=0, measure=BLEU, same_dataset=()):
    """What `compare` finds for rows with these samples; None where a row has none. base: the place of base."""
    datasets = same_dataset or [True] * len(samples)
    rows = [
        Row(name="", samples={measure.key: one} if one else {}, dataset=dataset)
        for one, dataset in zip(samples, datasets, strict=True)
    ]
    contrasts = compare(rows, measure, None if base is None else rows[base])
    return [replace(one, row=None, difference=None) if one.is_known else None for one in contrasts]


def measured_sentences(gaps, seeds=3, spread=0.02):
    """The numbers of 400 sentences for each row. A gap is the share of base's mistakes that a row avoids."""
    rng = np.random.default_rng(1)
    for gap, own in zip(gaps, drawn(rng, len(gaps), seeds, 400, spread), strict=True):  # the same sentences for all
        matching = np.minimum(own[..., 4:8], own[..., :4] + rng.binomial(own[..., 4:8] - own[..., :4], gap))
        nats = np.stack([own[..., 8] * (1 - gap) + rng.normal(0, 1, own.shape[:2]), own[..., 8]], -1)
        yield np.concatenate([matching, own[..., 4:], nats], -1)


def measured(gaps, seeds=3, spread=0.02):
    """Rows base, h=1, h=4, ... of `measured_sentences`."""
    names = ("base", "h=1", "h=4", "h=16", "h=32", "h=2", "h=64")
    rows = zip(names, measured_sentences(gaps, seeds, spread), strict=False)
    return [sampled(name, sentences, settings={"model.h": name[2:]}) for name, sentences in rows]


def table(rows, **about):
    return make_table(rows, replace(ABOUT, **about))


def sweep_table(grid, **options):
    """The table of a sweep and its trials, and its rows. options: those of `rows_and_about`."""
    grid = Grid(*grid)
    rows, about = rows_and_about(grid, **options)
    return make_table(rows, about), rows


def said(table):
    """Summary and notes as one text. There are at most seven notes."""
    assert len(table.notes) <= 7
    text = "\n".join([table.summary, *table.notes])
    assert not re.search(r"[,;:(] ?[.,;:)]| [.,;:)]|  |\.\.", text), text
    return text


def column(table, name):
    return next(column.cells for column in table.columns if column.name == name)


def names(table):
    return [column.name for column in table.columns]
