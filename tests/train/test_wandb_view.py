"""The saved view of a sweep, by the models of the package that W&B has for views. Nothing is sent."""

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # the package's own


@pytest.fixture
def saved(monkeypatch):
    """A stand-in for the views at W&B's server: by name, the views with the JSON that was sent of them."""
    import wandb
    from wandb_workspaces.workspaces import interface, internal

    monkeypatch.setattr(wandb, "Api", lambda: None)  # it needs an account
    monkeypatch.setattr(interface, "get_app_url", lambda _: "https://example.org")
    views = {}

    def find(entity, project, view_name):
        if f"nw-{view_name}-v" not in views:
            raise ValueError("not found")  # as the package does
        view, text = views[f"nw-{view_name}-v"]
        return {"spec": text, "displayName": view.display_name, "id": f"id of {view.name}"}

    def save(view):
        assert view.id == (f"id of {view.name}" if view.name in views else "")
        views[view.name] = view, view.spec.model_dump_json(by_alias=True, exclude_none=True)
        return {"upsertView": {"view": {"id": f"id of {view.name}", "name": view.name}, "inserted": True}}

    monkeypatch.setattr(internal, "get_view_dict", find)
    monkeypatch.setattr(internal, "upsert_view2", save)
    return views


def test_a_view_shows_the_rows_of_one_sweep_and_replaces_the_one_before_it(saved):
    from wandb_workspaces.workspaces import Workspace, internal

    from transformer_pl.train.wandb_view import save_view

    addresses = [
        save_view("me", "project", sweep, metrics)
        for sweep, metrics in (("a@demo", ["val/bleu"]), ("it's@demo", []), ("a@demo", ["val/bpb", "val/loss"]))
    ]
    assert addresses[0] == addresses[2] != addresses[1] and len(saved) == 2
    views = {view.display_name: internal.View.from_name("me", "project", name) for name, (view, _) in saved.items()}
    for sweep, metrics in (("a@demo", ["val/bpb", "val/loss"]), ("it's@demo", [])):
        (runs,) = views[sweep].spec.section.run_sets
        (only,) = runs.filters["filters"]
        assert only.items() >= {"key": {"section": "config", "name": "sweep"}, "op": "=", "value": sweep}.items()
        assert [(key.section, key.name) for key in runs.grouping] == [("config", "row.value")]
        (section,) = Workspace._from_model(views[sweep]).sections
        line, *bars, table = section.panels
        assert (line.x.name, [metric.name for metric in line.y]) == ("step", ["val/loss"])
        assert [metric.name for bar in bars for metric in bar.metrics] == metrics and table.table_name == "table"
        assert {panel.groupby_rangefunc for panel in (line, *bars)} == {"minmax"}
