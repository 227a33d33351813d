"""The precision of training that Lightning does not have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn


class MasterWeights(Precision):
    """`bf16-master`: training steps compute in bfloat16; the weights, gradients and Adam's state are float32.

    A step computes with a bfloat16 copy of each weight. Gradients flow through the copy to the float32 weight, the
    master, which Adam changes (Micikevicius et al. 2018, Section 3.1). What lies between two layers is bfloat16, too,
    where under `bf16-mixed` it is float32. Validations, checkpoints and saved weights are the masters'.
    """

    precision: Literal["bf16-master"] = "bf16-master"  # type: ignore[assignment]  # Lightning lists its own alone

    def convert_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return module

    @contextmanager
    def train_step_context(self) -> Iterator[None]:
        """Within it, the weights and buffers of the module are their bfloat16 copies: one copy of a shared weight.

        What a step has changed in a buffer stays.
        """
        copies: dict[Tensor, Tensor] = {}
        masters: list[tuple[Any, str, Tensor]] = []
        for module in self.module.modules():
            for tensors in (module._parameters, module._buffers):  # as torch.func.functional_call does
                masters += [(tensors, name, tensor) for name, tensor in tensors.items() if tensor is not None]
        try:
            for tensors, name, master in masters:
                if master.is_floating_point():
                    if master not in copies:
                        copies[master] = master.bfloat16()
                    tensors[name] = copies[master]
            yield
        finally:
            for tensors, name, master in masters:
                copy, now = copies.get(master, master), tensors[name]
                tensors[name] = master
                if isinstance(master, nn.Parameter):
                    continue
                if now is not copy:  # a buffer that was assigned again
                    tensors[name] = now if now is None else now.detach().to(master.dtype)
                elif copy is not master and copy._version:  # one that was changed in place
                    master.copy_(copy.detach())
