"""The model of Section 3, its loss, schedule and decoding. Components may import what this module names."""

from transformer_pl.model.kernels import Dropout
from transformer_pl.model.transformer import (
    Cache,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Mask,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    PostNormResidual,
    ScaledDotProductAttention,
    SharedEmbedding,
    SinusoidalPosition,
    Transformer,
    has_weights,
    linear,
    softmax,
)
