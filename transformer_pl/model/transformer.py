"""The Transformer of "Attention Is All You Need" (arXiv:1706.03762), in the order and letters of its Section 3.

Shapes: B sentences (or hypotheses), L positions, Lq queries, Lk keys, h heads, V vocabulary.
A part that a row may replace is a component, built by its import path (see `components.py`): `attention`, `ffn`,
`position` and `residual` are the paper's equations; `self_attention`, `cross_attention` and `embedding` are the layers
around them; `architecture` is the whole model, a class derived from `Transformer`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import PAD, Site, Sizes
from transformer_pl.config.components import build
from transformer_pl.model.kernels import Dropout, fused_where_faster, product, softmax
from transformer_pl.model.slots import Cache, Incremental, Mask, Memory, parts_with


def linear(d_in: int, d_out: int, bias: bool = False) -> nn.Linear:
    """A projection, initialised by Glorot's uniform distribution as in the authors' code; the paper names none."""
    layer = nn.Linear(d_in, d_out, bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


# ---------------------------------------------------------------------------------------------------------------------
# 3.1 Encoder and decoder stacks


class PostNormResidual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4."""

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=1e-6)
        self.dropout = Dropout(config.p_drop)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x)).type_as(x))

    def final_norm(self) -> nn.Module:
        """What follows the last layer of a stack: nothing, because every sub-layer ends in its norm."""
        return nn.Identity()


class EncoderLayer(nn.Module):
    """Figure 1 (left): self-attention, then the feed-forward network."""

    def __init__(self, config: Sizes, layer: int = 0):
        super().__init__()
        site = Site("encoder", layer)
        self.self_attention = build(config.self_attention, config, site)
        self.ffn = build(config.ffn, config, site)
        sites = [Site("encoder", layer, sublayer) for sublayer in range(2)]
        self.residual = nn.ModuleList(build(config.residual, config, site) for site in sites)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        x = self.residual[0](x, lambda x: self.self_attention(x, mask))
        return self.residual[1](x, self.ffn)


class DecoderLayer(nn.Module):
    """Figure 1 (right): causal self-attention, attention over the encoder's output, the feed-forward network.

    Without an encoder (`N_encoder` 0) the second of these three sub-layers is left out.
    """

    def __init__(self, config: Sizes, layer: int = 0):
        super().__init__()
        site = Site("decoder", layer)
        self.self_attention = build(config.self_attention, config, site)
        self.cross_attention = build(config.cross_attention, config, Site("cross", layer)) if config.N_encoder else None
        self.ffn = build(config.ffn, config, site)
        sites = [Site("decoder", layer, sublayer) for sublayer in range(3 if config.N_encoder else 2)]
        self.residual = nn.ModuleList(build(config.residual, config, site) for site in sites)

    def forward(
        self, x: Tensor, mask: Mask, memory: Memory, memory_mask: Mask, start: int, cache: Cache | None
    ) -> Tensor:
        """x (B, L, d_model) to the same shape; memory: the encoder's keys and values. See `Transformer.decode`."""
        x = self.residual[0](x, lambda x: self.self_attention(x, mask, start, cache))
        if self.cross_attention is not None:
            x = self.residual[1](x, lambda x: self.cross_attention(x, memory, memory_mask))
        return self.residual[-1](x, self.ffn)


class Transformer(nn.Module):
    """The encoder-decoder of Figure 1; with `N_encoder` 0 its decoder alone, which reads a source before the target.

    A language model has no source.
    """

    encoder_layer: type[nn.Module] = EncoderLayer  # built as Class(config, layer); a derived class may have others
    decoder_layer: type[nn.Module] = DecoderLayer

    def __init__(self, config: Sizes):
        super().__init__()
        self.embedding = build(config.embedding, config, None)
        stacks = ("encoder", "decoder") if config.N_encoder else ("decoder",)
        self.position = nn.ModuleDict({stack: build(config.position, config, Site(stack)) for stack in stacks})
        self.dropout = Dropout(config.p_drop)
        self.encoder = nn.ModuleList(self.encoder_layer(config, layer) for layer in range(config.N_encoder))
        self.decoder = nn.ModuleList(self.decoder_layer(config, layer) for layer in range(config.N_decoder))
        self.encoder_norm = self.encoder[-1].residual[-1].final_norm() if config.N_encoder else None
        self.decoder_norm = self.decoder[-1].residual[-1].final_norm()

    @property
    def incremental(self) -> bool:
        """Whether decoding can continue from a cache; a component that cannot has `incremental = False`."""
        return all(part.incremental for part in parts_with(Incremental, *self.children()))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of every next token, (B, Lt, V), from source (B, Ls) and the target so far (B, Lt), padded."""
        return self.embedding.logits(self.states(source, target))

    def states(self, source: Tensor, target: Tensor) -> Tensor:
        """The decoder's output (B, Lt, d_model), which the embedding projects to the logits of `forward`.

        The target's padding must come last: no token sees what is later. Without an encoder the decoder reads the
        tokens of each source but the last, EOS, in whose place the target begins with BOS.
        """
        keys = source != PAD
        memory, Lt = self.encode(source, keys), target.shape[1]
        if self.encoder_norm is not None or source.shape[1] < 2:  # EOS alone is the source of a language model
            return self.decode(target, Mask(causal=True), memory, Mask(keys))
        end = keys.sum(1) - 1  # (B,)
        at = end[:, None] + torch.arange(Lt, device=end.device)  # (B, Lt)
        ids = F.pad(source[:, :-1], (0, Lt), value=PAD).scatter(1, at, target)
        return self.decode(ids, Mask(causal=True, source=end), memory, Mask(keys)).take_along_dim(at[..., None], 1)

    def encode(self, source: Tensor, keys: Tensor) -> list[Memory]:
        """What each decoder layer attends to: its `keys_values` of the encoded source (B, Ls).

        keys (B, Ls) is False at padding. Without an encoder there is an empty tuple for each layer.
        """
        if self.encoder_norm is None:
            return [() for _ in self.decoder]
        x = self.encoder_norm(self.encoder_stack(self._embed(source, "encoder"), Mask(keys)))
        return [layer.cross_attention.keys_values(x) for layer in self.decoder]

    def decode(
        self,
        target: Tensor,
        mask: Mask,
        memory: list[Memory],
        memory_mask: Mask,
        start: int = 0,
        caches: list[Cache] | None = None,
    ) -> Tensor:
        """The decoder's output (B, L, d_model) at each position of target (B, L).

        mask: the positions of target that each of them may see.
        memory, memory_mask: what `encode` returns, and its mask. B may be a multiple of the number of sentences in
        memory: neighbouring hypotheses then share a sentence.
        start: the position of target's first token.
        caches: one per layer, with the positions before start, to which those of target are added.
        """
        x = self._embed(target, "decoder", start)
        return self.decoder_norm(
            self.decoder_stack(x, mask, memory, memory_mask, start, caches or [None] * len(memory))
        )

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        """The encoder's layers, one after another."""
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def decoder_stack(
        self,
        x: Tensor,
        mask: Mask,
        memory: Sequence[Memory],
        memory_mask: Mask,
        start: int,
        caches: Sequence[Cache | None],
    ) -> Tensor:
        """The decoder's layers, one after another, each with its own memory and cache."""
        for layer, keys_values, cache in zip(self.decoder, memory, caches, strict=True):
            x = layer(x, mask, keys_values, memory_mask, start, cache)
        return x

    def _embed(self, ids: Tensor, site: str, start: int = 0) -> Tensor:
        return self.dropout(self.position[site](self.embedding.embed(ids, site), start))  # (B, L, d_model)


# ---------------------------------------------------------------------------------------------------------------------
# 3.2 Attention


class ScaledDotProductAttention(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V, equation (1)."""

    table_1 = ("n² d", "1", "1")  # complexity, sequential operations, longest path

    def __init__(self, config: Sizes, site: str):
        super().__init__()

    @fused_where_faster
    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """Q (B, h, Lq, d_k), K (B, h, Lk, d_k), V (B, h, Lk, d_v) to (B, h, Lq, d_v).

        Query i stands at position start + i. A query that may see nothing yields zeros.
        """
        d_k = Q.shape[-1]
        return product(softmax(product(Q * d_k**-0.5, K.mT), mask.dense(Q, K, start)), V)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """softmax(Q K^T / sqrt(d_k)), the attention weights: (B, h, Lq, Lk)."""
        d_k = Q.shape[-1]
        return softmax(product(Q * d_k**-0.5, K.mT), mask.dense(Q, K, start))


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), Section 3.2.2.

    d_k and d_v may differ from each other and from d_model / h.
    """

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.h = config.h
        self.W_Q = linear(config.d_model, config.h * config.d_k)
        self.W_K = linear(config.d_model, config.h * config.d_k)
        self.W_V = linear(config.d_model, config.h * config.d_v)
        self.W_O = linear(config.h * config.d_v, config.d_model)
        self.attention = build(config.attention, config, site)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x (B, L, d_model) to the keys and values of every head."""
        return self._heads(self.W_K(x)), self._heads(self.W_V(x))  # (B, h, L, d_k), (B, h, L, d_v)

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """Attention of every head from x (B, Lq, d_model) to K and V of `keys_values`: (B, Lq, d_model).

        mask: the keys that each query may see. start: the position of the first query.
        """
        heads = self.attention(self._heads(self.W_Q(x)), K, V, mask, start)  # (B, h, Lq, d_v)
        return self.W_O(heads.transpose(1, 2).flatten(2))  # (B, Lq, d_model)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)  # (B, h, L, d_k or d_v)


class MultiHeadSelfAttention(MultiHeadAttention):
    """Every position attends to the positions of its own sequence, Section 3.2.3."""

    def forward(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        """x (B, L, d_model). With a cache, x begins at position start, and the cache holds the positions before."""
        K, V = self.keys_values(x)
        if cache is not None:
            if cache:
                K, V = torch.cat([cache["K"], K], 2), torch.cat([cache["V"], V], 2)
            cache.update(K=K, V=V)
        return self.attend(x, K, V, mask, start)


class CrossAttention(MultiHeadAttention):
    """Every position of the decoder attends to the encoder's output, Section 3.2.3."""

    def forward(self, x: Tensor, memory: Memory, mask: Mask) -> Tensor:
        """x (B, L, d_model). All hypotheses of a sentence are queries over the same keys."""
        K, V = memory
        queries = x.reshape(K.shape[0], -1, x.shape[-1])  # (sentences, hypotheses * L, d_model)
        return self.attend(queries, K, V, mask).reshape(x.shape)


# ---------------------------------------------------------------------------------------------------------------------
# 3.3 Position-wise feed-forward networks


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, equation (2)."""

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.W_1 = linear(config.d_model, config.d_ff, bias=True)
        self.W_2 = linear(config.d_ff, config.d_model, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.W_2(self.W_1(x).relu())  # `relu_` is slower: autograd copies a view that is changed


# ---------------------------------------------------------------------------------------------------------------------
# 3.4 Embeddings and softmax


class SharedEmbedding(nn.Module):
    """One matrix embeds source and target, times sqrt(d_model), and projects to the logits."""

    def __init__(self, config: Sizes, site: None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(config.vocab_size, config.d_model) * config.d_model**-0.5)

    def embed(self, ids: Tensor, site: str) -> Tensor:
        return F.embedding(ids, self.weight) * math.sqrt(self.weight.shape[1])  # (B, L, d_model)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)  # (B, L, V)


# ---------------------------------------------------------------------------------------------------------------------
# 3.5 Positional encoding


class SinusoidalPosition(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same."""

    table: Tensor  # (512, d_model)

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.register_buffer("table", self.encoding(0, 512, config.d_model), persistent=False)

    @staticmethod
    def encoding(start: int, stop: int, d_model: int, device: Any = None) -> Tensor:
        """PE of the positions from start to stop: (stop - start, d_model)."""
        i = torch.arange(0, d_model, 2, device=device)
        angle = torch.arange(start, stop, device=device)[:, None] / 10000 ** (i / d_model)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d_model]

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x (B, L, d_model) plus the encoding of positions start to start + L."""
        stop = start + x.shape[1]
        if stop <= len(self.table):
            return x + self.table[start:stop]
        return x + self.encoding(start, stop, x.shape[2], x.device).type_as(self.table)
