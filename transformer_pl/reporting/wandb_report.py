"""A report at W&B, made from code: the table, the differences, learning curves by row, and for a search its axes.

Only this file imports wandb-workspaces, which is optional.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from transformer_pl.reporting.render import Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.training.wandb_process import kept_run_id, wandb_mode

CURVES = ("val/ppl", "train/loss")
WIDTH = 24  # of a report, in W&B's grid


@dataclass(frozen=True)
class WandbReport:
    """What the report of one sweep shows.

    folder: the sweep's, `runs/sweeps/<name>@<scale>`. trials: the folders of its trials.
    keys, goals: of a search, the config keys that it draws and the metrics that it is for.
    """

    project: str
    folder: Path
    table: Table
    trials: Sequence[Path]
    keys: Sequence[str] = ()
    goals: Sequence[str] = ()

    def save(self) -> str:
        """Make the report at W&B and return its address. Raises an InputError where that cannot work."""
        library = _library()
        mode, reason = wandb_mode()
        if mode != "online":
            raise InputError(f"--format wandb: must reach W&B with an API key, but: {reason}; run `wandb login` first")
        report = self.build(library)
        try:
            return str(report.save().url)
        except Exception as error:  # of the network, of the server, or of rights in the project
            raise InputError(
                f"--format wandb: W&B did not take the report: {type(error).__name__}: {error}; upload the runs with "
                "`wandb sync` first, or see W&B's settings of the project"
            ) from None

    def build(self, library: ModuleType, **options: Any) -> Any:
        """The report, as wandb-workspaces represents it. options: of its class, such as `entity`.

        Runs are chosen by their ids, because a trial of this sweep may have been trained by another one.
        """
        trial_runs = _runset(library, "trials", self.trials, groupby=["config.row"])
        blocks = [library.MarkdownBlock(self.table.markdown())]
        if kept_run_id(self.folder):
            panels = [
                library.WeavePanelSummaryTable(table_name="results", layout=library.Layout(w=WIDTH, h=10)),
                library.MediaBrowser(
                    media_keys=["Differences from base"], num_columns=1, layout=library.Layout(y=10, w=WIDTH, h=12)
                ),
            ]
            blocks += [library.H2("Results"), _grid(library, _runset(library, "report", [self.folder]), panels)]
        curves = [_curve(library, metric, column) for column, metric in enumerate(CURVES)]
        blocks += [
            library.H2("Learning curves"),
            library.P("Each line is the mean over the seeds of a row. The band is their standard deviation."),
            _grid(library, trial_runs, curves),
        ]
        if self.goals:
            ungrouped = _runset(library, "trials", self.trials)
            blocks += [
                library.H2("Search"),
                _grid(library, ungrouped, [_parallel_axes(library, self.keys, self.goals)]),
            ]
        return library.Report(project=self.project, title=self.folder.name, blocks=blocks, width="fluid", **options)


def _library() -> ModuleType:
    """The API of reports. Raises an InputError where the package is not installed."""
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it uses an API of pydantic 1
            from wandb_workspaces.reports import v2
    except ImportError:
        raise InputError(
            "--format wandb: needs the package wandb-workspaces; install it: "
            "pip install -c constraints.txt -e '.[wandb]', or take --format html"
        ) from None
    return v2


def _grid(library: ModuleType, runs: Any, panels: list) -> Any:
    return library.PanelGrid(runsets=[runs], panels=panels)


def _runset(library: ModuleType, name: str, folders: Iterable[Path], **options: Any) -> Any:
    """The runs that were kept in these folders."""
    from wandb_workspaces import expr

    ids = [run_id for folder in folders if (run_id := kept_run_id(folder))]
    if not ids:
        raise InputError(
            "--format wandb: the sweep must have runs at W&B, but its trials have none; train them without "
            "WANDB_MODE=disabled"
        )
    return library.Runset(name=name, filters=expr.And(expr.Metric("ID").isin(ids)), **options)


def _curve(library: ModuleType, metric: str, column: int) -> Any:
    """A line for each row of the table: the mean over its seeds, with a band of their standard deviation."""
    return library.LinePlot(
        title=f"{metric} by step",
        x="step",
        y=[metric],
        groupby=library.Config("row"),
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        layout=library.Layout(x=column * WIDTH // 2, w=WIDTH // 2, h=10),
    )


def _parallel_axes(library: ModuleType, keys: Sequence[str], goals: Sequence[str]) -> Any:
    """A line for each trial over the keys and metrics of a search."""

    class ConfigAxis(library.ParallelCoordinatesPlotColumn):  # type: ignore[name-defined]
        """The axis of a config key. The library takes `model.h` for h in a mapping `model`; here it is the key."""

        def _to_model(self) -> Any:
            return super()._to_model().model_copy(update={"accessor": f"config:{self.metric.name}.value"})

    columns = [ConfigAxis(library.Config(key), display_name=key) for key in keys]
    columns += [library.ParallelCoordinatesPlotColumn(library.SummaryMetric(goal), display_name=goal) for goal in goals]
    return library.ParallelCoordinatesPlot(columns=columns, layout=library.Layout(w=WIDTH, h=10))
