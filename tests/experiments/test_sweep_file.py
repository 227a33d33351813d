"""Sweep files: the shipped ones, what W&B makes of them, how rows are read, and the messages for mistakes."""

import itertools
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from helpers import GRIDS, ROOT, SEARCHES, SHIPPED
from wandb import Settings
from wandb.errors import UsageError

from transformer_pl.command_line import sweep_folder
from transformer_pl.config import KEYS
from transformer_pl.experiments.sweep_file import OUR_PARAMETERS, TOP_LEVEL, read_sweep
from transformer_pl.levels import SCALES, Level, parse_variant, resolve, scale_level
from transformer_pl.reporting.published import read_published
from transformer_pl.runtime.errors import InputError
from transformer_pl.train import read_argv
from transformer_pl.trials.names import as_folder

TABLE3 = read_published().rows
SCALE_NAMES = sorted(path.stem for path in SCALES.glob("*.yaml"))
shipped = pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)


@pytest.fixture
def sweep_file(tmp_path):
    """Write a sweep file with these parameters; other top-level keys as keyword arguments, None to leave one out."""

    def write(parameters, **top_level):
        content = {"program": "transformer_pl/train.py", "method": "grid", "parameters": parameters} | top_level
        path = tmp_path / "f.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}, sort_keys=False))
        return path

    return write


@pytest.fixture
def quarter(tmp_path):
    """A scale of a quarter of the paper's width, half its depth and 1000 steps."""
    path = tmp_path / "quarter.yaml"
    path.write_text("model.width: 0.25\nmodel.depth: 0.5\noptim.max_steps: 1000\noptim.warmup: 400\n")
    return str(path)


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


@shipped
def test_a_shipped_sweep_is_read_as_the_grid_that_its_file_spells(path):
    content = yaml.safe_load(path.read_text())
    sweep = read_sweep(path)
    rows = [{k: v for k, v in row.items() if k != "seed"} for row in wandb_grid(content)]
    rows = [row for i, row in enumerate(rows) if row not in rows[:i]]
    seeds = content["parameters"].get("seed", {"value": 1})
    seeds = seeds.get("values", [seeds.get("value")])
    assert [[config.seed for config in row.configs] for row in sweep.rows] == [seeds] * len(rows)
    for entry, row in zip(rows, sweep.rows, strict=True):
        keys = {key: value for key, value in entry.items() if key not in OUR_PARAMETERS}
        variant = parse_variant(entry.get("variant", "base"), "")
        assert row.keys == keys | variant.values
        for config in row.configs:
            levels = [scale_level(entry["scale"]), Level("", keys), variant, Level("", {"seed": config.seed})]
            assert config == resolve(levels)
    assert len({row.name for row in sweep.rows}) == len(sweep.rows)  # names tell rows apart


@pytest.mark.parametrize("scale", SCALE_NAMES)
@pytest.mark.parametrize("path", [path for path in GRIDS if path.stem != "smoke"], ids=lambda path: path.stem)
def test_a_shipped_sweep_is_valid_at_every_scale(path, scale):
    assert read_sweep(path, scale=scale).scale == scale


def test_table_3_a_has_the_paper_s_rows():
    sweep = read_sweep(ROOT / "sweeps/table3_A.yaml")
    assert (sweep.name, sweep.project, sweep.scale) == ("table3-A", "transformer-pl", "demo")
    assert [row.name for row in sweep.rows] == ["h=1", "h=4", "base", "h=16", "h=32"]
    assert [[config.model.h for config in row.configs] for row in sweep.rows] == [[h] * 3 for h in (1, 4, 8, 16, 32)]
    assert [config.seed for config in sweep.configs] == [1, 2, 3] * 5
    assert all(config.model.d_k is config.model.d_v is None for config in sweep.configs)  # so they are d_model / h


@pytest.mark.parametrize("path", [p for p in GRIDS if p.stem.startswith("table3")], ids=lambda path: path.stem)
def test_a_sweep_of_table_3_has_base_and_the_paper_s_rows(path):
    """The rows of its letter, or all rows for table3; each once."""
    all_labels = {row.label for row in TABLE3}
    by_stem = {"table3": all_labels, "table3_without_big": all_labels - {"big"}}
    labels = by_stem.get(path.stem, {"base", path.stem.removeprefix("table3_")})
    found = [read_published().find(row.configs[0]) for row in read_sweep(path).rows]
    assert None not in found
    assert sorted(map(TABLE3.index, found)) == [i for i, row in enumerate(TABLE3) if row.label in labels]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
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
    assert re.search(rf"python -m transformer_pl\.sweep sweeps/{path.name}$", path.read_text(), re.M)


@shipped
def test_wandb_s_agent_starts_the_same_trials_as_the_sweep_command(path):
    """The agent passes every parameter, the variant with them, spelled by Python; `sweep` passes merged keys."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    content = yaml.safe_load(path.read_text())
    agents = []
    for row in wandb_grid(content):
        arguments = create_sweep_command_args({"args": {key: {"value": value} for key, value in row.items()}})
        agents.append(resolve(read_argv(arguments["args"])[1]))
    ours = read_sweep(path).configs
    assert all(config in ours for config in agents) and len(agents) == len(ours)


@shipped
@pytest.mark.parametrize("form", ["--key=value", "--key value"])
def test_the_arguments_of_train_give_the_whole_config(path, form):
    sweep = read_sweep(path, sets={"trainer.threads": "None", "optim.eps": "1e-05", "data.path": "a b=c"})
    for row in sweep.rows:
        for config in row.configs:
            keys = {"scale": sweep.scale, **row.keys, "seed": config.seed}
            pairs = [(f"--{key}", str(value)) for key, value in keys.items()]
            argv = ["=".join(pair) for pair in pairs] if "=" in form else [word for pair in pairs for word in pair]
            options, levels = read_argv(argv)
            assert options.scale == sweep.scale and not options.rerun
            assert resolve(levels) == config


def test_reading_a_sweep_of_the_paper_s_components_needs_no_torch():
    program = f"""if True:
        import sys
        from pathlib import Path
        from transformer_pl import train
        from transformer_pl.experiments import sweep_file
        sweep_file.read_sweep(Path({str(ROOT / "sweeps/table3_A.yaml")!r}))
        sys.exit(", ".join({{"torch", "lightning", "wandb", "datasets", "optuna"}} & set(sys.modules)) or 0)
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def test_rows_are_in_the_file_s_order(sweep_file):
    path = sweep_file(
        {
            "model.p_drop": {"values": [0.2, 0.0]},
            "seed": {"values": [3, 1]},
            "model.h": {"values": [4, 1, 16]},
            "model.N": {"value": 4},
            "scale": {"value": "demo"},
        }
    )
    sweep = read_sweep(path)
    assert [(row.configs[0].model.p_drop, row.configs[0].model.h) for row in sweep.rows] == [
        (0.2, 4),
        (0.2, 1),
        (0.2, 16),
        (0.0, 4),
        (0.0, 1),
        (0.0, 16),
    ]
    assert all([config.seed for config in row.configs] == [3, 1] for row in sweep.rows)
    assert all(config.model.N == 4 for config in [*sweep.configs, sweep.base])
    assert [row.name for row in sweep.rows[:2]] == ["h=4 p_drop=0.2", "h=1 p_drop=0.2"]  # without what all rows share


def test_components_of_one_name_from_two_modules_are_told_apart(sweep_file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("mine_one", "mine_two"):
        text = "from ablations.no_position import NoPosition as Kept\n\n\nclass NoPosition(Kept):\n    pass\n"
        (tmp_path / f"{module}.py").write_text(text)
    variants = [f"model.position={place}.NoPosition" for place in ("mine_one", "mine_two")]
    rows = read_sweep(sweep_file({"variant": {"values": ["base", *variants, "model.h=4"]}})).rows
    expected = ["base", "position=mine_one.NoPosition", "position=mine_two.NoPosition", "h=4"]
    assert [row.name for row in rows] == expected


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
    assert [row.name for row in sweep.rows] == ["base", "warmup=12", "h=4"]
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
    (message,) = mistakes(sweep_file(file))
    assert "have the same settings; rows must differ: leave one out" in message


def test_the_options_scale_and_seeds_replace_the_file_s(sweep_file, tmp_path):
    path = sweep_file({"scale": {"values": ["demo", "multi30k"]}, "seed": {"values": [1, 2]}, "model.h": {"value": 4}})
    mine = tmp_path / "mine.yaml"
    mine.write_text("optim.max_steps: 7\n")
    for scale in ("demo", "multi30k", str(mine)):
        sweep = read_sweep(path, scale=scale, seeds=["5", "4"])
        levels = [scale_level(scale), Level("", {"model.h": 4})]
        assert sweep.scale == scale
        assert sweep.configs == [resolve([*levels, Level("", {"seed": seed})]) for seed in (5, 4)]


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes


def test_an_unknown_top_level_key_is_an_error(sweep_file):
    assert mistakes(sweep_file({"model.h": {"value": 4}}, metrc={"name": "val/bleu"}, variant=3)) == [
        "f.yaml: metrc: no key of a W&B sweep; did you mean metric?",
        f"f.yaml: variant: no key of a W&B sweep; known: {', '.join(TOP_LEVEL)}",
    ]


WRONG_NAMES = ["", ".", "..", "../up", "/tmp/x", "a/b", "a\\b", "a\nb", "a\tb", "\ud800", "x" * 129]


@pytest.mark.parametrize("name", WRONG_NAMES, ids=ascii)
def test_a_name_that_is_no_plain_file_name_is_an_error(sweep_file, name):
    rule = "must be a plain name: 1 to 128 printable characters, none of / \\"
    path = sweep_file({"model.h": {"value": 4}}, name=name, project=name)
    assert mistakes(path) == [
        f"f.yaml: name = {name!r}: {rule}, not . or ..; choose another",
        f"f.yaml: project = {name!r}: {rule} # ? % :, not . or ..; choose another",
    ]


@pytest.mark.parametrize("name", ["Table 3: a | b", "x" * 128, "überall", "...", "-", "~", "$HOME"])
def test_a_plain_name_stays_in_its_folder(sweep_file, name):
    sweep = read_sweep(sweep_file({"model.h": {"value": 4}}, name=name))
    folder = sweep_folder(sweep, Namespace(runs=Path("runs"), set={}, retune=None))
    assert sweep.name == name and folder.parent == Path("runs/sweeps")
    assert as_folder(name) not in ("", ".", "..") and "/" not in as_folder(name)


def test_names_in_other_scripts_have_folders_of_their_own():
    names = ["опыт", "тест", "实验一", "实验二", "a b", "a-b", "a_b"]
    assert len({as_folder(name) for name in names}) == len(names)
    assert [as_folder(name) for name in ("a-b", "table3_A@demo")] == ["a-b", "table3_A@demo"]


@pytest.mark.parametrize("stem", [".", ".."])
def test_a_file_name_that_is_no_plain_name_is_an_error(tmp_path, stem):
    path = tmp_path / f"{stem}.yaml"
    path.write_text("method: grid\nparameters: {model.h: {value: 4}}\n")
    with pytest.raises(InputError, match=f"name = '{re.escape(stem)}': must be a plain name"):
        read_sweep(path)


@pytest.mark.parametrize("project", ["a#b", "a?b", "a%b", "a:b"])
def test_a_project_that_wandb_refuses_is_an_error(sweep_file, project):
    (message,) = mistakes(sweep_file({"model.h": {"value": 4}}, project=project))
    assert message.startswith(f"f.yaml: project = {project!r}: must be a plain name")
    with pytest.raises(UsageError, match="Invalid project name"):
        Settings(project=project)


@pytest.mark.parametrize("method", ["random", "bayes", "gird", None])
def test_a_method_other_than_grid_is_an_error(sweep_file, method):
    assert mistakes(sweep_file({"model.h": {"value": 4}}, method=method)) == [
        f"f.yaml: method = {method}: must be grid (a table), or random, bayes or custom (a search)"
    ]


def test_nested_keys_are_refused_with_the_flat_spelling(sweep_file, tmp_path):
    """In W&B's own nesting, too; in a scale; and for a key that stands above `parameters`."""
    nested = {"model": {"h": {"value": 4}}, "optim": {"parameters": {"warmup": {"value": 4}}}}
    assert mistakes(sweep_file(nested)) == [
        "f.yaml: parameters.model: keys are flat, not nested; write them as `model.h: {'value': 4}`",
        "f.yaml: parameters.optim: keys are flat, not nested; write them as `optim.warmup: {'value': 4}`",
    ]
    (message,) = mistakes(sweep_file({"seed": {"value": 1}}, **{"model.h": 4}))
    assert message.endswith("no key of a W&B sweep; write it under `parameters`, as `model.h: {value: 4}`")
    scale = tmp_path / "nested.yaml"
    scale.write_text("model:\n  width: 0.5\n")
    with pytest.raises(InputError, match=r"keys are flat, not nested; write them as `model\.width: 0\.5`"):
        resolve([scale_level(str(scale))])


def test_two_texts_of_one_name_are_told_apart_by_data_name(sweep_file):
    paths = {"values": ["a/fr", "b/fr", "b/de"]}
    (message,) = mistakes(sweep_file({"data.path": paths}))
    assert message == "f.yaml: two rows have the name `data=fr`; tell their texts apart with data.name"
    assert mistakes(sweep_file({"data.hub": {"values": ["a/fr", "b/fr"]}})) == [message]
    named = {"values": ["data.path=a/fr", "data.path=b/fr data.name=other"]}
    assert [row.name for row in read_sweep(sweep_file({"variant": named})).rows] == ["data=fr", "data=other"]


@pytest.mark.parametrize("parameters", [None, {}, [1], "model.h"], ids=str)
def test_parameters_must_be_a_mapping(sweep_file, parameters):
    (message,) = mistakes(sweep_file(parameters))
    assert message.startswith(f"f.yaml: parameters = {parameters}: must map keys to")


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        ({"value": 4, "values": [4]}, "must be {value: ...} or {values: [...]} in a grid"),
        ({}, "must be {value: ...} or {values: [...]} in a grid"),
        (4, "must be {value: ...} or {values: [...]} in a grid"),
        ([4], "must be {value: ...} or {values: [...]} in a grid"),
        (None, "must be {value: ...} or {values: [...]} in a grid"),
        ({"min": 1, "max": 8}, "must be {value: ...} or {values: [...]} in a grid"),
        ({"parameters": {"a": {"value": 1}}}, "must be {value: ...} or {values: [...]} in a grid"),
        ({"values": []}, "must be a list with a value in it"),
        ({"values": 4}, "must be a list with a value in it"),
        ({"values": {"a": 4}}, "must be a list with a value in it"),
        ({"value": [4]}, "model.h = [4]: must be a plain value"),
        ({"values": [4, [8]]}, "model.h = [8]: must be a plain value"),
        ({"value": {"a": 1}}, "must be a plain value"),
    ],
    ids=str,
)
def test_a_parameter_must_be_a_plain_value_or_a_list_of_them(sweep_file, entry, rule):
    (message,) = mistakes(sweep_file({"model.h": entry}))
    assert message.startswith("f.yaml: parameters.model.h") and rule in message


def test_a_date_is_not_a_plain_value(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("method: grid\nparameters: {model.ffn.since: {value: 2017-06-12}}\n")
    assert mistakes(path) == ["f.yaml: parameters.model.ffn.since = 2017-06-12: must be a plain value"]


@pytest.mark.parametrize(
    ("wrong", "right"), [("model.dmodel", "model.d_model"), ("seeds", "seed"), ("scal", "scale"), ("h", "model.h")]
)
def test_the_message_for_an_unknown_parameter_names_the_nearest(sweep_file, wrong, right):
    messages = mistakes(sweep_file({wrong: {"values": [1, 2]}}))
    assert messages == [f"f.yaml: parameters.{wrong}: no such key; did you mean {right}?"]


def test_several_scales_in_one_file_are_an_error(sweep_file):
    messages = mistakes(sweep_file({"scale": {"values": ["demo", "multi30k"]}}))
    assert messages == [
        "f.yaml: parameters.scale = ['demo', 'multi30k']: must be one value; start the command once for each"
    ]


def test_an_unknown_scale_is_an_error(sweep_file):
    assert mistakes(sweep_file({"scale": {"value": "dmo"}})) == [
        f"scale = dmo: no such scale; known: {', '.join(SCALE_NAMES)}; or give the path of a YAML file, such as "
        "my_scale.yaml"
    ]


@pytest.mark.parametrize(
    ("parameters", "names", "why"),
    [
        ({"model.d_k": {"values": ["None", 64]}}, ("base", "d_k=64"), "have the same settings"),
        (
            {"variant": {"values": ["base", "trainer.devices=2"]}},
            ("base", "trainer.devices=2"),
            "have the same settings",
        ),
        (
            {"variant": {"values": ["optim.duration=2", "optim.max_steps=2000"]}},
            ("duration=2.0", "max_steps=2000"),
            "have the same settings",
        ),
        (
            {"variant": {"values": ["model.width=0.5", "model.d_model=1024 model.d_ff=4096"]}},
            ("width=0.5", "d_model=1024 d_ff=4096"),
            "have the same sizes at this scale's width and depth",
        ),
        (
            {"variant": {"values": ["model.N=12", "model.depth=1"]}},
            ("N=12", "depth=1.0"),
            "have the same sizes at this scale's width and depth",
        ),
    ],
    ids=str,
)
def test_two_rows_with_the_same_trials_are_an_error(sweep_file, quarter, parameters, names, why):
    messages = mistakes(sweep_file(parameters), scale=quarter)
    assert messages == [f"f.yaml: rows `{names[0]}` and `{names[1]}` {why}; rows must differ: leave one out"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model.h": {"values": [4, 4]}}, "row `model.h=4` is given twice; rows must differ: leave one out"),
        ({"model.h": {"values": [4, "4"]}}, "row `model.h=4` is given twice; rows must differ: leave one out"),
        ({"variant": {"values": ["base", "base"]}}, "row `base` is given twice; rows must differ: leave one out"),
        ({"variant": {"values": ["model.h=8", "base"]}}, "variant 'model.h=8' is base (8 is its value); leave it out"),
        (
            {"variant": {"values": ["base", "model.h=4 model.N=6"]}, "model.h": {"value": 4}},
            "variant 'model.h=4 model.N=6' is base (4 and 6 are its values); leave it out",
        ),
        (
            {"variant": {"values": ["model.N=6", "model.h=8"]}},
            "rows `model.N=6` and `model.h=8` have the same settings; rows must differ: leave one out",
        ),
    ],
    ids=str,
)
def test_equal_rows_of_one_name_are_told_as_the_file_has_them(sweep_file, parameters, message):
    assert mistakes(sweep_file(parameters)) == [f"f.yaml: {message}"]


@pytest.mark.parametrize(
    ("parameters", "sets", "named"),
    [
        ({"model.h": {"values": [1, 4, 8]}}, {"model.h": "4", "model.N": "2"}, "model.h=4"),
        ({"variant": {"values": ["base", "model.h=4"]}}, {"model.h": "4"}, "model.h=4"),
    ],
)
def test_rows_that_set_makes_equal_are_not_the_file_s_mistake(sweep_file, parameters, sets, named):
    assert mistakes(sweep_file(parameters), sets=sets) == [
        f"--set {named}: must leave rows different, but f.yaml tells rows apart by this key; leave it out"
    ]


def test_multipliers_keep_distinct_rows_distinct(sweep_file, quarter):
    """Products are exact, so sizes that differ in the paper differ at every scale, or are refused there."""
    sizes = list(range(4, 2052, 4))
    sweep = read_sweep(sweep_file({"model.d_ff": {"values": sizes}}), scale=quarter)
    assert [row.configs[0].model.d_ff for row in sweep.rows] == sizes


@pytest.mark.parametrize("seeds", [[1, 2, 1], [1, "1"]], ids=str)
def test_a_seed_given_twice_is_an_error(sweep_file, seeds):
    messages = mistakes(sweep_file({"seed": {"values": seeds}, "model.h": {"values": [4, 8]}}))
    assert messages == [f"f.yaml: seed = {[int(seed) for seed in seeds]}: must differ from each other"]
    assert mistakes(sweep_file({"model.h": {"value": 4}}), seeds=["3", "3"]) == [
        "f.yaml: seed = [3, 3]: must differ from each other"
    ]


def test_a_seed_in_a_variant_or_in_set_is_an_error(sweep_file):
    """Otherwise parameters.seed would silently win over it."""
    messages = mistakes(sweep_file({"variant": {"values": ["base", "seed=3"]}}))
    assert messages == ["f.yaml: variant 'seed=3': seed = 3: must be given by parameters.seed or by --seeds"]
    assert mistakes(sweep_file({"model.h": {"values": [4, 8]}}), sets={"seed": "3"}) == [
        "--set: seed = 3: must be given by parameters.seed or by --seeds"
    ]


def test_all_mistakes_of_all_trials_are_reported_together_and_once(sweep_file, quarter):
    path = sweep_file(
        {
            "scale": {"value": quarter},
            "modl.h": {"value": 4},
            "optim.warmup": {"value": "long"},
            "model.N": {"values": [6, 5]},
            "variant": {
                "values": [
                    "base",
                    "model.h=3",
                    "model.h",
                    "model.dff=3",
                    "model.position=ablations.no_position.NoPositions",
                    "model.position=ablations.no_position.NoPosition model.position.most=3",
                    "model.attention=transformer_pl.model.ScaledAttention",
                ]
            },
            "seed": {"values": [1, -2]},
        }
    )
    messages = mistakes(path, sets={"decode.beam": "0"}, seeds=[1, -2, 1])
    assert sorted(message.replace(quarter, "quarter") for message in messages) == sorted(
        [
            "f.yaml: parameters.modl.h: no such key; did you mean model.h?",
            "f.yaml: parameters: optim.warmup = long: must be a valid integer",
            "f.yaml: parameters: seed = -2: must be greater than or equal to 0",
            "f.yaml: seed = [1, 1]: must differ from each other",
            "--set: decode.beam = 0: must be greater than or equal to 1",
            "f.yaml: parameters and scale quarter: model.N = 5, model.depth = 0.5: "
            "their product must be a whole number of at least 1, but is 2.5",
            "f.yaml: variant 'model.h=3' and scale quarter: model.h = 3, model.d_model = 512, model.width = 0.25: "
            "h must divide d_model (d_model is 128 at width 0.25) while d_k and d_v are unset; "
            "set them, or choose another h",
            "f.yaml: variant 'model.h': must be `base` or key=value separated by blanks, not 'model.h'",
            "f.yaml: variant 'model.dff=3': model.dff = 3: no such key; did you mean model.d_ff?",
            "f.yaml: model.position = ablations.no_position.NoPositions: ablations.no_position holds no class "
            "NoPositions; did you mean NoPosition?",
            "f.yaml: model.position = ablations.no_position.NoPosition: option most = 3: no such option; it takes none",
            "f.yaml: model.attention = transformer_pl.model.ScaledAttention: transformer_pl.model holds no class "
            "ScaledAttention; did you mean ScaledDotProductAttention?",
        ]
    )


def test_equal_rows_are_reported_with_the_other_mistakes(sweep_file):
    assert mistakes(sweep_file({"variant": {"values": ["base", "model.hh=4", "model.h=4", "model.h=4"]}})) == [
        "f.yaml: variant 'model.hh=4': model.hh = 4: no such key; did you mean model.h?",
        "f.yaml: row `model.h=4` is given twice; rows must differ: leave one out",
    ]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    assert "cannot be read" in mistakes(tmp_path / "none.yaml")[0]
    (tmp_path / "f.yaml").write_text("method: grid\nmethod: grid\n")
    assert mistakes(Path(tmp_path / "f.yaml")) == ["f.yaml line 2: key 'method' is set twice; correct the YAML"]
