"""Printed tables, such as the paper's, and which printed row stands beside a row of a sweep."""

from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from transformer_pl.config import Config, Data, Section, custom_components, nominal_sizes
from transformer_pl.config.levels import SCALES, Level, resolve, scale_level
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.runtime.files import read_yaml
from transformer_pl.table.rows import Printed, PrintedTable, decimals_of

FOLDER = Path(__file__).parent / "published"


class PublishedRow(Section):
    """A printed row, stated as its difference from the paper's base."""

    label: str
    differs: dict[str, Any] = {}
    ppl: float | None = None
    score: float | None = Field(None, description="BLEU, or what else the table is of")
    params: float | None = Field(None, description="in millions")
    flops: float | None = Field(None, description="of the training: time * GPUs * sustained rate")

    @cached_property
    def printed(self) -> Printed:
        """Its numbers, as a table has them."""
        params = None if self.params is None else round(self.params * 1e6)
        return Printed(self.label, self.score, self.ppl, params, self.flops)

    @cached_property
    def config(self) -> Config:
        """The row's config at the paper's own scale."""
        return resolve([Level(f"published row {self.label}", self.differs)])


class PublishedTable(Section):
    """A printed table. Its differences are to the row labelled `base`."""

    source: str
    hub: str | None = Field(None, description="the dataset, as data.hub names it; empty: not known")
    split: Literal["val", "test"] = Field("val", description="the set that its scores are of")
    rows: list[PublishedRow]
    others: list[PublishedRow] = []  # systems that are no Transformer, and so no row of a sweep

    def find(self, config: Config) -> PublishedRow | None:
        """The printed row with this config's settings, whatever its scale; None if there is none."""
        return next((row for row in self.rows if _matched_settings(row.config) == _matched_settings(config)), None)

    def beside(self, sweep: Sweep) -> dict[str, Printed]:
        """The printed numbers beside the rows of a sweep, by the names of these.

        A printed row stands once, beside the config that is trained as base is, or beside the first. A config that
        differs from base in its data or in a component of its training has no printed row.
        """
        base, shown = sweep.base, dict[str, PublishedRow]()
        configs = {row.name: row.configs[0] for row in sweep.rows}
        for name in sorted(configs, key=lambda name: _unmatched_settings(configs[name]) != _unmatched_settings(base)):
            config = configs[name]
            is_alike = (config.data, custom_components(config.optim)) == (base.data, custom_components(base.optim))
            if is_alike and (row := self.find(config)) and row not in shown.values():
                shown[name] = row
        return {name: row.printed for name, row in shown.items()}

    def printed(self, config: Config) -> PrintedTable:
        """Where its numbers are from, as a table says it beside rows whose base has this config."""
        numbers, others = ([row.printed for row in rows] for rows in (self.rows, self.others))
        base = next((one for one in numbers if one.label == "base"), None)
        differs_in = ["data"] * (config.data.hub != self.hub)
        differs_in += ["sizes"] * ((config.model.width, config.model.depth) != (1, 1))
        return PrintedTable(self.source, base, self.split, decimals_of(numbers), others, differs_in=differs_in)


@cache
def read_published(name: str = "table3", languages: str = "en-de") -> PublishedTable | None:
    """Read a printed table by the name of its file, which may hold one for each pair of languages."""
    content = read_yaml(FOLDER / f"{name}.yaml")
    table = content if "rows" in content else content.get(languages)
    return PublishedTable.model_validate(table) if table else None


def paper_table(data: Data, published: str | None, sweep: str, shown: bool | None, split: str) -> PublishedTable | None:
    """The paper's table for a dataset: the one that a sweep is named after, such as table2, or else `published`.

    published: the table of the dataset's task; None: the paper has none. There is none either where `shown` is False,
    and by default where the dataset is the user's own: a folder, or a dataset or a language that no shipped scale has.
    A table of the validation set does not stand beside scores of the test set.
    """
    if not published or shown is False or (shown is None and not _is_shipped(data)):
        return None
    name = sweep if (FOLDER / f"{sweep}.yaml").is_file() else published
    table = read_published(name, f"{data.source}-{data.target}")
    return None if table and table.split != split == "test" else table


def _is_shipped(data: Data) -> bool:
    """Whether the dataset is that of a shipped scale, in the same languages."""
    datasets = [resolve([scale_level(path.stem)]).data for path in SCALES.glob("*.yaml")]
    keys = ("path", "hub", "subset", "source", "target")
    return any(all(getattr(data, key) == getattr(shipped, key) for key in keys) for shipped in datasets)


def _unmatched_settings(config: Config) -> dict[str, Any]:
    """The settings that are not matched to a printed row: those of the training."""
    others = ("seed", "model.", "trainer.", "optim.eps_ls")
    return {key: value for key, value in config.flat().items() if not key.startswith(others)}


def _matched_settings(config: Config) -> dict[str, Any]:
    """The settings by which a config is matched to a printed row: the model's nominal sizes and components, eps_ls."""
    return nominal_sizes(config.model) | {"optim.eps_ls": config.optim.eps_ls}
