"""The energy that devices use, as their own counters tell it: NVIDIA's driver for GPUs, Linux (RAPL) for processors.

RAPL counts what everything on the processors and in their memory uses. On most machines only root may read it.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

POWERCAP = Path("/sys/class/powercap")
READ_EVERY_S = 60.0  # a processor under full load comes to the end of its counter in 10 minutes or more


def gpu_joules(uuid: str) -> float:
    """What a GPU has used since its driver was loaded. Raises an OSError where that is not told (a part of a GPU)."""
    device, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    try:
        driver = ctypes.CDLL("libnvidia-ml.so.1")
        failed = (
            driver.nvmlInit_v2()
            or driver.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
            or driver.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
        )
    except AttributeError as error:
        raise OSError("NVIDIA's driver is too old to tell energy") from error
    if failed:
        raise OSError(f"NVIDIA's driver does not tell the energy of {uuid}: error {failed}")
    return millijoules.value / 1000


class Counter(NamedTuple):
    """A device's own counter."""

    read: Callable[[], float]  # joules since some moment in the past; raises an OSError where it is not told
    end: float = 0.0  # joules at which it begins again at 0; 0: never


class EnergyMeter:
    """Sums what devices use from now on. `close` it in the end."""

    def __init__(self, counters: Sequence[Counter] = ()):
        self.earlier: float | None = 0.0  # joules that earlier processes used; None: not known
        self._counters, self._used = list(counters), 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        try:
            self._last = [counter.read() for counter in self._counters]
        except OSError:
            self._counters = []
        self._reader = threading.Thread(target=self._keep_reading, name="energy", daemon=True)
        if any(counter.end for counter in self._counters):
            self._reader.start()

    def joules(self) -> float | None:
        """What was used so far, by earlier processes too; None if no device tells it, or one no longer does."""
        with self._lock:
            try:
                now = [counter.read() for counter in self._counters]
            except OSError:
                self._counters = []
            if not self._counters or self.earlier is None:
                return None
            for counter, before, after in zip(self._counters, self._last, now, strict=True):
                self._used += after - before + (counter.end if after < before else 0.0)
            self._last = now
            return self.earlier + self._used

    def close(self) -> None:
        self._closed.set()
        if self._reader.is_alive():
            self._reader.join()

    def _keep_reading(self) -> None:
        while not self._closed.wait(READ_EVERY_S):
            self.joules()


def device_counters(gpus: Sequence[str]) -> list[Counter]:
    """The counters of GPUs, by their UUIDs; without GPUs, those of this machine's processors, if there are any."""
    if gpus:
        return [Counter(partial(gpu_joules, uuid)) for uuid in gpus]
    zones = [path for path in POWERCAP.glob("intel-rapl:*") if _is_counted(path)]
    try:
        return [Counter(partial(_joules, zone / "energy_uj"), _joules(zone / "max_energy_range_uj")) for zone in zones]
    except OSError:
        return []


def _is_counted(zone: Path) -> bool:
    """Of processors and of their memory; not of parts of a processor, which its own counter holds."""
    try:
        return re.fullmatch(r"package-\d+|dram", (zone / "name").read_text().strip()) is not None
    except OSError:
        return False


def _joules(path: Path) -> float:
    try:
        return int(path.read_text()) / 1e6
    except ValueError as error:
        raise OSError(f"{path}: must be a number") from error
