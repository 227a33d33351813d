"""The config: the paper's base, constraints, how values are read and levels merged, and the error messages."""

import json
import re
from operator import attrgetter

import pytest
import yaml
from pydantic import ValidationError

from transformer_pl.config import COMPONENTS, KEYS, Config, effective_sizes, nominal_sizes, sizes
from transformer_pl.config.help import SYNONYMS, help_text
from transformer_pl.config.levels import (
    SCALES,
    Level,
    Measured,
    Spread,
    merge,
    parse_variant,
    read_pairs,
    resolve,
    scale_level,
    scale_measured,
)
from transformer_pl.config.types import as_word
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_yaml
from transformer_pl.train.command import read_argv

pytestmark = pytest.mark.core
SHIPPED = sorted(path.stem for path in SCALES.glob("*.yaml"))


def config(**keys):
    """A config from keys with `__` for the dot."""
    return resolve([Level("here", dotted(keys))])


def dotted(keys):
    return {key.replace("__", "."): value for key, value in keys.items()}


def mistakes(*levels):
    with pytest.raises(InputError) as caught:
        resolve([level if isinstance(level, Level) else Level("here", level) for level in levels])
    return caught.value.messages


# The base


def test_the_base_never_moves():
    """Base of Table 3, Sections 5.3, 5.4 and 6.1: an improvement is a new name, never a new default."""
    assert Config().flat() == KEYS
    sections = {
        "model": dict(
            N=6, N_encoder=None, N_decoder=None, d_model=512, d_ff=2048, h=8, d_k=None, d_v=None, p_drop=0.1,
            attention="transformer_pl.model.ScaledDotProductAttention", ffn="transformer_pl.model.FeedForward",
            position="transformer_pl.model.SinusoidalPosition", residual="transformer_pl.model.PostNormResidual",
            self_attention="transformer_pl.model.MultiHeadSelfAttention",
            cross_attention="transformer_pl.model.CrossAttention", embedding="transformer_pl.model.SharedEmbedding",
            architecture="transformer_pl.model.Transformer", start=None, start_with="weights", width=1.0, depth=1.0,
        ),
        "optim": dict(
            max_steps=100_000, duration=1.0, optimizer="torch.optim.Adam",
            schedule="transformer_pl.model.optimizer.InverseSquareRoot",
            loss="transformer_pl.model.loss.SmoothedCrossEntropy", freeze=None, clip=None, warmup=4000, lr_scale=1.0,
            match="steps", eps_ls=0.1, beta1=0.9, beta2=0.98, eps=1e-09,
        ),
        "data": dict(
            vocab_size=37_000, vocabulary_from=None, batches="transformer_pl.data.batches.TrainStream",
            batch_tokens=25_000, source="en", target="de",
        ),
        "decode": dict(
            beam=4, alpha=0.6, extra=50, average=1, select="last", stride=None, memory=None,
            intervention="transformer_pl.train.intervention.Unchanged",
        ),
        "trainer": dict(precision="32-true", devices=1, num_nodes=1, accumulate=1),
    }  # fmt: skip
    paper = {f"{section}.{name}": value for section, keys in sections.items() for name, value in keys.items()}
    assert {key: KEYS[key] for key in paper} == paper
    moving_nothing = {"data", "trainer", "seed"}  # sections that the paper does not speak of may gain keys
    assert {key for key in KEYS if key.partition(".")[0] not in moving_nothing} <= paper.keys()
    derived = {"N": 6, "d_model": 512, "d_ff": 2048, "h": 8, "d_k": 64, "d_v": 64, "max_steps": 100_000}
    assert effective_sizes(Config()) == {f"effective.{name}": value for name, value in derived.items()}


def test_a_config_is_frozen_and_strict():
    made = Config()
    with pytest.raises(ValidationError, match="frozen"):
        made.seed = 2
    with pytest.raises(ValidationError, match="frozen"):
        made.model.h = 4
    for section in ("model", "optim", "data", "decode", "trainer"):
        with pytest.raises(ValidationError, match="Extra inputs"):
            Config.model_validate({section: {"novel": 1}})
    with pytest.raises(ValidationError, match="Extra inputs"):
        Config.model_validate({"novel": 1})


# Values


def test_text_is_read_by_the_declared_type():
    for key, text, value in [
        ("optim.eps", "1e-05", 1e-05),
        ("model.h", "4", 4),
        ("model.p_drop", "0.0", 0.0),
        ("model.d_k", "None", None),
        ("model.d_k", "null", None),
        ("data.path", "None", None),
        ("data.path", "texts/en-de", "texts/en-de"),
        ("trainer.precision", "bf16-mixed", "bf16-mixed"),
        ("model.width", "1/2", 0.5),
        ("model.depth", "1/3", 1 / 3),
        ("optim.duration", "3", 3.0),
        ("trainer.compile", "on", "on"),
        ("trainer.compile", "True", "on"),
        ("optim.max_steps", "1e3", 1000),
        ("model.p_drop", "-0.0", 0.0),
    ]:
        assert repr(resolve([Level("here", {key: text})]).flat()[key]) == repr(value), (key, text)


VALUES = [4, -4, "near", "007", 0.5, None, True, False, 1e-05, float(3)]
VALUES += [[1e-30, 0.001], [None, True, "near"], {"a": [1]}]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_an_option_is_read_alike_wherever_it_is_written(value, tmp_path):
    """In a sweep file, in its variants, by --set, on the command line, from Python, and as W&B's agent spells it."""
    key, word = "model.ffn.option", as_word(value)
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({"method": "grid", "parameters": {key: {"value": value}}}))
    levels = [
        Level("Python", {key: value}),
        Level("agent", {key: str(value)}),
        read_argv([f"--{key}={word}"]).levels()[-1],
    ]
    levels += [read_pairs([f"{key}={word}"], "--set"), parse_variant(f"{key}={word}".replace(" ", ""), "file")]
    levels += [Level("file", {key: read_yaml(file)["parameters"][key]["value"]})]
    for level in levels:
        assert repr(resolve([level]).flat()[key]) == repr(value)


def test_text_that_spells_no_plain_value_stays_text():
    for text in ("[a-z]", "(", "{}}", "nan", "1_000", "0x1f", "", "~", "yes", "off", "'4'", "1234567890e1"):
        assert resolve([Level("here", {"model.ffn.option": text})]).flat()["model.ffn.option"] == text


YAML = {  # values as they stand in a file, and what they are
    "on": "on",
    "no": "no",
    "Yes": "Yes",
    "~": None,
    "": None,
    "Null": None,
    "True": True,
    "1e-9": 1e-9,
    "1e3": 1000.0,
    "-.5": -0.5,
    "-10": -10,
    "+1": 1,
    "2:00:00": "2:00:00",
    "2026-13-01": "2026-13-01",
    "1_000": "1_000",
    "'1e3'": "1e3",
    ".inf": float("inf"),
}


def test_files_are_read_by_the_rules_of_yaml_1_2(tmp_path):
    lines = [f"  {number}: {text}\n" for number, text in enumerate(YAML)]
    (tmp_path / "scale.yaml").write_text(f"base: &it\n{''.join(lines)}also: *it\n")
    found = scale_level(str(tmp_path / "scale.yaml")).values
    for name in ("base", "also"):
        assert [*map(repr, found[name].values())] == [*map(repr, YAML.values())]


@pytest.mark.parametrize("text", ["0123", "-07", "00", "0x10", "0o17", "123e45678901"])
def test_a_number_that_would_not_come_back_as_it_was_written_is_refused(tmp_path, text):
    """In quotes it is text, and a file whose values are text keeps it as it is."""
    path = tmp_path / "scale.yaml"
    path.write_text(f"data.source: en\ndata.name: {text}")
    with pytest.raises(InputError, match=r"scale\.yaml line 2: "):
        scale_level(str(path))
    assert read_yaml(path, numbers=False)["data.name"] == text
    path.write_text(f"data.name: '{text}'")
    assert scale_level(str(path)).values["data.name"] == text
    with pytest.raises(InputError, match=r"quotes|'"):
        resolve([Level("--set", {"trainer.callbacks": f"[{{my.Stop: {{at: {text}}}}}]"})])


WRONG = {
    "model.h": [True, 4.5, "4.5", "four", None, [4], 0],
    "model.d_k": [True, 0],
    "model.p_drop": [False, 1],
    "model.width": [True, 0, "-1/2", "1/0", "a/b"],
    "seed": [True, 2**32],
    "optim.lr_scale": [0],
    "optim.eps": [float("inf")],
    "decode.alpha": [float("nan")],
    "trainer.precision": ["64"],
    "data.path": [""],
    "data.name": ["a/b"],
    "data.sets": ["[news]", "[test=a]", "[a=b,a=c]", "[a/b=c]", "{a: b}", "[a=]", "[1]", "[a", 3, "[=a]"],
    "data.vocab_size": [2_000_000],
    "model.position": ["LearnedPosition", "ablations.learned-position.X", 5],
    "model": [1],
    "model.": [1],
    "seed.x": [1],
    "model.h.x": [1],
    "": [1],
}


def test_a_wrong_value_is_refused_with_key_and_place():
    for key, values in WRONG.items():
        for value in values:
            (message,) = mistakes({key: value})
            assert message.startswith(f"here: {key} = {value}: ")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("model.dmodel", "model.d_model"), ("h", "model.h"), ("optim.seed", "seed"), ("Model.N", "model.N")],
)
def test_an_unknown_key_is_answered_with_the_nearest(wrong, right):
    (message,) = mistakes({wrong: 1})
    assert message.startswith(f"here: {wrong} = 1: ") and message.endswith(f" {right}?")


def test_what_other_projects_call_a_key_is_answered_with_its_name():
    """Each name is none of ours, and its answer names one of ours."""
    assert not SYNONYMS.keys() & {known.rpartition(".")[2] for known in KEYS}
    for wrong in (*SYNONYMS, *(f"optim.{key}" for key in SYNONYMS)):
        (message,) = mistakes({wrong: 1})
        assert any(re.search(rf"\b{re.escape(known)}\b", message.partition(" = ")[2]) for known in KEYS), message


@pytest.mark.parametrize("key", ["zzz", "zzz.qqq", "model.zzz"])
def test_nothing_is_suggested_that_is_not_near(key):
    (message,) = mistakes({key: 1})
    assert "did you mean" not in message and len(message) < 400


# Constraints between keys


def test_h_divides_d_model_while_a_size_of_the_heads_is_unset():
    for keys in ({"model.h": 7}, {"model.h": 7, "model.d_k": 5}, {"model.h": 32, "model.width": "1/32"}):
        (message,) = mistakes(keys)
        assert f"model.h = {keys['model.h']}" in message and "model.d_model = 512" in message
    assert effective_sizes(config(model__h=7, model__d_k=5, model__d_v=3))["effective.h"] == 7
    assert effective_sizes(config(model__h=16, model__width="1/32"))["effective.d_k"] == 1


@pytest.mark.parametrize(
    ("keys", "constraint"),
    [
        ({"model.N": 2, "model.depth": "1/3"}, "0.666666666667"),
        ({"model.N": 2, "model.depth": 0.25}, "0.5"),
        ({"model.d_ff": 3, "model.width": 0.5}, "1.5"),
        ({"model.d_k": 5, "model.width": 0.5}, "2.5"),
        ({"model.d_v": 5, "model.width": 0.5}, "2.5"),
        ({"optim.max_steps": 300_001, "optim.duration": 0.5}, "150000.5"),
        ({"model.N": 6, "model.depth": 0.3333}, "1.9998"),  # not quite a third
        ({"model.N": 6, "model.depth": 1e-9}, "6e-09"),
    ],
)
def test_a_product_is_a_whole_number_of_at_least_1(keys, constraint):
    size, multiplier = keys
    message = next(message for message in mistakes(keys) if f"{size} = " in message)
    assert f"{multiplier} = " in message and message.endswith(f" {constraint}")


@pytest.mark.parametrize(
    ("size", "multiplier", "product"),
    [(6, "1/3", 2), (6, 0.3333333333, 2), (6, 2 / 3, 4), (6, "0.5", 3), (10, 0.1, 1), (10, 0.7, 7)],
)
def test_a_product_is_exact(size, multiplier, product):
    assert effective_sizes(config(model__N=size, model__depth=multiplier))["effective.N"] == product
    assert config(optim__max_steps=size, optim__duration=multiplier).steps == product


def test_multipliers_reach_the_sizes_that_they_name_and_no_other():
    model = config(model__width=0.5, model__depth="1/2", model__d_k=48, model__h=16).model
    found = sizes(model, 99)
    assert (found.N, found.d_model, found.d_ff, found.h, found.d_k, found.d_v) == (3, 256, 1024, 16, 24, 16)
    assert (found.p_drop, found.vocab_size) == (0.1, 99)
    paper = {"model.N": 6, "model.d_model": 512, "model.d_k": 48, "model.d_v": 32}
    assert nominal_sizes(model).items() >= paper.items()


@pytest.mark.parametrize(
    "keys",
    [
        {"precision": "16-mixed", "accelerator": "cpu"},
        {"precision": "16-mixed", "strategy": "fsdp2"},
        {"precision": "bf16-master", "strategy": "fsdp2"},
        {"compile": "on", "strategy": "fsdp2"},
        {"val_sample": 3, "strategy": "fsdp2"},
    ],
    ids=str,
)
def test_keys_of_the_trainer_that_do_not_go_together(keys):
    (message,) = mistakes({f"trainer.{key}": value for key, value in keys.items()})
    assert all(f"trainer.{key} = {value}" in message for key, value in keys.items())
    for left_out in keys:  # each alone is right
        assert resolve([Level("", {f"trainer.{key}": value for key, value in keys.items() if key != left_out})])


# Levels


def test_precedence():
    """Defaults < scale < the file's parameters < variant < --set: each level taken away uncovers the one below."""
    levels = [Level(place, {"optim.warmup": n}) for n, place in enumerate(("scale", "file", "variant", "--set"), 1)]
    for n in range(4, 0, -1):
        assert resolve(levels[:n]).optim.warmup == n
        assert merge(levels[:n]) == {"optim.warmup": (n, levels[n - 1].place)}
    assert resolve([]) == Config()
    assert resolve([Level("a", {"model.h": 4}), Level("b", {"model.N": 2})]).flat() == KEYS | {
        "model.h": 4,
        "model.N": 2,
    }


def test_naming_a_component_drops_the_options_of_lower_levels():
    for key in COMPONENTS:
        part = attrgetter(key)
        lower = Level("lower", {key: "mine.Part", f"{key}.window": 4, f"{key}.mode": "near"})
        option = Level("higher", {f"{key}.window": "16"})
        kept = part(resolve([lower, option]))  # an option alone keeps the part
        assert (kept.path, kept.options) == ("mine.Part", {"window": 16, "mode": "near"})
        other = part(resolve([lower, Level("higher", {key: "mine.Other", f"{key}.size": 2})]))
        assert (other.path, other.options) == ("mine.Other", {"size": 2})
        assert part(resolve([lower, Level("higher", {key: "mine.Part"})])).options == {}
        assert part(resolve([option])).path == KEYS[key]


@pytest.mark.parametrize("key", ["data.path", "data.hub"])
def test_naming_another_text_drops_the_subset_and_the_revision_of_a_scale(key):
    scale = scale_level("wmt14")
    assert resolve([scale]).data.subset == "de-en" and resolve([scale]).data.revision
    own = resolve([scale, Level("test", {key: "mine"})]).data
    assert own.subset is None and own.revision is None
    assert resolve([scale, Level("test", {key: "mine", "data.subset": "a"})]).data.subset == "a"
    assert resolve([scale, Level("test", {"data.target": "fr"})]).data.subset == "de-en"


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"data.sets": "[news=a/news,2018=b:test_2018]", "data.test": "x"},
        {"model.d_k": 32, "data.path": "texts", "seed": 3, "model.width": "1/2", "trainer.threads": 2},
        {"model.attention": "mine.Local", "model.attention.window": "16", "model.attention.mode": "near"},
        {"model.ffn": "mine.Gated", "model.ffn.gate": "True", "model.ffn.bound": "None", "model.ffn.beta": "1e-05"},
    ],
    ids=lambda keys: " ".join(keys) or "base",
)
def test_flat_is_read_back_as_the_same_config(keys):
    made = resolve([Level("here", keys)])
    flat = made.flat()
    assert resolve([Level("flat", flat)]) == made
    assert resolve([Level("as text", {key: str(value) for key, value in flat.items()})]) == made
    assert resolve([Level("as YAML", yaml.safe_load(yaml.safe_dump(flat)))]) == made


# Variants


@pytest.mark.parametrize(
    ("variant", "values"),
    [
        ("base", {}),
        (" base ", {}),
        ("model.h=1", {"model.h": "1"}),
        ("model.h=1  model.p_drop=0.0", {"model.h": "1", "model.p_drop": "0.0"}),
        ("data.path=a=b", {"data.path": "a=b"}),
        ("model.d_k=None", {"model.d_k": "None"}),
    ],
)
def test_a_variant_is_split_at_blanks_and_at_the_first_equals_sign(variant, values):
    level = parse_variant(variant, "f.yaml:")
    assert level.values == values and level.place.startswith("f.yaml: variant")


@pytest.mark.parametrize("variant", ["model.h", "model.h=1 base", "model.h= 1", "model.h=1 model.N=2 model.h=4"])
def test_an_unreadable_variant_is_an_error(variant):
    with pytest.raises(InputError) as caught:
        parse_variant(variant, "f.yaml:")
    (message,) = caught.value.messages
    assert message.startswith(f"f.yaml: variant {variant!r}: ")


# Files


@pytest.mark.parametrize("scale", SHIPPED)
def test_every_shipped_scale_keeps_the_constraints_for_every_row_of_table_3(scale):
    level = scale_level(scale)
    changes = [{}]
    changes += [{"model.h": h} for h in (1, 4, 16, 32)]
    changes += [{"model.d_k": d_k} for d_k in (16, 32)]
    changes += [{"model.N": N} for N in (2, 4, 8)] + [{"model.d_model": d_model} for d_model in (256, 1024)]
    changes += [{"model.d_ff": d_ff} for d_ff in (1024, 4096)] + [{"model.p_drop": p} for p in (0.0, 0.2)]
    changes += [{"optim.eps_ls": eps} for eps in (0.0, 0.2)]
    changes += [{"model.d_model": 1024, "model.d_ff": 4096, "model.h": 16, "optim.duration": 3}]
    made = [resolve([level, Level("row", change)]) for change in changes]
    assert all(change.items() <= one.flat().items() for change, one in zip(changes, made, strict=True))
    multipliers = {"model.width", "model.depth"}
    of_a_language_model = {"model.N_encoder"} if "data.task" in level.values else set()
    assert {key for key in level.values if key.startswith("model.")} <= multipliers | of_a_language_model
    assert "seed" not in level.values and not any(key.startswith("trainer.devices") for key in level.values)


def test_a_scale_of_ones_own_is_a_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model.width: 1/4\noptim.max_steps: 50\n")
    made = resolve([scale_level(str(path))])
    assert (made.model.width, made.steps, effective_sizes(made)["effective.d_model"]) == (0.25, 50, 128)
    path.write_text("model.widht: 1/4\n")
    (message,) = mistakes(scale_level(str(path)))
    assert str(path) in message and "model.width?" in message
    path.write_text("seed: 5\n")
    for scale in (str(path), str(tmp_path / "none.yaml"), "multi30"):
        with pytest.raises(InputError, match=scale):
            scale_level(scale)
    assert "--scale" in mistakes({"scale": "small"})[0]


def test_a_scale_states_what_was_measured_with_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "optim.max_steps: 50\nmeasured: {priors: {bleu: {spread: 0.5, freedom: 3}}, seconds: 60, processor: mine}\n"
    )
    assert scale_measured(str(path)) == Measured(
        priors={"bleu": Spread(spread=0.5, freedom=3)}, seconds=60, processor="mine"
    )
    assert scale_measured(str(path)).seconds == (60,) and Measured(seconds=[60, 90]).seconds == (60, 90)
    assert scale_level(str(path)).values == {"optim.max_steps": 50}
    for wrong in (
        "{priors: {bleu: {spread: 0, freedom: 1}}}",
        "{priors: {bleu: 0.5}}",
        "{seconds: fast}",
        "{seconds: [60, 0]}",
        "{minutes: 1}",
        "3",
    ):
        path.write_text(f"measured: {wrong}\n")
        with pytest.raises(InputError, match=r"mine\.yaml: measured"):
            scale_measured(str(path))


# The help


def test_every_key_is_described():
    described = help_text()
    assert all(f"  --{key}  (" in described for key in KEYS)
    assert "--model.d_k  (default None)" in described
    assert "--optim.match  (steps | flops; default steps)" in described
