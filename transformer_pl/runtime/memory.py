"""How much memory a process takes, and how glibc keeps it. Elsewhere than on Linux these do nothing.

By default glibc hands every large tensor back to the system when it dies, and the system must clear each page anew for
the next: a third of a training step on a CPU. Kept instead, tensors of many shapes scatter over a heap that slowly
grows, so what is free is handed back now and then.
"""

import ctypes
import re
import resource
from contextlib import suppress
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
NOT_GLIBC = (AttributeError, OSError, TypeError)


def keep_freed() -> None:
    """Keep freed memory for the next tensor."""
    with suppress(*NOT_GLIBC):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_to_system() -> None:
    """Hand what is free back to the system."""
    with suppress(*NOT_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)


def limit_memory(free: float = 1.0) -> None:
    """Refuse what is beyond this share of the machine's free memory: an error, where the process would be killed."""
    with suppress(OSError, ValueError, TypeError):
        available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (taken + int(free * 1024 * int(available[1])), hard))
