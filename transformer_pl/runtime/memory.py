"""How glibc keeps freed memory. Outside Linux these functions do nothing.

By default glibc returns the memory of every large tensor to the system, which must clear each page before the next
tensor gets it: a third of a training step on a CPU. If glibc keeps the memory, the heap slowly grows, because tensors
of many shapes fragment it. So free memory is returned at every validation.
"""

import ctypes
from contextlib import suppress

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
