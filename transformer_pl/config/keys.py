"""The configuration: every key with its default, the paper's base.

Keys are dotted (`model.h`) and spelled alike on a command line, in a sweep file and in a scale.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from transformer_pl.config.types import (
    LARGEST,
    PLAIN_NAME,
    PLAIN_NAMES,
    Callbacks,
    ClassPath,
    Component,
    Count,
    CountOrNone,
    Extension,
    Loggers,
    Multiplier,
    Natural,
    NaturalOrNone,
    NoBool,
    NotMinusZero,
    OnOrOff,
    OrNone,
    Positive,
    Processes,
    Rate,
    Section,
    Text,
    TextOrNone,
    multiplied,
)

SIZE_NAMES = ("N", "d_model", "d_ff", "h", "d_k", "d_v")  # the sizes of Table 3
ALL_PAIRS = {"train_pairs": None, "max_words": None}  # the keys of `data` that leave pairs out, unset
CORPUS = ("path", "hub", "subset", "revision")  # the keys of `data` that say which corpus it is
SLOTS = ("attention", "ffn", "position", "residual", "self_attention", "cross_attention", "embedding", "architecture")


def _component(name: str, description: str, package: str = "transformer_pl.model") -> Any:
    """A slot whose default is the paper's component."""
    return Field(default=Component(path=f"{package}.{name}"), description=f"import path of {description}")


class Model(Section):
    """Section 3 and the columns of Table 3, in the paper's letters and numbers."""

    N: Count = Field(default=6, description="layers in the encoder, and in the decoder (Section 3.1)")
    N_encoder: NaturalOrNone = Field(
        default=None, description="layers in the encoder alone; unset: N; 0: none, so the decoder is a language model"
    )
    N_decoder: CountOrNone = Field(default=None, description="layers in the decoder alone; unset: N")
    d_model: Count = Field(default=512, description="width of the embeddings and of every layer's output (Section 3.1)")
    d_ff: Count = Field(default=2048, description="inner width of the feed-forward network (Section 3.3)")
    h: Count = Field(default=8, description="attention heads (Section 3.2.2)")
    d_k: CountOrNone = Field(default=None, description="width of a head's keys (Section 3.2.2); unset: d_model / h")
    d_v: CountOrNone = Field(default=None, description="width of a head's values (Section 3.2.2); unset: d_model / h")
    p_drop: Rate = Field(default=0.1, description="dropout probability (Section 5.4)")
    attention: Component = _component("ScaledDotProductAttention", "the attention function (equation 1)")
    ffn: Component = _component("FeedForward", "the feed-forward network (equation 2)")
    position: Component = _component("SinusoidalPosition", "the positional encoding (Section 3.5)")
    residual: Component = _component("PostNormResidual", "the residual connection and its norm (Section 3.1)")
    self_attention: Component = _component("MultiHeadSelfAttention", "the layer that mixes positions (Section 3.2.3)")
    cross_attention: Component = _component("CrossAttention", "the attention to the encoder's output (Section 3.2.3)")
    embedding: Component = _component("SharedEmbedding", "the embeddings and the output projection (Section 3.4)")
    architecture: Component = _component("Transformer", "the whole model, which builds the other parts (Figure 1)")
    width: Multiplier = Field(default=1.0, description="multiplies d_model, d_ff, d_k and d_v; 1/2 is allowed")
    depth: Multiplier = Field(default=1.0, description="multiplies N, N_encoder and N_decoder; 1/2 is allowed")


class Optim(Section):
    """Sections 5.3 and 5.4: the optimizer, its learning rate, which is lr_scale times the schedule, and the loss."""

    max_steps: Count = Field(default=100_000, description="optimizer steps (Section 5.2)")
    duration: Multiplier = Field(default=1.0, description="multiplies max_steps; the paper's big model: 3")
    match: Literal["steps", "flops"] = Field(
        default="steps",
        description="what is equal in all rows: steps, or training FLOPs (each row gets the steps that cost as much as "
        "max_steps of the paper's base; duration is ignored)",
    )
    optimizer: Component = _component("Adam", "the optimizer, of torch.optim's interface (Section 5.3)", "torch.optim")
    schedule: Component = _component("optimizer.InverseSquareRoot", "the schedule (equation 3)")
    loss: Component = _component("loss.SmoothedCrossEntropy", "the training loss (Section 5.4)")
    warmup: Count = Field(default=4000, description="steps in which the learning rate rises (equation 3)")
    lr_scale: Positive = Field(default=1.0, description="multiplies the learning rate of the schedule")
    clip: Annotated[Positive | None, OrNone] = Field(
        default=None, description="largest norm of the gradient, to which larger ones are scaled; unset: no limit"
    )
    eps_ls: Rate = Field(
        default=0.1, description="label smoothing: probability spread over the vocabulary (Section 5.4)"
    )
    beta1: Rate = Field(default=0.9, description="decay of the mean of gradients, for optimizers with betas (5.3)")
    beta2: Rate = Field(
        default=0.98, description="decay of the mean of squared gradients, for the same optimizers (5.3)"
    )
    eps: Positive = Field(default=1e-9, description="epsilon, for optimizers that have one (Section 5.3)")


class Data(Section):
    """Section 5.1. Pairs come from a folder (`path`), else a Hugging Face dataset (`hub`), else they are built in."""

    task: ClassPath = Field(
        default="transformer_pl.tasks.translation.Translation",
        description="import path of the task: what is read and what is scored",
    )
    path: TextOrNone = Field(default=None, description="folder that holds the text")
    hub: TextOrNone = Field(
        default=None, pattern=PLAIN_NAMES, description="dataset of the Hugging Face hub; unused where path is set"
    )
    subset: TextOrNone = Field(
        default=None, pattern=PLAIN_NAME, description="configuration of the hub's dataset, such as de-en"
    )
    revision: TextOrNone = Field(
        default=None, pattern=PLAIN_NAMES, description="branch, tag or commit of the hub's dataset"
    )
    name: TextOrNone = Field(
        default=None,
        pattern=PLAIN_NAME,
        description="what names of trials and rows call the dataset; unset: the last part of path, or of hub",
    )
    source: Text = Field(default="en", description="language to translate from, as the files or columns name it")
    target: Text = Field(default="de", description="language to translate to, as the files or columns name it")
    train: TextOrNone = Field(
        default=None, description="name of the training split; unset: the one that begins with train"
    )
    val: TextOrNone = Field(default=None, description="name of the validation split; unset: as for train")
    test: TextOrNone = Field(default=None, description="name of the test split; unset: as for train")
    train_pairs: CountOrNone = Field(
        default=None, description="use only this many of the first training pairs; unset: all"
    )
    max_words: CountOrNone = Field(
        default=None, description="words per sentence, as blanks divide it; longer pairs of any set are left out"
    )
    tokenizer: Component = _component(
        "JointBPE", "how sentences become tokens (Section 5.1)", "transformer_pl.data.tokenizer"
    )
    vocab_size: Annotated[int, Field(ge=1, le=1_000_000), NoBool] = Field(
        default=37_000, description="tokens of both languages together, special tokens included (Section 5.1)"
    )
    vocabulary_from: TextOrNone = Field(
        default=None, description="folder whose training text the tokenizer learns from; unset: the text itself"
    )
    batches: Component = _component(
        "TrainStream", "the training batches: their text, order and changes", "transformer_pl.data.batches"
    )
    batch_tokens: Count = Field(
        default=25_000, description="source tokens, and as many target tokens, in the global batch (Section 5.1)"
    )
    max_length: Count = Field(
        default=256, description="tokens per sentence, end token included; longer training pairs are dropped"
    )

    @property
    def of_vocabulary(self) -> "Data":
        """The text that the tokenizer learns from."""
        if self.vocabulary_from is None:
            return self
        return self.model_copy(update={"path": self.vocabulary_from, "vocabulary_from": None} | ALL_PAIRS)

    @property
    def short_name(self) -> str:
        """What names of trials call the text: `name`, else the last part of its path or its dataset."""
        return self.name or Path(os.path.abspath(os.path.expanduser(self.path or self.hub or "synthetic"))).name

    @property
    def longest(self) -> int:
        """The most tokens that a sentence of a training pair may have: the smaller of max_length and batch_tokens."""
        return min(self.max_length, self.batch_tokens)


class Decode(Section):
    """Section 6.1: beam search, and which checkpoints are averaged; and what is changed of the model after training."""

    beam: Annotated[int, Field(ge=1, le=1000), NoBool] = Field(
        default=4, description="hypotheses per sentence (Section 6.1)"
    )
    alpha: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), NoBool, NotMinusZero] = Field(
        default=0.6, description="length penalty (Section 6.1)"
    )
    extra: Annotated[int, Field(ge=0, le=10_000), NoBool] = Field(
        default=50, description="tokens by which an output may be longer than its input (Section 6.1)"
    )
    average: Count = Field(default=1, description="last checkpoints that are averaged; 1: none, as in Table 3")
    select: Literal["last", "best"] = Field(
        default="last",
        description="which validation is scored: the last, as in the paper, or best, the one with the lowest val/loss",
    )
    intervention: Component = _component(
        "Unchanged", "what changes the trained model before it is scored", "transformer_pl.train.intervention"
    )


class Trainer(Section):
    """Where and in what precision a trial runs, and what it logs.

    Of these keys, precision, val_every, val_sample and the callbacks are part of a trial's identity. A callback that
    only watches is not, if it has `in_identity: false` beside its options.
    """

    accelerator: Literal["auto", "cpu", "gpu"] = Field(default="auto", description="auto: a GPU where there is one")
    devices: Processes = Field(default=1, description="devices per node, with one process each")
    num_nodes: Processes = Field(default=1, description="nodes that train one trial together")
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true", "fsdp2"] = Field(
        default="auto", description="how processes share the work; fsdp2 also splits the weights"
    )
    precision: Literal["32-true", "bf16-mixed", "bf16-master", "16-mixed"] = Field(
        default="32-true", description="precision of training; bf16-master: all in bf16, except master weights in fp32"
    )
    accumulate: Count = Field(default=1, description="parts that a global batch is split into (gradient accumulation)")
    compile: Annotated[Literal["auto", "on", "off"], OnOrOff] = Field(
        default="auto",
        description="on: layers are compiled, and a GPU replays steps as CUDA graphs; off, and so far auto: neither",
    )
    threads: Annotated[Processes | None, OrNone] = Field(
        default=None, description="CPU threads per process; unset: its share of the cores, or what the trial began with"
    )
    val_every: Count = Field(default=1000, description="steps between validations, each with a checkpoint")
    checkpoint_minutes: Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False), NoBool] = Field(
        default=10, description="minutes between checkpoints, where no validation comes first; 0: at every step"
    )
    log_every: Count = Field(default=50, description="steps between logged values of the training loss")
    eval_tokens: Count = Field(
        default=4096, description="source tokens, and as many target tokens, in an evaluation batch"
    )
    val_sample: Natural = Field(default=0, description="sentences scored at every validation")
    callbacks: Callbacks = Field(default=(), description="Lightning callbacks: import paths, with options")
    loggers: Loggers = Field(
        default=(), description="Lightning loggers beside metrics.jsonl and W&B: import paths, with options"
    )

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
    seed: Annotated[int, Field(ge=0, lt=2**32), NoBool] = Field(  # numpy takes no greater one
        default=1, description="seed of the weights, of dropout and of the order of batches"
    )

    @property
    def steps(self) -> int:
        """The number of optimizer steps: max_steps times duration."""
        return multiplied(self.optim.max_steps, self.optim.duration)

    @property
    def averaged(self) -> int:
        """The number of checkpoints that are averaged: decode.average, or all validations where there are fewer."""
        return min(self.decode.average, -(-self.steps // self.trainer.val_every))

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
            flat[f"{name}.{key}"] = [extension.as_written for extension in value] if isinstance(value, tuple) else value
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
