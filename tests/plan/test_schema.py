"""The JSON schemas: every shipped file is valid, and a mistake in a key or a value is not."""

import json

import pytest
from helpers import SHIPPED
from jsonschema import Draft202012Validator

from transformer_pl.config.levels import SCALES
from transformer_pl.plan.schema import schema_text
from transformer_pl.runtime.files import read_yaml

SWEEP, SCALE = (Draft202012Validator(json.loads(schema_text(kind))) for kind in ("sweep", "scale"))


def test_every_shipped_file_is_valid():
    for schema, paths in ((SWEEP, SHIPPED), (SCALE, SCALES.glob("*.yaml"))):
        Draft202012Validator.check_schema(schema.schema)
        for path in paths:
            schema.validate(read_yaml(path))


@pytest.mark.parametrize(
    ("parameters", "valid"),
    [
        ({"optim.eps": {"value": "1e-05"}, "variant": {"values": ["base"]}}, True),
        ({"model.width": {"values": ["1/2", 0.25]}, "scale": {"value": "multi30k"}}, True),
        ({"model.d_k": {"values": [16, None, "None"]}, "model.attention.window": {"value": 8}}, True),
        ({"optim.lr_scale": {"min": 0.1, "max": 10, "distribution": "log_uniform_values"}}, True),
        ({"model.dmodel": {"value": 512}}, False),
        ({"model.ffn.": {"value": 8}}, False),
        ({"model.h": {"vales": [4]}}, False),
        ({"model.h": {"values": []}}, False),
        ({"model.h": {"values": [0]}}, False),
        ({"model.h": {"values": ["four"]}}, False),
        ({"model.p_drop": {"value": 1}}, False),
        ({"model.ffn": {"value": "GatedFeedForward"}}, False),
        ({"trainer.precision": {"value": "64"}}, False),
    ],
)
def test_a_mistake_in_a_parameter_is_not_valid(parameters, valid):
    assert SWEEP.is_valid({"method": "random", "parameters": parameters}) == valid


@pytest.mark.parametrize("more", [{"parametres": {}}, {"method": "gird"}, {"run_cap": 0}])
def test_a_mistake_at_the_top_of_a_sweep_is_not_valid(more):
    assert not SWEEP.is_valid({"method": "grid", "parameters": {}} | more)


@pytest.mark.parametrize("scale", [{"model.widht": 0.5}, {"optim.max_steps": "many"}, {"variant": "base"}, {"seed": 1}])
def test_a_mistake_in_a_scale_is_not_valid(scale):
    assert not SCALE.is_valid(scale)
