"""The trained model without one head, as in "Are Sixteen Heads Really Better than One?" (Michel et al. 2019,
arXiv:1905.10650). There the head's output is multiplied by zero; here its columns of W^O are zero, which is the same.
"""

from typing import Any, Literal

from transformer_pl.config import Natural
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.intervention import Intervention


class RemovedHeads(Intervention):
    """Head `head` of layer `layer`, both counted from 0, of the attention at `where`."""

    def __init__(self, layer: Natural, head: Natural, where: Literal["encoder", "decoder", "cross"] = "encoder"):
        self.layer, self.head, self.where = layer, head, where

    def __call__(self, model: Transformer) -> None:
        layers: Any = model.encoder if self.where == "encoder" else model.decoder
        if self.layer >= len(layers):
            rule = f"must be below {len(layers)}, as layers of the {self.where} are counted from 0"
            raise InputError(f"layer = {self.layer}: {rule}; give another")
        layer = layers[self.layer]
        attention = layer.cross_attention if self.where == "cross" else layer.self_attention
        if not hasattr(attention, "W_O"):
            rule = f"must be a place of multi-head attention, but has {type(attention).__name__}"
            raise InputError(f"where = {self.where}: {rule}; leave the row out")
        if self.head >= attention.h:
            rule = f"must be below {attention.h}, as heads are counted from 0"
            raise InputError(f"head = {self.head}: {rule}; give another")
        d_v = attention.W_O.in_features // attention.h
        attention.W_O.weight[:, self.head * d_v : (self.head + 1) * d_v] = 0
