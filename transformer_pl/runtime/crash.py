"""Named places at which a test lets a process die as in a power cut: before and after every write that matters."""

import os
import signal
from collections import Counter

CRASH = "TRANSFORMER_PL_CRASH"  # a variable: the name of a place, `@`, and which time it is passed, such as 1
PASSED: Counter[str] = Counter()  # how often this process has passed each place


def crash_point(name: str) -> None:
    """Kill this process, if CRASH names this place and it is passed for that time. Otherwise do nothing."""
    PASSED[name] += 1
    if os.environ.get(CRASH) == f"{name}@{PASSED[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
