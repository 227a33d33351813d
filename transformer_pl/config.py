"""The configuration: every key, its default (the paper's base), its laws, and how a trial's is put together.

Keys are dotted (`model.h`) and spelled alike on a command line, in a sweep file and in a scale. Values may come as
text, as W&B's agent spells them (`1e-05`, `None`, `False`), and are read by the declared type.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.names import broken_rule

SCALES = Path(__file__).parent / "scales"
SIZE_NAMES = ("N", "d_model", "d_ff", "h", "d_k", "d_v")  # the sizes of Table 3
SLOTS = ("attention", "ffn", "position", "residual", "self_attention", "embedding")


def _number(value: object) -> object:
    """Keep YAML's and argv's truth values out of numbers: `model.h: true` is a mistake, not 1 head."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not a truth value")
    return value


def _multiplier(value: object) -> object:
    """Read `1/2` as well as `0.5`."""
    if not isinstance(value, str) or "/" not in value:
        return _number(value)
    try:
        return float(Fraction(value))
    except (ValueError, ArithmeticError):
        raise ValueError("must be a number, or a fraction such as 1/2") from None


def _optional(value: object) -> object:
    return None if value in ("None", "null") else value


def _of_names(form: str, most: int | None = None) -> AfterValidator:
    """Plain names with `/` between, at most so many: they are looked for below a folder, and must not lead out."""

    def check(value: str | None) -> str | None:
        names = value.split("/") if value else []
        if most and len(names) > most:
            raise ValueError(f"must be {form}")
        for name in names:
            if rule := broken_rule(name):
                raise ValueError(f"must be {form}, and {name!r} in it {rule}")
        return value

    return AfterValidator(check)


Count = Annotated[int, BeforeValidator(_number), Field(ge=1)]
Natural = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Real = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Rate = Annotated[Real, Field(ge=0, lt=1)]
Positive = Annotated[Real, Field(gt=0)]
Multiplier = Annotated[float, BeforeValidator(_multiplier), Field(gt=0, allow_inf_nan=False)]
OrNone = BeforeValidator(_optional)
Name = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Component(Section):
    """A part of the model: the import path of its class, and the options that its constructor takes."""

    path: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    options: dict[str, Any] = {}


def _papers_component(name: str) -> Component:
    return Component(path=f"transformer_pl.model.{name}")


class Model(Section):
    """Section 3 and the columns of Table 3, in the paper's letters and numbers."""

    N: Count = 6
    d_model: Count = 512
    d_ff: Count = 2048
    h: Count = 8
    d_k: Annotated[Count | None, OrNone] = Field(None, description="unset: d_model / h")
    d_v: Annotated[Count | None, OrNone] = Field(None, description="unset: d_model / h")
    p_drop: Rate = 0.1
    attention: Component = _papers_component("ScaledDotProductAttention")
    ffn: Component = _papers_component("FeedForward")
    position: Component = _papers_component("SinusoidalPosition")
    residual: Component = _papers_component("PostNormResidual")
    self_attention: Component = _papers_component("MultiHeadSelfAttention")
    embedding: Component = _papers_component("SharedEmbedding")
    width: Multiplier = Field(1.0, description="multiplies d_model, d_ff and explicit d_k, d_v")
    depth: Multiplier = Field(1.0, description="multiplies N")


class Optim(Section):
    """Section 5.3 and 5.4. The learning rate is lr_scale times the paper's law."""

    max_steps: Count = 100_000
    duration: Multiplier = Field(1.0, description="multiplies max_steps")
    match: Literal["steps", "flops"] = Field("steps", description="flops: as many steps as cost what base's cost")
    warmup: Count = 4000
    lr_scale: Positive = 1.0
    eps_ls: Rate = 0.1
    beta1: Rate = 0.9
    beta2: Rate = 0.98
    eps: Positive = 1e-9


class Data(Section):
    """Section 5.1. A folder (`path`), else a dataset of the hub (`hub`), else the embedded corpus."""

    path: Annotated[Name | None, OrNone] = None
    hub: Annotated[Name | None, OrNone, _of_names("NAME or OWNER/NAME", most=2)] = None
    subset: Annotated[Name | None, OrNone, _of_names("NAME", most=1)] = None
    revision: Annotated[Name | None, OrNone, _of_names("a branch, a tag or a commit")] = None
    source: Name = "en"
    target: Name = "de"
    train: Annotated[Name | None, OrNone] = Field(None, description="name of the split; unset: found by its beginning")
    val: Annotated[Name | None, OrNone] = None
    test: Annotated[Name | None, OrNone] = None
    vocab_size: Annotated[Count, Field(le=1_000_000)] = 37_000
    batch_tokens: Count = Field(25_000, description="pieces a side in the global batch, padding included")
    max_length: Count = Field(256, description="pieces a side, end mark included; longer training pairs are dropped")


class Decode(Section):
    """Section 6.1: beam search, and the averaging of the last checkpoints (1: none, as in Table 3)."""

    beam: Count = 4
    alpha: Annotated[Real, Field(ge=0)] = 0.6
    extra: Natural = Field(50, description="an output is at most this much longer than its input")
    average: Count = 1


class Trainer(Section):
    """Where and in what precision a trial runs, and what it logs.

    Of these only precision and bleu_sample are part of a trial's identity, and val_every where weights are averaged.
    """

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Count = 1
    num_nodes: Count = 1
    strategy: Literal["auto", "ddp", "fsdp2"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    accumulate: Count = Field(1, description="parts that a global batch is split into, one after the other")
    threads: Annotated[Count | None, OrNone] = Field(
        None, description="of each process; unset: its share of the cores, or what an interrupted trial began with"
    )
    val_every: Count = Field(1000, description="steps from one validation and checkpoint to the next")
    log_every: Count = 50
    eval_tokens: Count = Field(4096, description="pieces a side in a batch of evaluation")
    bleu_sample: Natural = Field(0, description="sentences translated at every validation, for val/bleu_sample")


class Config(Section):
    """One trial: everything that its result depends on, as the user wrote it (nominal)."""

    model: Model = Model()
    optim: Optim = Optim()
    data: Data = Data()
    decode: Decode = Decode()
    trainer: Trainer = Trainer()
    seed: Annotated[Natural, Field(lt=2**32)] = 1  # all that numpy takes

    @property
    def steps(self) -> int:
        return round(_exact(self.optim.max_steps, self.optim.duration))

    def flat(self) -> dict[str, Any]:
        """Every key with its nominal value, dotted; parts as their path, their options as keys below it."""
        flat = {}
        for section, values in self.model_dump().items():
            if section == "seed":
                flat["seed"] = values
                continue
            for name, value in values.items():
                if name in SLOTS:
                    flat[f"{section}.{name}"] = value["path"]
                    flat |= {f"{section}.{name}.{option}": v for option, v in value["options"].items()}
                else:
                    flat[f"{section}.{name}"] = value
        return flat


class Sizes(NamedTuple):
    """What a part is built from: the effective sizes (multipliers applied), the parts, the vocabulary."""

    N: int
    d_model: int
    d_ff: int
    h: int
    d_k: int
    d_v: int
    p_drop: float
    attention: Component
    ffn: Component
    position: Component
    residual: Component
    self_attention: Component
    embedding: Component
    vocab_size: int


def sizes(model: Model, vocab_size: int) -> Sizes:
    """The effective sizes of a model that keeps the laws (see `resolve`)."""
    d_model = round(_exact(model.d_model, model.width))
    return Sizes(
        N=round(_exact(model.N, model.depth)),
        d_model=d_model,
        d_ff=round(_exact(model.d_ff, model.width)),
        h=model.h,
        d_k=d_model // model.h if model.d_k is None else round(_exact(model.d_k, model.width)),
        d_v=d_model // model.h if model.d_v is None else round(_exact(model.d_v, model.width)),
        p_drop=model.p_drop,
        **{seam: getattr(model, seam) for seam in SLOTS},
        vocab_size=vocab_size,
    )


def is_papers(seam: str, part: Component) -> bool:
    """Whether a part is the paper's own at its own place, without options."""
    return part == Model.model_fields[seam].default


def effective_sizes(config: Config) -> dict[str, int]:
    """The sizes that a config comes to once its multipliers are applied, under `effective.*`."""
    found = sizes(config.model, 0)._asdict()
    return {f"effective.{key}": found[key] for key in SIZE_NAMES} | {"effective.max_steps": config.steps}


def nominal_sizes(model: Model) -> dict[str, Any]:
    """The model's keys in the paper's numbers: d_k and d_v filled in, the multipliers left out."""
    values = {key: value for key, value in Config(model=model).flat().items() if key.startswith("model.")}
    for key in ("model.d_k", "model.d_v"):
        values[key] = values[key] or model.d_model // model.h
    return {key: value for key, value in values.items() if key not in ("model.width", "model.depth")}


def _exact(size: int, multiplier: float) -> Fraction:
    """The product as it was meant: 1/3 is a third, 0.3333 is not."""
    simple = Fraction(multiplier).limit_denominator(1024)
    return size * (simple if float(simple) == multiplier else Fraction(repr(multiplier)))


# ---------------------------------------------------------------------------------------------------------------------
# From what the user wrote to a config


class Level(NamedTuple):
    """Keys and values from one place. Later levels win; the place is what an error names."""

    place: str
    values: Mapping[str, Any]


def merge(levels: Iterable[Level]) -> dict[str, tuple[Any, str]]:
    """Levels, lowest first, as one: each key's value and its place.

    Naming a part drops the options that lower levels gave to it.
    """
    merged: dict[str, tuple[Any, str]] = {}
    for place, values in levels:
        for seam in SLOTS:
            if f"model.{seam}" in values:
                merged = {key: v for key, v in merged.items() if not key.startswith(f"model.{seam}.")}
        merged |= {key: (value, place) for key, value in values.items()}
    return merged


def resolve(levels: Iterable[Level]) -> Config:
    """Merge levels, lowest first, over the defaults.

    Raises an InputError that lists every unknown key, every value of a wrong type and every broken law.
    """
    merged = merge(levels)
    config, wrong = _read_by_type(merged)
    messages = list(wrong.values())
    for keys, law in _broken_constraints(config):
        if not wrong.keys() & set(keys):
            places = dict.fromkeys(merged[key][1] for key in keys if key in merged)
            values = ", ".join(f"{key} = {config.flat()[key]}" for key in keys)
            messages.append(f"{' and '.join(places) or 'defaults'}: {values}: {law}")
    if messages:
        raise InputError(*messages)
    return config


def type_errors(level: Level) -> list[str]:
    """What is wrong with each key by itself: there is none such, or its value is of a wrong type."""
    return list(_read_by_type(merge([level]))[1].values())


def _read_by_type(merged: Mapping[str, tuple[Any, str]]) -> tuple[Config, dict[str, str]]:
    """The config of all keys that can be read, and what is wrong with each of the others."""
    wrong = {}
    for key in [key for key in merged if not is_known_key(key)]:
        value, place = merged[key]
        wrong[key] = f"{place}: {key} = {value}: no such key{suggestion(key, KEYS)}"
    right = {key: told for key, told in merged.items() if key not in wrong}
    try:
        return Config.model_validate(_nest(right)), wrong
    except ValidationError as error:
        for mistake in error.errors():
            key = ".".join(str(name) for name in mistake["loc"][:2])
            value, place = merged[key]
            wrong[key] = f"{place}: {key} = {value}: {_constraint(mistake)}"
    return Config.model_validate(_nest({key: told for key, told in right.items() if key not in wrong})), wrong


def is_known_key(key: str) -> bool:
    section, _, name = key.partition(".")
    seam, _, option = name.partition(".")
    return key in KEYS or (section == "model" and seam in SLOTS and option.isidentifier())


def without_section(key: str) -> str:
    """Without its section: `h` of `model.h`; `seed` has none."""
    return key.partition(".")[2] or key


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of an error message: what the user may have meant."""
    names = list(names)
    if not names:
        return ""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    by_end = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"; did you mean {(by_end or close)[0]}?" if by_end or close else f"; known: {', '.join(names)}"


def parse_scalar(value: object) -> object:
    """A value whose type is not declared here (a part's option): text is read as Python spells plain values."""
    if not isinstance(value, str):
        return value
    if value in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[value]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _nest(merged: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    """Dotted keys to the shape that pydantic reads."""
    nested: dict[str, Any] = {}
    for key, (value, _) in merged.items():
        section, _, name = key.partition(".")
        name, _, option = name.partition(".")
        if not name:
            nested[section] = value
        elif name in SLOTS and section == "model":
            part = nested.setdefault("model", {}).setdefault(name, {"path": getattr(Model(), name).path, "options": {}})
            if option:
                part["options"][option] = parse_scalar(value)
            else:
                part["path"] = value
        else:
            nested.setdefault(section, {})[name] = value
    return nested


def _constraint(mistake: Mapping[str, Any]) -> str:
    if mistake["type"] == "string_pattern_mismatch":
        return "must be the import path of a class, such as ablations.learned_position.LearnedPosition"
    if mistake["type"] == "value_error":
        return str(mistake["ctx"]["error"])
    text = mistake["msg"].removeprefix("Input ").replace("should", "must")
    return text.replace(", unable to parse string as an integer", "").replace(
        ", unable to parse string as a number", ""
    )


def _broken_constraints(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """The laws between keys: the keys, and the law that they break."""
    model, optim = config.model, config.optim
    by_width = ("d_model", "d_ff", "d_k", "d_v")
    products = [
        ("model.N", model.N, "model.depth", model.depth),
        *((f"model.{k}", getattr(model, k), "model.width", model.width) for k in by_width),
        ("optim.max_steps", optim.max_steps, "optim.duration", optim.duration),
    ]
    for key, size, multiplier_key, multiplier in products:
        if size is None:
            continue
        product = _exact(size, multiplier)
        if product.denominator != 1 or product < 1:
            yield (
                (key, multiplier_key),
                f"their product must be a whole number of at least 1, but is {float(product):.12g}",
            )
    unset = [f"model.{k}" for k in ("d_k", "d_v") if getattr(model, k) is None]
    d_model = _exact(model.d_model, model.width)
    if unset and (model.d_model % model.h or (d_model.denominator == 1 and d_model % model.h)):
        effective = "" if model.width == 1 else f" (d_model is {float(d_model):g} at width {model.width:g})"
        are, them = ("are", "them") if len(unset) > 1 else ("is", "it")
        law = f"h must divide d_model{effective} while {' and '.join(k[6:] for k in unset)} {are} unset"
        yield ("model.h", "model.d_model", "model.width"), f"{law}; set {them}, or choose another h"
    if config.trainer.precision == "16-mixed" and config.trainer.accelerator == "cpu":
        yield (
            ("trainer.precision", "trainer.accelerator"),
            "16-mixed needs a GPU; on a CPU choose bf16-mixed or 32-true",
        )
    if config.trainer.precision == "16-mixed" and config.trainer.strategy == "fsdp2":
        yield (
            ("trainer.precision", "trainer.strategy"),
            "fsdp2 does not scale losses as 16-mixed needs; choose bf16-mixed, or ddp",
        )
    if config.trainer.bleu_sample and config.trainer.strategy == "fsdp2":
        yield (
            ("trainer.bleu_sample", "trainer.strategy"),
            "fsdp2 leaves no process the whole model to translate with; choose ddp, or a sample of 0",
        )


KEYS = Config().flat()  # every key of the core with its default; options of parts are known by the parts themselves


# ---------------------------------------------------------------------------------------------------------------------
# Files


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key set twice is an error: plain YAML silently takes the last."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if isinstance(key, str | int | float | bool):
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is set twice", key_node.start_mark)
            seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


def _text(loader: _StrictLoader, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    if "\0" in text:  # YAML spells it "\\0"
        problem = f"{text!r} must be without the character NUL, which no path and no command line can have"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return text


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, _text)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping. Raises an InputError that names the file, and the line where there is one."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the path of a YAML file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: must be UTF-8, but byte {error.start} is not; save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: {error.problem}; mend the YAML") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply for a sweep or a scale; mend the YAML") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as the date 2026-13-01
        raise InputError(f"{path}: is not YAML: {str(error).splitlines()[0]}; mend it") from None
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise InputError(f"{path}: must hold keys and values, but is {kind}")
    return content


def scale_level(scale: str) -> Level:
    """A scale by its name, or a user's own by the path of its YAML file."""
    names = sorted(path.stem for path in SCALES.glob("*.yaml"))
    if scale in names:
        path = SCALES / f"{scale}.yaml"
    elif scale.endswith((".yaml", ".yml")):
        path = Path(scale)
    else:
        raise InputError(f"scale = {scale}: no such scale{suggestion(scale, names)}; or give the path of a YAML file")
    return Level(f"scale {scale}", {str(key): value for key, value in read_yaml(path).items()})


def parse_variant(variant: str, place: str) -> Level:
    """`base`, or `key=value` separated by blanks: split at blanks, then at the first `=`."""
    values: dict[str, str] = {}
    for word in [] if variant.strip() == "base" else variant.split():
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise InputError(
                f"{place} variant {variant!r}: must be `base` or key=value separated by blanks, not {word!r}"
            )
        if key in values:
            raise InputError(f"{place} variant {variant!r}: {key} is set twice")
        values[key] = value
    return Level(f"{place} variant {variant!r}", values)
