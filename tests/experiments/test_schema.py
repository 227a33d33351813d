"""The JSON schemas: every shipped file is valid, and a mistake in a key or a value is not."""

import copy

import pytest
from helpers import ROOT
from jsonschema import Draft202012Validator

from transformer_pl.experiments.schema import scale_schema, sweep_schema
from transformer_pl.levels import SCALES
from transformer_pl.runtime.yaml_file import read_yaml

SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
SWEEP, SCALE = Draft202012Validator(sweep_schema()), Draft202012Validator(scale_schema())
GRID = {
    "program": "p.py",
    "method": "grid",
    "parameters": {"model.h": {"values": [4, 8]}, "variant": {"value": "base"}},
}
SEARCH = {
    "method": "bayes",
    "metric": {"name": "val/bleu", "goal": "maximize"},
    "run_cap": 4,
    "parameters": {"optim.lr_scale": {"min": 0.1, "max": 10, "distribution": "log_uniform_values"}},
}


def changed(sweep, path, value):
    """A copy of a sweep with one value replaced; path: the keys that lead to it."""
    copied = copy.deepcopy(sweep)
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copied


def test_the_schemas_are_schemas():
    Draft202012Validator.check_schema(SWEEP.schema)
    Draft202012Validator.check_schema(SCALE.schema)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_shipped_sweep_is_valid(path):
    SWEEP.validate(read_yaml(path))


@pytest.mark.parametrize("path", sorted(SCALES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scale_is_valid(path):
    SCALE.validate(read_yaml(path))


@pytest.mark.parametrize(
    "sweep",
    [
        GRID,
        SEARCH,
        changed(GRID, ("parameters", "optim.eps"), {"value": "1e-05"}),
        changed(GRID, ("parameters", "model.width"), {"values": ["1/2", 0.25]}),
        changed(GRID, ("parameters", "model.d_k"), {"values": [16, None, "None"]}),
        changed(GRID, ("parameters", "model.attention.window"), {"value": 8}),
        changed(GRID, ("parameters", "scale"), {"value": "multi30k"}),
    ],
)
def test_right_sweeps_are_valid(sweep):
    SWEEP.validate(sweep)


@pytest.mark.parametrize(
    ("sweep", "path", "value"),
    [
        (GRID, ("parametres",), {}),
        (GRID, ("method",), "gird"),
        (GRID, ("parameters", "model.dmodel"), {"value": 512}),
        (GRID, ("parameters", "model.ffn."), {"value": 8}),
        (GRID, ("parameters", "model.h"), {"vales": [4]}),
        (GRID, ("parameters", "model.h"), {"values": []}),
        (GRID, ("parameters", "model.h"), {"value": 4, "values": [4]}),
        (GRID, ("parameters", "model.h"), {"values": [True]}),
        (GRID, ("parameters", "model.h"), {"values": [0]}),
        (GRID, ("parameters", "model.h"), {"values": ["four"]}),
        (GRID, ("parameters", "model.h"), {"min": 1, "max": 8}),
        (GRID, ("parameters", "model.p_drop"), {"value": 1}),
        (GRID, ("parameters", "model.ffn"), {"value": "GatedFeedForward"}),
        (GRID, ("parameters", "trainer.precision"), {"value": "64"}),
        (SEARCH, ("metric", "name"), "blue"),
        (SEARCH, ("run_cap",), 0),
        (SEARCH, ("parameters", "optim.lr_scale"), {"min": 0.1}),
        (SEARCH, ("parameters", "optim.lr_scales"), {"min": 0.1, "max": 1}),
        (SEARCH, ("early_terminate",), {"type": "envelope"}),
    ],
)
def test_a_mistake_in_a_sweep_is_not_valid(sweep, path, value):
    assert not SWEEP.is_valid(changed(sweep, path, value))


@pytest.mark.parametrize(
    "scale", [{"model.widht": 0.5}, {"optim.max_steps": "many"}, {"variant": "base"}, {}, {"trainer.devices": 0.5}]
)
def test_a_mistake_in_a_scale_is_not_valid(scale):
    assert not SCALE.is_valid(scale)
