"""How much memory a process takes, and how glibc keeps it. Outside Linux these functions do nothing.

By default glibc returns the memory of every large tensor to the system, which must clear each page before the next
tensor gets it: a third of a training step on a CPU. If glibc keeps the memory, the heap slowly grows, because tensors
of many shapes fragment it. So free memory is returned at every validation.
"""

import ctypes
import re
import resource
from contextlib import suppress
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
NOT_GLIBC = (AttributeError, OSError, TypeError)


def keep_freed() -> None:
    """Let glibc keep freed memory for the next tensor."""
    with suppress(*NOT_GLIBC):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_to_system() -> None:
    """Return free memory to the system."""
    with suppress(*NOT_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)


def limit_memory(free: float = 1.0) -> None:
    """Limit this process to a share of the free memory, so that an allocation fails before the system kills it."""
    with suppress(OSError, ValueError, TypeError):
        available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        if available is None:
            return
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + int(free * 1024 * int(available[1])), hard))
