"""Sweep files: the shipped ones, what W&B makes of them, how rows are read, and the messages for mistakes."""

import itertools
import re
from pathlib import Path

import pytest
import yaml
from helpers import GRIDS, ROOT, SEARCHES, SHIPPED
from shipped_components import each_file

from transformer_pl.config import KEYS
from transformer_pl.config.levels import Level, parse_variant, resolve, scale_level
from transformer_pl.plan import plan
from transformer_pl.plan.sweep_file import OUR_PARAMETERS, TOP_LEVEL, read_sweep
from transformer_pl.report.published import read_published
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.report.sweep_table import outcomes_of
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.command import read_argv

TABLE3 = read_published().rows
pytestmark = pytest.mark.core


@pytest.fixture
def sweep_file(tmp_path):
    """Write a sweep file with these parameters; other top-level keys as keyword arguments, None to leave one out."""

    def write(parameters, **top_level):
        content = {"program": "transformer_pl/train.py", "method": "grid", "parameters": parameters} | top_level
        path = tmp_path / "f.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}, sort_keys=False))
        return path

    return write


def mistakes(path, **arguments):
    with pytest.raises(InputError) as caught:
        read_sweep(path, **arguments)
    assert len(set(caught.value.messages)) == len(caught.value.messages)
    return [message.replace(str(path), "f.yaml") for message in caught.value.messages]


def wandb_grid(content):
    """The grid of a W&B sweep: the product of all values, the last parameter fastest, as its agent gets them."""
    values = [entry.get("values", [entry.get("value")]) for entry in content["parameters"].values()]
    return [dict(zip(content["parameters"], row, strict=True)) for row in itertools.product(*values)]


# ---------------------------------------------------------------------------------------------------------------------
# What is shipped


@each_file(GRIDS)
def test_a_shipped_sweep_is_read_as_the_grid_that_its_file_spells(path):
    content = yaml.safe_load(path.read_text())
    sweep = read_sweep(path)
    rows = [{k: v for k, v in row.items() if k != "seed"} for row in wandb_grid(content)]
    rows = [row for i, row in enumerate(rows) if row not in rows[:i]]
    seeds = content["parameters"].get("seed", {"value": 1})
    seeds = seeds.get("values", [seeds.get("value")])
    more = content["parameters"].get("base_seeds", {"value": len(seeds)})["value"]
    for row in sweep.rows:
        assert [config.seed for config in row.configs][: len(seeds)] == seeds
        assert len(row.configs) == (more if row is sweep.of_base else len(seeds))
    if more > len(seeds):
        assert more == min(3 * len(seeds), round(len(seeds) * (len(rows) - 1) ** 0.5))
    for entry, row in zip(rows, sweep.rows, strict=True):
        keys = {key: value for key, value in entry.items() if key not in OUR_PARAMETERS}
        variant = parse_variant(entry.get("variant", "base"), "")
        assert row.keys == keys | variant.values
        for config in row.configs:
            levels = [scale_level(entry["scale"]), Level("", keys), variant, Level("", {"seed": config.seed})]
            assert config == resolve(levels)
    assert len({row.name for row in sweep.rows}) == len(sweep.rows)  # names tell rows apart


OF_THE_PAPER = [path for path in GRIDS if path.stem.startswith("table3") and path.stem != "table3_lm"]


@pytest.mark.parametrize("path", OF_THE_PAPER, ids=lambda path: path.stem)
def test_a_sweep_of_table_3_has_base_and_the_paper_s_rows(path):
    """The rows of its letter, or all rows for table3; each once."""
    all_labels = {row.label for row in TABLE3}
    by_stem = {"table3": all_labels, "table3_without_big": all_labels - {"big"}}
    labels = by_stem.get(path.stem, {"base", path.stem.removeprefix("table3_")})
    found = [read_published().find(row.configs[0]) for row in read_sweep(path).rows]
    assert None not in found
    assert sorted(map(TABLE3.index, found)) == [i for i, row in enumerate(TABLE3) if row.label in labels]


def test_the_language_model_has_the_rows_of_table_3_without_big():
    decoder = {"data.task": "transformer_pl.tasks.language_model.LanguageModel", "model.N_encoder": 0}
    rows = keys_by_name("table3_without_big").items()
    assert keys_by_name("table3_lm") == {name: keys | decoder for name, keys in rows}


def test_the_table_by_loss_has_the_rows_of_table_3_without_big_and_other_seeds():
    assert keys_by_name("captions_loss") == keys_by_name("table3_without_big")
    by_loss = read_sweep(ROOT / "sweeps" / "captions_loss.yaml", looks=[2, 3, 5], base_seeds=10)
    file, looks = ROOT / "sweeps" / "table3_without_big.yaml", [3, 5]
    by_bleu = read_sweep(file, "captions", [1, 2, 3, 4, 5], looks=looks, base_seeds=10)
    of_loss, of_bleu = ({config.seed for config in sweep.rows[0].configs} for sweep in (by_loss, by_bleu))
    assert by_loss.scale == by_bleu.scale and not of_loss & of_bleu


def test_beyond_table_3_has_the_rows_of_six_files():
    """Without those that have no warm-up: their differences would fill the picture."""
    parts = ["positions", "attention", "normalisation", "feed_forward", "depth", "optimizers"]
    rows = {name: keys for part in parts for name, keys in keys_by_name(part).items() if "warmup" not in name.lower()}
    assert keys_by_name("beyond_table3") == rows


def keys_by_name(stem):
    return {row.name: row.keys for row in read_sweep(ROOT / "sweeps" / f"{stem}.yaml").rows}


@each_file(SHIPPED)
def test_a_shipped_sweep_is_a_valid_wandb_sweep(path):
    """W&B's schema lives on its server. Its client's checks run here; of the schema, the closed list of top-level
    keys and the form of a parameter (which the docs of this project say and a server once confirmed) are checked."""
    from wandb.apis.public.sweeps import _validate_config_and_fill_distribution

    content = yaml.safe_load(path.read_text())
    filled = _validate_config_and_fill_distribution(yaml.safe_load(path.read_text()))["parameters"]
    assert {key: entry | {"distribution": 0} for key, entry in filled.items()} == {
        key: entry | {"distribution": 0} for key, entry in content["parameters"].items()
    }
    assert content.keys() <= set(TOP_LEVEL)
    assert {"program", "name", "project", "method", "parameters", "command"} <= content.keys()
    goals = content.get("metrics") or [content["metric"]]
    assert (ROOT / content["program"]).exists() and all(goal.keys() == {"name", "goal"} for goal in goals)
    assert content["command"] == ["${env}", "${interpreter}", "-m", "transformer_pl.train", "${args}"]
    for key, entry in content["parameters"].items():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", key)
        drawn = path in SEARCHES and {"min", "max"} <= entry.keys() <= {"min", "max", "q", "distribution"}
        assert drawn or entry.keys() in ({"value"}, {"values"})
        assert all(isinstance(v, str | int | float | None) for v in entry.get("values", [entry.get("value")]))


@each_file(GRIDS)
def test_wandb_s_agent_starts_the_same_trials_as_the_sweep_command(path):
    """The agent passes every parameter, the variant with them, spelled by Python; `sweep` passes merged keys.

    It knows nothing of the seeds that base has beyond those of the rows.
    """
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    content = yaml.safe_load(path.read_text())
    agents = []
    for row in wandb_grid(content):
        arguments = create_sweep_command_args({"args": {key: {"value": value} for key, value in row.items()}})
        agents.append(resolve(read_argv(arguments["args"]).levels()))
    ours = read_sweep(path, base_seeds=len(content["parameters"].get("seed", {}).get("values", [1]))).configs
    assert all(config in ours for config in agents) and len(agents) == len(ours)


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def test_a_sweep_without_scale_and_seed_runs_once_at_scale_demo(sweep_file):
    sweep = read_sweep(sweep_file({"model.h": {"values": [4, 8]}}))
    assert (sweep.scale, sweep.name, sweep.project) == ("demo", "f", "transformer-pl")
    assert [config.seed for config in sweep.configs] == [1, 1]


def test_later_levels_win(sweep_file):
    """The scale < the file < its variant < --set."""
    warmup = scale_level("demo").values["optim.warmup"]
    assert warmup != KEYS["optim.warmup"]
    file = {"scale": {"value": "demo"}, "model.h": {"value": 16}}
    assert [config.optim.warmup for config in read_sweep(sweep_file(file)).configs] == [warmup]
    file["optim.warmup"] = {"value": 11}
    assert [config.optim.warmup for config in read_sweep(sweep_file(file)).configs] == [11]
    file["variant"] = {"values": ["base", "optim.warmup=12", "model.h=4"]}
    sweep = read_sweep(sweep_file(file))
    assert [(config.optim.warmup, config.model.h) for config in sweep.configs] == [(11, 16), (12, 16), (11, 4)]
    file["variant"] = {"values": ["model.h=4", "optim.warmup=12 model.h=1"]}
    sweep = read_sweep(sweep_file(file), sets={"optim.warmup": "13"})
    assert [config.optim.warmup for config in sweep.configs] == [13, 13] and sweep.base.optim.warmup == 13
    assert [row.keys for row in sweep.rows] == [
        {"model.h": "4", "optim.warmup": "13"},
        {"model.h": "1", "optim.warmup": "13"},
    ]


def test_a_variant_that_names_a_component_drops_the_file_s_options_of_it(sweep_file):
    position = "ablations.learned_position.LearnedPosition"
    file = {"model.position": {"value": position}, "model.position.most": {"value": 99}}
    file["variant"] = {"values": ["base", "model.position=ablations.no_position.NoPosition", "model.position.most=98"]}
    sweep = read_sweep(sweep_file(file))
    options = [
        (row.keys["model.position"].rpartition(".")[2], row.keys.get("model.position.most")) for row in sweep.rows
    ]
    assert options == [("LearnedPosition", 99), ("NoPosition", None), ("LearnedPosition", "98")]
    assert [config.model.position.options for config in sweep.configs] == [{"most": 99}, {}, {"most": 98}]


def test_an_option_at_its_default_makes_no_other_row(sweep_file):
    local = "model.attention=ablations.local_attention.LocalAttention"
    file = {"variant": {"values": ["base", local, f"{local} model.attention.window=8"]}}
    assert [config.model.attention.options for config in read_sweep(sweep_file(file)).configs] == [
        {},
        {},
        {"window": 8},
    ]
    file["variant"]["values"][2] = f"{local} model.attention.window=16"
    assert len(mistakes(sweep_file(file))) == 1


def test_rows_may_differ_in_an_option_that_must_be_given(sweep_file):
    """Base, with which their names are compared, then has none. A row without it is refused."""
    loss = {"optim.loss": {"value": "ablations.distillation.WordDistillation"}}
    file = sweep_file(loss | {"optim.loss.teacher": {"values": ["cdc919164728", "abc919164728"]}})
    assert [row.name for row in read_sweep(file).rows] == ["loss.teacher=cdc919164728", "loss.teacher=abc919164728"]
    (mistake,) = mistakes(sweep_file(loss | {"model.h": {"values": [8]}}))
    assert "teacher" in mistake


def test_the_options_scale_and_seeds_replace_the_file_s(sweep_file, tmp_path):
    path = sweep_file({"scale": {"values": ["demo", "multi30k"]}, "seed": {"values": [1, 2]}, "model.h": {"value": 4}})
    mine = tmp_path / "mine.yaml"
    mine.write_text("optim.max_steps: 7\n")
    for scale in ("demo", "multi30k", str(mine)):
        sweep = read_sweep(path, scale=scale, seeds=["5", "4"])
        levels = [scale_level(scale), Level("", {"model.h": 4})]
        assert sweep.scale == scale
        assert sweep.configs == [resolve([*levels, Level("", {"seed": seed})]) for seed in (5, 4)]


@pytest.mark.parametrize(
    ("name", "metric"),
    [(None, "val/bleu"), ("val/bleu", "val/bleu"), ("val/loss", "val/loss"), ("val/ppl", "val/loss")],
)
def test_the_metric_of_a_grid_is_what_its_table_tests_first(sweep_file, name, metric):
    """Another one would change nothing, and is refused."""
    of_file = {"metric": {"name": name}} if name else {}
    rows = {"variant": {"values": ["base", "model.h=4"]}}
    sweep = read_sweep(sweep_file(rows, **of_file))
    assert plan.main_metric(sweep) == metric and plan.tested_by(sweep)["metric"] == [metric]
    assert outcomes_of(Grid(sweep, []))[0].key == metric
    for other in ("val/chrf", "params"):
        with pytest.raises(InputError, match=rf"metric\.name = {other}.*val/bleu, val/ppl or val/loss"):
            plan.main_metric(read_sweep(sweep_file(rows, metric={"name": other})))
    elsewhere = read_sweep(sweep_file(rows, metric={"name": "val/bpb"}), scale="multi30k")  # the scale has another task
    assert plan.main_metric(elsewhere) == "val/bleu"


@pytest.mark.parametrize(
    ("options", "of_base"),
    [({}, 4), ({"seeds": ["5"]}, 1), ({"seeds": ["5"], "base_seeds": 3}, 3), ({"base_seeds": 2}, 2)],
)
def test_more_seeds_of_base_are_beside_the_file_s_own_seeds(sweep_file, options, of_base):
    """One seed, given for a trial run, is one of base, too."""
    rows = {"variant": {"values": ["base", "model.h=4"]}, "seed": {"values": [1, 2]}, "base_seeds": {"value": 4}}
    with_looks = sweep_file(rows | {"looks": {"value": "2 3"}})
    assert len(read_sweep(with_looks, seeds=[1, 2, 3]).rows[0].configs) == 4
    base, row = read_sweep(sweep_file(rows), **options).rows
    assert len(base.configs) == of_base and len(row.configs) == len(options.get("seeds", "12"))


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes. Each is one message, which names what it is about.

H = {"model.h": {"values": [4, 8]}}
TIMER = "lightning.pytorch.callbacks.Timer"
RAGGED = {"values": ["data.path=a/fr", "data.path=b/fr"]}
MISTAKES = [  # parameters, other top-level keys, arguments of read_sweep, and words of the only message
    (H, {"metrc": 1}, {}, ["f.yaml: metrc", "metric?"]),
    (H, {"model.d_ff": 4}, {}, ["f.yaml: model.d_ff", "parameters"]),
    (H, {"metric": {"name": "bleu"}}, {}, ["f.yaml: metric.name = bleu", "val/bleu"]),
    *((H, {"name": name}, {}, ["f.yaml: name", repr(name)]) for name in ["", "..", "a/b", "x" * 129]),
    *((H, {"project": name}, {}, ["f.yaml: project", name]) for name in ("a#b", "a?b", "a%b", "a:b")),
    *((H, {"method": method}, {}, ["f.yaml: method", str(method)]) for method in ("random", "gird", None)),
    *((parameters, {}, {}, ["f.yaml: parameters", str(parameters)]) for parameters in (None, {}, [1], "model.h")),
    ({"model": {"h": {"value": 4}}}, {}, {}, ["parameters.model", "model.N"]),
    *(({"model.h": entry}, {}, {}, ["parameters.model.h"]) for entry in ({}, 4, [4], {"min": 1}, {"values": []})),
    *(({"model.h": entry}, {}, {}, ["parameters.model.h"]) for entry in ({"value": [4]}, {"value": 4, "values": [4]})),
    ({"model.dmodel": {"values": [1, 2]}}, {}, {}, ["parameters.model.dmodel", "model.d_model?"]),
    ({"seeds": {"values": [1, 2]}}, {}, {}, ["parameters.seeds", "seed?"]),
    (H | {"scale": {"values": ["demo", "multi30k"]}}, {}, {}, ["parameters.scale", "multi30k"]),
    (H | {"scale": {"value": "dmo"}}, {}, {}, ["scale = dmo", "demo"]),
    ({"model.d_k": {"values": ["None", 64]}}, {}, {}, ["model.d_k=None", "model.d_k=64"]),
    ({"variant": {"values": ["base", ""]}}, {}, {}, ["f.yaml: variant ''"]),
    ({"variant": {"values": ["base", "model.p_drop=0", "model.p_drop=-0.0"]}}, {}, {}, ["p_drop=-0.0"]),
    (H, {"name": 7}, {}, ["f.yaml: name = 7"]),
    (
        {"variant": {"values": ["base", "model.h=4"]}, "seed": {"values": [2**32 - 1]}, "base_seeds": {"value": 2}},
        {},
        {},
        ["f.yaml: parameters.seed"],
    ),
    ({"data.sets": {"values": [["a=x", "b=y"], ["a=z"]]}}, {}, {}, ["row `sets=a`", "data.sets: a "]),
    (H, {}, {"sets": {"model.ffn": "nosuch.Part"}}, ["--set: model.ffn = nosuch.Part"]),
    (H, {}, {"sets": {"model.ffn.x": "3"}}, ["--set: model.ffn = "]),
    (H, {}, {"sets": {"data.tokenizer": "Bytes"}}, ["--set: data.tokenizer = Bytes", KEYS["data.tokenizer"]]),
    ({"variant": {"values": ["base", "base"]}}, {}, {}, ["`base` and `base`"]),
    ({"variant": {"values": ["model.N=6", "model.h=8"]}}, {}, {}, ["`model.N=6` and `model.h=8`"]),
    ({"variant": {"values": ["base", "trainer.devices=2"]}}, {}, {}, ["`base` and `trainer.devices=2`"]),
    (
        {"variant": {"values": ["base", f'trainer.callbacks=[{{"{TIMER}":{{"in_identity":false}}}}]']}},
        {},
        {},
        [TIMER, "in_identity: false"],
    ),
    ({"variant": {"values": ["optim.duration=2", "optim.max_steps=4800"]}}, {}, {}, ["duration=2", "max_steps=4800"]),
    ({"variant": {"values": ["model.width=1/4", "model.d_model=1024 model.d_ff=4096"]}}, {}, {}, ["1/4", "d_ff=4096"]),
    ({"variant": {"values": ["base", "model.h=4"]}}, {}, {"sets": {"model.h": "4"}}, ["`base` and `model.h=4`"]),
    ({"data.path": {"values": ["a/fr", "b/fr"]}}, {}, {}, ["`data=fr`", "data.name"]),
    ({"variant": RAGGED}, {}, {}, ["`data=fr`", "data.name"]),
    (H | {"seed": {"values": [1, "1"]}}, {}, {}, ["seed = [1, 1]"]),
    (H, {}, {"seeds": ["3", "3"]}, ["seed = [3, 3]"]),
    ({"variant": {"values": ["base", "seed=3"]}}, {}, {}, ["variant", "seed = 3", "--seeds"]),
    (H, {}, {"sets": {"seed": "3"}}, ["--set", "seed = 3", "--seeds"]),
    ({"model.d_ff": {"values": [*range(8, 80_016, 8)]}}, {}, {}, ["10,001"]),
    ({key: {"values": [*range(1, 401)]} for key in ("model.N", "model.h", "model.d_ff")}, {}, {}, ["64,000,000"]),
    (H, {}, {"seeds": [*map(str, range(1, 5002))]}, ["5,001 seeds"]),
]


@pytest.mark.parametrize(("parameters", "top_level", "arguments", "words"), MISTAKES, ids=lambda x: repr(x)[:60])
def test_a_mistake_is_named(sweep_file, parameters, top_level, arguments, words):
    (message,) = mistakes(sweep_file(parameters, **top_level), **arguments)
    assert all(word in message for word in words), message


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    assert len(mistakes(tmp_path / "none.yaml")) == 1
    (tmp_path / "f.yaml").write_text("method: grid\nmethod: grid\n")
    assert "line 2" in mistakes(Path(tmp_path / "f.yaml"))[0]
