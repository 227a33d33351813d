"""The slots of a config as types: the methods that a component must have, with shapes, and what it may also have.

ablations/SLOTS.md explains them. A component need not derive from these classes: it has to have their methods.
B sentences or hypotheses, L positions, Lq queries, Lk keys, h heads, V subwords.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformer_pl.data.batches import Batch

Cache = dict[str, Tensor]  # what one layer keeps of the prefix; the first axis of every tensor is the hypothesis
Memory = tuple[Tensor, ...]  # what one layer keeps of the encoder's output; the first axis of each is the sentence


class Mask:
    """Which keys a query may see: those that are not padding, and with `causal` none that is later than the query.

    keys: (B, Lk), True at a token and False at padding; None where no padding needs to be hidden.
    source: (B,), where the source ends in a decoder that reads it before the target: query and key i are of the source
    if i < source. None in any other place. It hides nothing by itself.
    """

    def __init__(self, keys: Tensor | None = None, causal: bool = False, source: Tensor | None = None):
        self.keys = keys
        self.causal = causal
        self.source = source
        self._dense: dict[tuple, Tensor] = {}

    def dense(self, Q: Tensor, K: Tensor, start: int = 0) -> Tensor:
        """True where query start + i may see key j: (B or 1, 1, Lq or 1, Lk). Computed once for all layers."""
        Lq, Lk = Q.shape[-2], K.shape[-2]
        if torch.compiler.is_compiling():  # lengths as the keys of a dict would be constants of the compiled code
            return self._seen(Lq, Lk, start, K.device)
        if (Lq, Lk, start) not in self._dense:
            self._dense[Lq, Lk, start] = self._seen(Lq, Lk, start, K.device)
        return self._dense[Lq, Lk, start]

    def _seen(self, Lq: int, Lk: int, start: int, device: torch.device) -> Tensor:
        seen = torch.ones(1, 1, 1, Lk, dtype=torch.bool, device=device)
        if self.keys is not None:
            seen = seen & self.keys[:, None, None, :]
        if self.causal:
            query = torch.arange(start, start + Lq, device=device)[:, None]
            seen = seen & (torch.arange(Lk, device=device) <= query)
        return seen


# ---------------------------------------------------------------------------------------------------------------------
# What the model calls. It builds a component as Class(config, site, **options), and passes arguments by their places.


class Attention(Protocol):
    """`model.attention`, equation (1); one a layer, for the sites `encoder`, `decoder` and `cross`."""

    def __call__(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """Q (B, h, Lq, d_k), K (B, h, Lk, d_k), V (B, h, Lk, d_v) to (B, h, Lq, d_v).

        Query i stands at position start + i, key j at position j. In training start is 0. In decoding there is a single
        query, and K and V are the whole prefix. Only the first call may have several queries: the text that a language
        model continues, or the source that a decoder alone reads. At `cross` start has no meaning. A query that may see
        nothing yields zeros.
        """


class PositionWise(Protocol):
    """`model.ffn`, equation (2); one a layer."""

    def __call__(self, x: Tensor) -> Tensor:
        """x (B, L, d_model) to the same shape."""


class Position(Protocol):
    """`model.position`, Section 3.5; one for `encoder`, one for `decoder`."""

    def __call__(self, x: Tensor, start: int = 0) -> Tensor:
        """x (B, L, d_model) plus the encoding. x[:, 0] stands at position start, which is not 0 in decoding."""


class Residual(Protocol):
    """`model.residual`, Section 3.1, with the dropout of its sub-layer and its norm; one a sub-layer."""

    def __call__(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x to what the next residual gets: (B, L, d_model), or a state of another shape, such as several streams.

        The first residual of a stack (`site.layer` and `site.sublayer` are 0) gets the embeddings (B, L, d_model).
        sublayer: (B, L, d_model) to the same shape.
        """

    def final_norm(self) -> nn.Module:
        """What follows the last layer of a stack, from the last residual's state to (B, L, d_model).

        `torch.nn.Identity()`, or a norm where that stands before the sub-layer.
        """


class SelfAttention(Protocol):
    """`model.self_attention`, the layer that mixes positions (Section 3.2.3); one a layer."""

    def __call__(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        """x (B, L, d_model) to the same shape. cache: None in training.

        In decoding it is a dictionary of tensors that the layer fills with what it needs of the prefix. The first axis
        of each is the hypothesis, and x begins at start. Keep nothing on `self` instead.
        """


class CrossAttention(Protocol):
    """`model.cross_attention`, the attention to the encoder's output (Section 3.2.3); one a layer, at `cross`."""

    def keys_values(self, x: Tensor) -> Memory:
        """What the layer needs of the encoder's output x (B, Ls, d_model), computed once for each sentence.

        A tuple of tensors, whose first axis is the sentence.
        """

    def __call__(self, x: Tensor, memory: Memory, mask: Mask) -> Tensor:
        """x (B, L, d_model) to the same shape. Each sentence in memory may have several rows of x, its hypotheses."""


class Embedding(Protocol):
    """`model.embedding`, Section 3.4; once, and its site is None."""

    def embed(self, ids: Tensor, site: str) -> Tensor:
        """ids (B, L) of the `encoder` or the `decoder` to (B, L, d_model), multiplied by sqrt(d_model)."""

    def logits(self, x: Tensor) -> Tensor:
        """x (B, L, d_model) to (B, L, V)."""


class Architecture(Protocol):
    """`model.architecture`, Figure 1; built as Class(config, **options). It is derived from `Transformer`."""

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """The logits (B, Lt, V) of every next token, from source (B, Ls) and the target so far (B, Lt), padded."""

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        """The encoder's layers, from x (B, L, d_model) to what `encoder_norm` takes.

        Each is called as layer(x, mask).
        """

    def decoder_stack(
        self,
        x: Tensor,
        mask: Mask,
        memory: Sequence[Memory],
        memory_mask: Mask,
        start: int,
        caches: Sequence[Cache | None],
    ) -> Tensor:
        """The decoder's layers, from x (B, L, d_model) to what `decoder_norm` takes.

        Layer i is called as layer(x, mask, memory[i], memory_mask, start, caches[i]).
        """


class Schedule(Protocol):
    """`optim.schedule`, Section 5.3; built as Class(config, optim, **options)."""

    def __call__(self, step: int) -> float:
        """The learning rate of a step, before optim.lr_scale multiplies it. The first step is 1."""


class Loss(Protocol):
    """`optim.loss`, Section 5.4; built as Class(config, optim, **options)."""

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """logits (B, L, V) and target (B, L) to the sum over all tokens except padding (0)."""


SLOTS: dict[str, type] = {
    "model.attention": Attention,
    "model.ffn": PositionWise,
    "model.position": Position,
    "model.residual": Residual,
    "model.self_attention": SelfAttention,
    "model.cross_attention": CrossAttention,
    "model.embedding": Embedding,
    "model.architecture": Architecture,
    "optim.schedule": Schedule,
    "optim.loss": Loss,
}


def call_signatures(slot: str) -> dict[str, str]:
    """For each method that a slot calls, its arguments without types, such as `(x, start=0)`."""
    signatures = {}
    for name, method in vars(SLOTS[slot]).items():
        if inspect.isfunction(method) and (name == "__call__" or name[0] != "_"):
            _, *parameters = inspect.signature(method).parameters.values()
            untyped = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
            signatures[name] = str(inspect.Signature(untyped))
    return signatures


# ---------------------------------------------------------------------------------------------------------------------
# What a component may also have


@runtime_checkable
class HasWeights(Protocol):
    """An attention that can show its weights. The method must be in the class that has its `forward`."""

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """The attention weights, (B, h, Lq, Lk)."""


@runtime_checkable
class Stepwise(Protocol):
    """A part of the model, a loss, an optimizer or batches that know the step of the training."""

    def at_step(self, step: int, steps: int) -> None:
        """Called before each training step, 1 to steps; of a model also before an evaluation, with the last step."""


@runtime_checkable
class Auxiliary(Protocol):
    """A part of the model, or a loss, with losses of its own (means per token), which its call sets.

    Training adds them to the loss. The attribute has the name of each from the constructor on.
    """

    auxiliary: dict[str, Tensor]


@runtime_checkable
class Carrying(Protocol):
    """A part of the model that carries something from a batch to the next, as `carries = True` of its class says.

    A pass reads what `carry` has given, and leaves it as it is: a batch may need several passes.
    """

    carries: bool

    def carry(self, state: dict[str, Tensor]) -> None:
        """Take what `carried` has given of the batch before, row by row; a row that begins anew has zeros.

        An empty state: there is no batch before.
        """

    def carried(self) -> dict[str, Tensor]:
        """What the last pass leaves for the next batch, without gradients; the first axis of each is the row."""


@runtime_checkable
class Incremental(Protocol):
    """A component that says whether decoding can continue from a cache. Without this attribute it can."""

    incremental: bool


@runtime_checkable
class Exempt(Protocol):
    """A class that breaks properties on purpose: the reasons, by the names of the properties."""

    exempt: dict[str, str]


@runtime_checkable
class InTable1(Protocol):
    """A layer with its row of Table 1: complexity, sequential operations, longest path, as texts."""

    table_1: Sequence[str]


@runtime_checkable
class Grouping(Protocol):
    """A class of optimizers that groups the parameters."""

    @staticmethod
    def groups(named_parameters: list[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
        """Groups as torch's classes take them; the lr of a group is a factor of the schedule's rate."""


@runtime_checkable
class LossOfStates(Protocol):
    """A loss that need not have all logits at once."""

    def of_states(self, embedding: Embedding, x: Tensor, target: Tensor) -> Tensor:
        """The loss of target (B, L), from the decoder's output x (B, L, d_model) in place of the logits."""


@runtime_checkable
class LossOfBatch(Protocol):
    """A loss that calls the model itself, for several passes, a teacher, or noise. Its other methods are not called."""

    def of_batch(self, model: Architecture, batch: "Batch") -> Tensor:
        """The sum over all tokens of batch.target_out except padding (0)."""


def parts_with(hook: type, *parts: Any) -> Iterator[Any]:
    """What has a hook, such as `Stepwise`: of these parts themselves, and of the modules within a module."""
    for part in parts:
        within = part.modules() if isinstance(part, nn.Module) else [part]
        yield from (owner for owner in within if isinstance(owner, hook))


def tell_step(step: int, steps: int, *parts: Any) -> None:
    """Call `at_step` of these parts, and of the modules within them. step: the next, or the last one."""
    for part in parts_with(Stepwise, *parts):
        part.at_step(step, steps)


def auxiliary_losses(*parts: Any) -> dict[str, Tensor]:
    """By name, the losses that these parts, and the modules within them, have set as `auxiliary`, summed."""
    losses: dict[str, Tensor] = {}
    for part in parts_with(Auxiliary, *parts):
        for name, loss in part.auxiliary.items():
            losses[name] = losses[name] + loss if name in losses else loss
    return losses


def carried(model: nn.Module) -> list[dict[str, Tensor]]:
    """What each part of a model carries after a pass, in the order of its modules; empty where none does."""
    return [part.carried() for part in parts_with(Carrying, model)]


def carry(model: nn.Module, states: Sequence[dict[str, Tensor]] = (), begins: Tensor | None = None) -> None:
    """Let the next passes go on from what `carried` has given; without states from nothing.

    begins (B,): True for a row that begins anew. It gets zeros, as a row does that the batch before did not have.
    """
    for i, part in enumerate(parts_with(Carrying, model)):
        state = states[i] if states else {}
        part.carry({} if begins is None else {name: _going_on(value, begins) for name, value in state.items()})


def _going_on(value: Tensor, begins: Tensor) -> Tensor:
    value = value.to(begins.device)
    rows = value.new_zeros(len(begins), *value.shape[1:])
    rows[: len(value)] = value[: len(begins)]
    return rows.masked_fill(begins.view(-1, *[1] * (value.dim() - 1)), 0)


def has_weights(attention: nn.Module) -> bool:
    """Whether an attention can show its weights. A class with a `forward` of its own does not inherit `weights`."""
    classes = map(vars, type(attention).__mro__)  # that of torch.nn.Module has a `forward`
    return next("weights" in own for own in classes if "weights" in own or "forward" in own)
