"""The configuration: every key with its default, the paper's base.

Keys are dotted (`model.h`) and spelled alike on a command line, in a sweep file and in a scale.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from transformer_pl.config.types import (
    FURTHER_SET,
    LARGEST,
    PLAIN_NAME,
    PLAIN_NAMES,
    SEEDS,
    Callbacks,
    ClassPath,
    Component,
    Count,
    Extension,
    FurtherSets,
    Loggers,
    Multiplier,
    Natural,
    NoBool,
    NotMinusZero,
    OnOrOff,
    Positive,
    Processes,
    Rate,
    Section,
    Text,
    multiplied,
)

SIZE_NAMES = ("N", "d_model", "d_ff", "h", "d_k", "d_v")  # the sizes of Table 3
ALL_PAIRS = {"train_pairs": None, "max_words": None}  # the keys of `data` that leave pairs out, unset
CORPUS = ("path", "hub", "subset", "revision")  # the keys of `data` that say which corpus it is


def key(default: Any, description: str, **limits: Any) -> Any:
    """A key with its default, what it means, and limits of its values that its type does not have."""
    return Field(default=default, description=description, **limits)


def _component(name: str, description: str, package: str = "transformer_pl.model") -> Any:
    """A slot whose default is the paper's component."""
    return key(Component(path=f"{package}.{name}"), f"import path of {description}")


class Model(Section):
    """Section 3 and the columns of Table 3, in the paper's letters and numbers."""

    N: Count = key(6, "layers in the encoder, and in the decoder (Section 3.1)")
    N_encoder: Natural | None = key(
        None, "layers in the encoder alone; unset: N; 0: none, and the decoder reads the source, if the task has one"
    )
    N_decoder: Count | None = key(None, "layers in the decoder alone; unset: N")
    d_model: Count = key(512, "width of the embeddings and of every layer's output (Section 3.1)")
    d_ff: Count = key(2048, "inner width of the feed-forward network (Section 3.3)")
    h: Count = key(8, "attention heads (Section 3.2.2)")
    d_k: Count | None = key(None, "width of a head's keys (Section 3.2.2); unset: d_model / h")
    d_v: Count | None = key(None, "width of a head's values (Section 3.2.2); unset: d_model / h")
    p_drop: Rate = key(0.1, "dropout probability (Section 5.4)")
    attention: Component = _component("ScaledDotProductAttention", "the attention function (equation 1)")
    ffn: Component = _component("FeedForward", "the feed-forward network (equation 2)")
    position: Component = _component("SinusoidalPosition", "the positional encoding (Section 3.5)")
    residual: Component = _component("PostNormResidual", "the residual connection and its norm (Section 3.1)")
    self_attention: Component = _component("MultiHeadSelfAttention", "the layer that mixes positions (Section 3.2.3)")
    cross_attention: Component = _component("CrossAttention", "the attention to the encoder's output (Section 3.2.3)")
    embedding: Component = _component("SharedEmbedding", "the embeddings and the output projection (Section 3.4)")
    architecture: Component = _component("Transformer", "the whole model, which builds the other parts (Figure 1)")
    start: Text | None = key(
        None,
        "trial whose weights are where the training begins: its id; or a row of the same grid, or of "
        "another (FILE.yaml:ROW), by words that no other row has together, with + between them. The trial of that row "
        "with the same seed is trained first; unset: random weights",
    )
    start_with: Literal["weights", "all"] = key(
        "weights",
        "what the start gives: its weights, or all of its state (optimizer, schedule, place in the data), so that the "
        "training goes on from its last step",
    )
    width: Multiplier = key(1.0, "multiplies d_model, d_ff, d_k and d_v; 1/2 is allowed")
    depth: Multiplier = key(1.0, "multiplies N, N_encoder and N_decoder; 1/2 is allowed")


class Optim(Section):
    """Sections 5.3 and 5.4: the optimizer, its learning rate, which is lr_scale times the schedule, and the loss."""

    max_steps: Count = key(100_000, "optimizer steps (Section 5.2)")
    duration: Multiplier = key(1.0, "multiplies max_steps; the paper's big model: 3")
    match: Literal["steps", "flops"] = key(
        "steps",
        "what is equal in all rows: steps, or training FLOPs (each row gets the steps that cost as much as "
        "max_steps of the paper's base; duration is ignored)",
    )
    optimizer: Component = _component("Adam", "the optimizer, of torch.optim's interface (Section 5.3)", "torch.optim")
    schedule: Component = _component("optimizer.InverseSquareRoot", "the schedule (equation 3)")
    loss: Component = _component("loss.SmoothedCrossEntropy", "the training loss (Section 5.4)")
    freeze: Text | None = key(
        None, "names of weights that are not trained, such as encoder.*,embedding.*; unset: all are trained"
    )
    warmup: Count = key(4000, "steps in which the learning rate rises (equation 3)")
    lr_scale: Positive = key(1.0, "multiplies the learning rate of the schedule")
    clip: Positive | None = key(None, "largest norm of the gradient, to which larger ones are scaled; unset: no limit")
    eps_ls: Rate = key(0.1, "label smoothing: probability spread over the vocabulary (Section 5.4)")
    beta1: Rate = key(0.9, "decay of the mean of gradients, for optimizers with betas (5.3)")
    beta2: Rate = key(0.98, "decay of the mean of squared gradients, for the same optimizers (5.3)")
    eps: Positive = key(1e-9, "epsilon, for optimizers that have one (Section 5.3)")


class Data(Section):
    """Section 5.1. Pairs come from a folder (`path`), else a Hugging Face dataset (`hub`), else they are built in."""

    task: ClassPath = key(
        "transformer_pl.tasks.translation.Translation", "import path of the task: what is read and what is scored"
    )
    path: Text | None = key(None, "folder that holds the text")
    hub: Text | None = key(None, "dataset of the Hugging Face hub; unused where path is set", pattern=PLAIN_NAMES)
    subset: Text | None = key(None, "configuration of the hub's dataset, such as de-en", pattern=PLAIN_NAME)
    revision: Text | None = key(None, "branch, tag or commit of the hub's dataset", pattern=PLAIN_NAMES)
    name: Text | None = key(
        None,
        "what names of trials and rows call the dataset; unset: the last part of path, or of hub",
        pattern=PLAIN_NAME,
    )
    source: Text = key("en", "language to translate from, as the files or columns name it")
    target: Text = key("de", "language to translate to, as the files or columns name it")
    train: Text | None = key(None, "name of the training split; unset: the one that begins with train")
    val: Text | None = key(None, "name of the validation split; unset: as for train")
    test: Text | None = key(None, "name of the test split; unset: as for train")
    sets: FurtherSets = key(
        (), "further sets to evaluate: NAME=FOLDER, whose test split is read, or NAME=FOLDER:SPLIT; in a list"
    )
    train_pairs: Count | None = key(None, "use only this many of the first training pairs; unset: all")
    max_words: Count | None = key(None, "words per sentence, as blanks divide it; longer pairs of any set are left out")
    tokenizer: Component = _component(
        "JointBPE", "how sentences become tokens (Section 5.1)", "transformer_pl.data.tokenizer"
    )
    vocab_size: Annotated[int, Field(ge=1, le=1_000_000), NoBool] = key(
        37_000, "tokens of both languages together, special tokens included (Section 5.1)"
    )
    vocabulary_from: Text | None = key(
        None, "folder whose training text the tokenizer learns from; unset: the text itself"
    )
    batches: Component = _component(
        "TrainStream", "the training batches: their text, order and changes", "transformer_pl.data.batches"
    )
    batch_tokens: Count = key(25_000, "source tokens, and as many target tokens, in the global batch (Section 5.1)")
    max_length: Count = key(256, "tokens per sentence, end token included; longer training pairs are dropped")
    pieces: Literal["apart", "joined"] = key(
        "apart",
        "of a language model; joined: lines up to a blank one are a document, and a piece that goes on begins with the "
        "last token of the piece before; apart: a line is a document, and each piece begins anew",
    )
    bleu: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char"] | None = key(
        None, "sacreBLEU's tokeniser; unset: zh, ja-mecab or ko-mecab for these target languages, else 13a"
    )

    splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")  # that the corpus must have

    @property
    def further(self) -> "dict[str, TestSet]":
        """By name, the keys of the text of each further set."""
        found = {}
        for written in self.sets:
            if read := re.fullmatch(FURTHER_SET, written):
                unset = dict.fromkeys(("hub", "subset", "revision", "vocabulary_from"))
                own = {"path": read["folder"], "test": read["split"], "sets": ()} | unset
                found[read["name"]] = TestSet.model_construct(**dict(self) | own)
        return found

    @property
    def evaluated(self) -> tuple[str, ...]:
        """The sets that are evaluated, by name."""
        return ("val", "test", *self.further)

    @property
    def of_vocabulary(self) -> "Data":
        """The text that the tokenizer learns from."""
        if self.vocabulary_from is None:
            return self
        return self.model_copy(update={"path": self.vocabulary_from, "vocabulary_from": None, "sets": ()} | ALL_PAIRS)

    @property
    def short_name(self) -> str:
        """What names of trials call the text: `name`, else the last part of its path or its dataset."""
        return self.name or Path(os.path.abspath(os.path.expanduser(self.path or self.hub or "synthetic"))).name

    @property
    def longest(self) -> int:
        """The most tokens that a sentence of a training pair may have: the smaller of max_length and batch_tokens."""
        return min(self.max_length, self.batch_tokens)


class TestSet(Data):
    """The keys of the text of a further set: only its test split is read."""

    splits: ClassVar[tuple[str, ...]] = ("test",)
    heading: str | None = None  # the first line of the tables of the corpus, which is no pair


class Decode(Section):
    """Section 6.1: beam search, and which checkpoints are averaged; and what is changed of the model after training."""

    beam: Annotated[int, Field(ge=1, le=1000), NoBool] = key(4, "hypotheses per sentence (Section 6.1)")
    alpha: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), NoBool, NotMinusZero] = key(
        0.6, "length penalty (Section 6.1)"
    )
    extra: Annotated[int, Field(ge=0, le=10_000), NoBool] = key(
        50, "tokens by which an output may be longer than its input (Section 6.1)"
    )
    stride: Count | None = key(
        None,
        "of a language model in its final evaluation: tokens from a piece of a document to the next, so that each has "
        "at least max_length - stride before it; unset: pieces do not overlap",
    )
    memory: Natural | None = key(
        None,
        "of a part of the model that carries something from piece to piece: its option memory in the final evaluation; "
        "unset: as in training",
    )
    average: Count = key(1, "last checkpoints that are averaged; 1: none, as in Table 3")
    select: Literal["last", "best"] = key(
        "last", "which validation is scored: the last, as in the paper, or best, the one with the lowest val/loss"
    )
    intervention: Component = _component(
        "Unchanged", "what changes the trained model before it is scored", "transformer_pl.train.intervention"
    )


class Trainer(Section):
    """Where and in what precision a trial runs, and what it logs.

    Of these keys, precision, val_every, val_sample and the callbacks are part of a trial's identity; where a callback
    is, so are accumulate, devices, num_nodes and log_every. A callback that only watches is not, if it has
    `in_identity: false` beside its options.
    """

    accelerator: Literal["auto", "cpu", "gpu"] = key("auto", "auto: a GPU where there is one")
    devices: Processes = key(1, "devices per node, with one process each")
    num_nodes: Processes = key(1, "nodes that train one trial together")
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true", "fsdp2"] = key(
        "auto", "how processes share the work; fsdp2 also splits the weights"
    )
    precision: Literal["32-true", "bf16-mixed", "bf16-master", "16-mixed"] = key(
        "32-true", "precision of training; bf16-master: all in bf16, except master weights in fp32"
    )
    accumulate: Count = key(1, "parts that a global batch is split into (gradient accumulation)")
    compile: Annotated[Literal["auto", "on", "off"], OnOrOff] = key(
        "auto", "on: layers are compiled in training; off and auto: they run as they are"
    )
    threads: Processes | None = key(
        None, "CPU threads per process; unset: its share of the cores, or what the trial began with"
    )
    val_every: Count = key(1000, "steps between validations, each with a checkpoint")
    checkpoint_minutes: Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False), NoBool] = key(
        10, "minutes between checkpoints, where no validation comes first; 0: at every step"
    )
    keep_state: Annotated[Literal["on", "off"], OnOrOff] = key(
        "off", "on: the last state of the finished trial stays, from which others go on (model.start_with=all)"
    )
    log_every: Count = key(50, "steps between logged values of the training loss")
    eval_tokens: Count = key(4096, "source tokens, and as many target tokens, in an evaluation batch")
    val_sample: Natural = key(0, "sentences scored at every validation")
    callbacks: Callbacks = key((), "Lightning callbacks: import paths, with options")
    loggers: Loggers = key((), "Lightning loggers beside metrics.jsonl and W&B: import paths, with options")

    @property
    def extensions(self) -> dict[str, tuple[Extension, ...]]:
        """The callbacks and loggers, by key."""
        return {"trainer.callbacks": self.callbacks, "trainer.loggers": self.loggers}


class Config(Section):
    """One trial: everything that its result depends on, as the user wrote it (nominal: before the multipliers)."""

    model: Model = Model()
    optim: Optim = Optim()
    data: Data = Data()
    decode: Decode = Decode()
    trainer: Trainer = Trainer()
    seed: Annotated[int, Field(ge=0, lt=SEEDS), NoBool] = key(
        1, "seed of the weights, of dropout and of the order of batches"
    )

    @property
    def steps(self) -> int:
        """The number of optimizer steps: max_steps times duration."""
        return multiplied(self.optim.max_steps, self.optim.duration)

    @property
    def averaged(self) -> int:
        """The number of checkpoints that are averaged: decode.average, or all validations where there are fewer."""
        return min(self.decode.average, -(-self.steps // self.trainer.val_every))

    @property
    def optim_of_all_steps(self) -> Optim:
        """`optim` with its multiplier applied to `max_steps`, as optimizers, schedules and losses are built with it."""
        return self.optim.model_copy(update={"max_steps": self.steps, "duration": 1.0})

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """The same with other values of some dotted keys, which are right and not read anew."""
        changed: dict[str, Any] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            changed[section] = changed.get(section, getattr(self, section)).model_copy(update={name: value})
        return self.model_copy(update=changed)

    def flat(self) -> dict[str, Any]:
        """Every dotted key with its nominal value. A component is its path; its options are keys below it."""
        flat: dict[str, Any] = {}
        for name, value in vars(self).items():  # much faster than pydantic's own ways
            flat |= flat_section(name, value) if isinstance(value, Section) else {name: value}
        return flat


def flat_section(name: str, section: Section) -> dict[str, Any]:
    """The dotted keys of a section with their values."""
    flat: dict[str, Any] = {}
    for key, value in vars(section).items():
        if isinstance(value, Component):
            flat[f"{name}.{key}"] = value.path
            flat |= {f"{name}.{key}.{option}": v for option, v in value.options.items()}
        else:
            is_list = isinstance(value, tuple)
            flat[f"{name}.{key}"] = [getattr(one, "as_written", one) for one in value] if is_list else value
    return flat


SECTIONS = ("model", "optim", "data", "decode", "trainer")
KEYS = Config().flat()  # every key with its default; only a component knows its own options
COMPONENTS: dict[str, Component] = {  # every slot with its default, by its key, such as `model.ffn`
    f"{section}.{name}": value
    for section in SECTIONS
    for name, value in vars(getattr(Config(), section)).items()
    if isinstance(value, Component)
}
EXTENSIONS = tuple(Trainer().extensions)  # the keys that list callbacks and loggers
WITH_OPTIONS = (*COMPONENTS, *EXTENSIONS)  # the keys that name classes, whose options are keys below them


def is_known_key(key: str) -> bool:
    """Whether a dotted key exists. Any identifier may be an option of a class: its signature is checked later."""
    return key in KEYS or is_option(key)


def is_option(key: str) -> bool:
    """Whether a dotted key is an option of a class, such as `model.ffn.activation` or `trainer.callbacks.patience`."""
    slot, _, option = key.rpartition(".")
    return slot in WITH_OPTIONS and option.isidentifier()


def without_section(key: str) -> str:
    """The last part of a key: `h` of `model.h`; `seed` has no section."""
    return key.partition(".")[2] or key
