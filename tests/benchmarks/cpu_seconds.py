"""CPU seconds of tests, with those of the processes that they start: a measure that a busy machine does not change.

    PYTHONPATH=tests/benchmarks pytest -n 2 -p cpu_seconds

It prints the sums of folders and files, and the tests that take longest.
"""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 60  # files, and tests
last = [0.0]  # what had been used when the phase before was over
seconds = Counter[str]()  # by test


def used() -> float:
    """The CPU seconds of this process and of its descendants, of those that have ended, too."""
    parents, own = dict[int, int](), dict[int, float]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], own[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(own[pid] for pid in family)


def pytest_collection_finish(session):
    last[0] = used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """After setup, call and teardown: with `-n`, the report goes from a worker to the process that prints."""
    report, now = (yield), used()
    report.user_properties.append(("cpu", now - last[0]))
    last[0] = now
    return report


def pytest_runtest_logreport(report):
    seconds[report.nodeid] += dict(report.user_properties).get("cpu", 0.0)


def pytest_terminal_summary(terminalreporter):
    files, folders = Counter[str](), Counter[str]()
    for test, one in seconds.items():
        file = test.partition("::")[0]
        files[file] += one
        folders[str(Path(file).parent)] += one
    terminalreporter.section(f"CPU seconds: {seconds.total():.0f}, without imports and collection")
    for sums in (folders, files, seconds):
        for name, one in sums.most_common(SHOWN):
            terminalreporter.write_line(f"{one:8.1f} {name}")
        terminalreporter.write_line("")
