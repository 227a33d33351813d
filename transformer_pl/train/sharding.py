"""Sharding by FSDP2: every weight of a model, and with it Adam's state, is divided over the ranks."""

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from transformer_pl.config import Config
from transformer_pl.runtime.errors import InputError


def shard(model: Any, loss: Any, config: Config, mesh: DeviceMesh) -> None:
    """Shard the weights of a Transformer. Raises an InputError for those that FSDP2 cannot shard."""
    remedy = "with fsdp2; use trainer.strategy=ddp"
    if isinstance(loss, nn.Module) and list(loss.parameters()):
        raise InputError(f"optim.loss = {config.optim.loss.path}: must have no weights of its own {remedy}")
    names = dict(model.named_parameters(remove_duplicate=False))
    if shared := names.keys() - dict(model.named_parameters()).keys():
        rule = f"must have each weight once, but {min(shared)} is also another"
        raise InputError(f"model.architecture = {config.model.architecture.path}: {rule}: not possible {remedy}")
    for layer in dict.fromkeys((*model.encoder, *model.decoder)):  # a shared layer once
        if getattr(layer, "cross_attention", None) is not None:  # the encoder calls it, too, before the layer's forward
            fully_shard(layer.cross_attention, mesh=mesh)
            register_fsdp_forward_method(layer.cross_attention, "keys_values")
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "states")
