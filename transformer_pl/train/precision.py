"""The precision `bf16-master`, which Lightning does not have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn


@contextmanager
def bfloat16_copies(module: nn.Module) -> Iterator[None]:
    """Within this context, the weights and buffers of a module are copies in bfloat16, for `bf16-master`.

    A forward pass computes with one copy of each weight. Gradients flow through the copy to the float32 weight, the
    master, which Adam changes (Micikevicius et al. 2018, Section 3.1). What lies between two layers is bfloat16, too,
    where under `bf16-mixed` it is float32. What a pass changes in a buffer stays. Validations, checkpoints and saved
    weights use the masters.
    """
    places: list[tuple[Any, str, Tensor]] = [
        (tensors, name, tensor)
        for part in module.modules()
        for tensors in (part._parameters, part._buffers)  # as torch.func.functional_call does
        for name, tensor in tensors.items()
        if tensor is not None
    ]
    masters = list(dict.fromkeys(master for *_, master in places if master.is_floating_point()))  # a shared one once
    is_ddp = distributed.is_available() and distributed.is_initialized()  # which sends each gradient when it is there
    groups = [[master] for master in masters] if is_ddp else [masters]
    copies = {one: copy for group in groups for one, copy in zip(group, _Copies.apply(*group), strict=True)}
    versions = {master: copy._version for master, copy in copies.items()}
    try:
        for tensors, name, master in places:
            tensors[name] = copies.get(master, master)
        yield
    finally:
        for tensors, name, master in places:
            _put_back(tensors, name, master, copies.get(master, master), versions.get(master))


def _put_back(tensors: Any, name: str, master: Tensor, copy: Tensor, version: int | None) -> None:
    now, tensors[name] = tensors[name], master
    if isinstance(master, nn.Parameter):
        return
    if now is not copy:  # a buffer that was assigned again
        tensors[name] = now if now is None else now.detach().to(master.dtype)
    elif copy is not master and copy._version != version:  # one that was changed in place
        master.copy_(copy.detach())


class _Copies(torch.autograd.Function):
    """Copies several weights at once, and their gradients back: few kernels on a GPU, and not one for each weight."""

    @staticmethod
    def forward(ctx: Any, *masters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a weight that a pass does not use has no gradient
        copies = [torch.empty_like(master, dtype=torch.bfloat16) for master in masters]
        torch._foreach_copy_(copies, masters)
        needs = zip(copies, ctx.needs_input_grad, strict=True)
        ctx.mark_non_differentiable(*(copy for copy, is_trained in needs if not is_trained))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        widened = [torch.empty_like(gradient, dtype=torch.float32) for gradient in given]
        torch._foreach_copy_(widened, given)
        of_masters = iter(widened)
        return tuple(None if gradient is None else next(of_masters) for gradient in gradients)
