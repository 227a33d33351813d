"""This machine: its GPUs, its cores, its memory. Needs no torch."""

import ctypes
import math
import os
import re
from contextlib import suppress
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

import pynvml

from transformer_pl.runtime.environment import processor

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
NOT_GLIBC = (AttributeError, OSError, TypeError)


def gpus() -> list[str]:
    """The GPUs of NVIDIA that torch can use, as CUDA_VISIBLE_DEVICES names them. None if torch is built for CPUs only.

    GPUs of AMD and Apple are not used.
    """
    count = 0 if "+cpu" in version("torch") else len(_capabilities())
    return visible(count, os.environ.get("CUDA_VISIBLE_DEVICES"))


PEAKS = {  # of products in half precision, dense, in TFLOP/s, by NVIDIA's data sheets
    **{"B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "V100": 125},
    **{"L40S": 362, "L4": 121, "A10": 125, "T4": 65, "RTX 4090": 165, "RTX 3090": 71},
}


def peak_flops(gpu: str) -> float | None:
    """The most FLOPs per second that a GPU of this name has in half precision; None where it is not known."""
    return next((1e12 * peak for name, peak in PEAKS.items() if re.search(rf"\b{name}\b", gpu)), None)


def has_bfloat16() -> bool:
    """Whether a GPU of this machine computes in bfloat16.

    NVIDIA's before compute capability 8, such as a T4, do not: torch lets them emulate it, slower than float32.
    """
    majors = _capabilities()
    return not majors or max(majors) >= 8


def emulates_bfloat16(cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether torch computes products in bfloat16 on this processor with loops that are much slower than in float32.

    So it is on Intel's and AMD's without AVX-512 and AVX-NE-CONVERT, which oneDNN needs. Outside Linux it is not known.

    cpu_info: the kernel's list of processors.
    """
    flags = processor(cpu_info).get("flags", "").split()  # of x86 alone
    return bool(flags) and not {"avx512bw", "avx_ne_convert"} & {*flags}


def visible(count: int, names: str | None) -> list[str]:
    """The GPUs, of `count`, that CUDA shows if CUDA_VISIBLE_DEVICES is `names`: those before the first unknown name."""
    numbers = [str(number) for number in range(count)]
    if names is None or not count:
        return numbers
    return list(takewhile(lambda n: n in numbers or n.startswith(("GPU-", "MIG-")), map(str.strip, names.split(","))))


def cpu_cores() -> list[int]:
    """The CPU cores that this process may use; no more than its container has time for."""
    known = hasattr(os, "sched_getaffinity")  # Linux alone has it
    return sorted(os.sched_getaffinity(0) if known else range(os.cpu_count() or 1))[: cpu_limit()]


def cpu_limit(root: Path = Path("/")) -> int | None:
    """How many cores a container may use by its share of time, rounded up, though it shows all; None: no limit."""
    limits = []
    with suppress(OSError):  # not on Linux
        groups = (root / "proc/self/cgroup").read_text()
        for controllers, group in re.findall(r"^\d+:([^:]*\bcpu\b[^:]*|):/(.*)$", groups, re.M):  # version 2 names none
            top, *names = ("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("", "cpu.max")
            inner = root / "sys/fs/cgroup" / top / group
            for folder in (inner, *inner.parents):
                with suppress(OSError, ValueError):  # none here, or `max`
                    quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
                    if quota > 0:
                        limits.append(math.ceil(quota / period))
    return min(limits, default=None)


def _capabilities() -> list[int]:
    """The first number of the compute capability of each GPU that NVIDIA's driver finds; none without the driver."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [pynvml.nvmlDeviceGetCudaComputeCapability(handle)[0] for handle in handles]
    except pynvml.NVMLError:
        return []


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next tensor. Outside Linux it does nothing.

    By default glibc returns the memory of every large tensor to the system, which must clear each page before the next
    tensor gets it: a third of a training step on a CPU. If glibc keeps the memory, the heap slowly grows, because
    tensors of many shapes fragment it. So free memory is returned at every validation.
    """
    with suppress(*NOT_GLIBC):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory() -> None:
    """Return free memory to the system."""
    with suppress(*NOT_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)
