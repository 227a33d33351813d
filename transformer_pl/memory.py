"""How glibc keeps a process's memory. Anywhere else, these do nothing.

By default it hands every large tensor back to the system when it dies, and the system must clear each page anew for the
next: a third of a training step on a CPU. Kept instead, tensors of many shapes scatter over a heap that slowly grows,
so what is free is handed back now and then.
"""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
NOT_GLIBC = (AttributeError, OSError, TypeError)


def keep() -> None:
    """Keep freed memory for the next tensor."""
    with suppress(*NOT_GLIBC):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back() -> None:
    """Hand what is free back to the system."""
    with suppress(*NOT_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)
