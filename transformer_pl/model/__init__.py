"""The model of Section 3, its loss, schedule and decoding. Components may import what this module names."""

from transformer_pl.model.kernels import Dropout
from transformer_pl.model.slots import Cache, Mask, has_weights
from transformer_pl.model.transformer import (
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    PostNormResidual,
    ScaledDotProductAttention,
    SharedEmbedding,
    SinusoidalPosition,
    Transformer,
    linear,
    softmax,
)
