"""A sweep's saved view in the workspace of its project at W&B. Only this file imports wandb_workspaces, an extra."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from wandb_workspaces import expr
from wandb_workspaces.reports import v2 as panels
from wandb_workspaces.workspaces import RunsetSettings, Section, Workspace, WorkspaceSettings
from wandb_workspaces.workspaces.internal import View

from transformer_pl.runtime.digests import value_digest


def sweep_view(entity: str, project: str, sweep: str, metrics: Sequence[str]) -> Workspace:
    """The runs of a sweep, grouped by row: its table, and loss and metrics with their range over seeds.

    sweep: the name of its folder, such as `table3-A@demo`, which is also the view's name and decides where it is saved.
    """
    over_seeds: Any = {"groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    shown: list[Any] = [
        panels.LinePlot(x="step", y=["val/loss"], **over_seeds),
        *(panels.BarPlot(title=metric, metrics=[metric], **over_seeds) for metric in metrics),
        panels.WeavePanelSummaryTable(table_name="table"),
    ]
    # A text, because the package takes expr.Config("sweep") for W&B's own sweep.
    runs = RunsetSettings(filters=f"Config('sweep') = {sweep!r}", groupby=[expr.Config("row")])
    view = Workspace(
        entity=entity,
        project=project,
        name=sweep,
        sections=[Section(name=sweep, panels=shown, is_open=True)],
        settings=WorkspaceSettings(x_axis="step", max_runs=100),
        runset_settings=runs,
    )
    view._internal_name = f"nw-{value_digest(sweep)[:11]}-v"  # the form of W&B's own names
    return view


def save_view(entity: str, project: str, sweep: str, metrics: Sequence[str]) -> str:
    """Save the view of a sweep, in place of an earlier one, and return its address."""
    view = sweep_view(entity, project, sweep, metrics)
    with suppress(ValueError):  # there is no earlier one
        view._internal_id = View.from_name(entity, project, view._internal_name).id
    return str(view.save().url)
