"""The energy of a training: made counters in the place of the system's, and a library in that of NVIDIA's driver."""

import os
import shutil
import subprocess
import sys
import threading

import pytest
import tiny_trials
from helpers import ROOT

from transformer_pl.runtime import energy
from transformer_pl.runtime.energy import Counter, EnergyMeter, device_counters
from transformer_pl.training import checkpoint
from transformer_pl.training.checkpoint import Checkpoints
from transformer_pl.training.logger import wandb_summary

ZONES = {  # as Linux names them on a machine with two processors: folder, name, microjoules, end of the counter
    "intel-rapl:0": ("package-0", 1_000_000, 5_000_000),
    "intel-rapl:0:0": ("core", 700_000, 5_000_000),
    "intel-rapl:0:1": ("dram", 200_000, 5_000_000),
    "intel-rapl:1": ("package-1", 4_000_000, 5_000_000),
    "intel-rapl:2": ("psys", 9_000_000, 50_000_000),
    "intel-rapl-mmio:0": ("package-0", 1_000_000, 5_000_000),
}
DRIVER = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)7; return strcmp(uuid, "GPU-a"); }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    *millijoules = 1234567890123;
    return device != (void *)7;
}
"""


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    for zone, (name, used, end) in ZONES.items():
        folder = tmp_path / "powercap" / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text(f"{used}\n")
        (folder / "max_energy_range_uj").write_text(f"{end}\n")
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "powercap")
    return tmp_path / "powercap"


@pytest.fixture
def meter(powercap):
    meter = EnergyMeter(device_counters([]))
    yield meter
    meter.close()


def test_processors_and_their_memory_are_counted_once_each(powercap, meter):
    assert meter.joules() == 0
    for zone in ZONES:
        (powercap / zone / "energy_uj").write_text("4_500_000")
    assert meter.joules() == pytest.approx(3.5 + 4.3 + 0.5)


def test_a_counter_that_has_come_to_its_end_goes_on_from_0(powercap, meter):
    for used in (4_900_000, 100_000, 300_000):
        (powercap / "intel-rapl:1" / "energy_uj").write_text(str(used))
        joules = meter.joules()
    assert joules == pytest.approx(0.9 + 0.2 + 0.2)


def test_counters_are_read_often_enough_to_see_their_end(powercap, monkeypatch):
    monkeypatch.setattr(energy, "READ_EVERY_S", 0.001)
    read = threading.Event()
    meter = EnergyMeter([Counter(lambda: read.set() or 0.0, 5.0)])
    read.clear()
    assert read.wait(10)
    meter.close()


@pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj", "name"])
@pytest.mark.parametrize("content", [None, "", "?"])
def test_without_a_counter_nothing_is_known(powercap, file, content):
    """No part of it either: what one processor tells is not the energy of two."""
    for zone in ("intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1")[: 3 if file == "name" else 1]:
        path = powercap / zone / file
        path.unlink()
        if content is None:
            path.mkdir()  # cannot be read, also by root
        else:
            path.write_text(content)
    meter = EnergyMeter(device_counters([]))
    assert meter.joules() is None and EnergyMeter().joules() is None


def test_a_counter_that_ends_leaves_nothing_known(powercap, meter):
    assert meter.joules() == 0
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.joules() is None and meter.joules() is None


def test_what_earlier_processes_used_counts(tmp_path):
    """A checkpoint keeps it. One that does not know it leaves nothing known."""

    def checkpoints() -> Checkpoints:
        made = Checkpoints(tmp_path, 1, meter=EnergyMeter([Counter(iter(range(1, 100)).__next__)]))
        made._started = 0.0
        return made

    first, second, third = checkpoints(), checkpoints(), checkpoints()
    first.meter.joules()
    state = first.state_dict()
    assert state["joules"] == 2
    second.load_state_dict(state)
    assert second.state_dict()["joules"] == 2 + 1
    third.load_state_dict({key: value for key, value in state.items() if key != "joules"})
    assert third.state_dict()["joules"] is None


def test_the_result_of_a_trial_has_it(powercap, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "EnergyMeter", None)  # its checkpoints have the same meter
    code, trial = tiny_trials.train(tmp_path / "runs", {"optim.max_steps": 2})
    assert code == 0 and trial.result()["energy_j"] == 0  # the made counters stand still
    assert wandb_summary(trial.result())["energy_j"] == 0
    assert not any(thread.name == "energy" and thread.is_alive() for thread in threading.enumerate())


def test_the_driver_tells_the_energy_of_a_gpu(tmp_path):
    """In joules. Without the driver, and of a GPU that it does not know, nothing is known."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER)
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "driver.c")], check=True)
    program = (
        "from transformer_pl.runtime.energy import EnergyMeter, device_counters as counters\n"
        "print(counters(['GPU-a'])[0].read(), EnergyMeter(counters(['GPU-a'])).joules())\n"
        "print(EnergyMeter(counters(['GPU-a', 'GPU-b'])).joules())"
    )
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.stdout.split() == ["1234567890.123", "0.0", "None"], ran.stderr
    if not energy.device_counters([]):  # a machine with a driver may have neither
        assert EnergyMeter(device_counters(["GPU-a"])).joules() is None
