"""What this machine can train on, and what is refused because it cannot."""

import itertools
import json
import os
import shutil
import subprocess
import sys

import lightning as L
import pytest
import tiny_trials
import torch
from helpers import ROOT, a_result, command

from transformer_pl import sweep
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime import machine
from transformer_pl.runtime.environment import keep_compiled_products
from transformer_pl.runtime.errors import InputError
from transformer_pl.training import fit

NAMES = [None, "", "0", "1", "0,1", "1,0", "3,0", "-1", "0,-1,1", "0,0", "1,2,7", "GPU-8d2a,GPU-11aa", "MIG-1", "none"]
DRIVER = """
static int started = 0;
int nvmlInit_v2(void) { started = 1; return FAILS; }
int nvmlDeviceGetCount_v2(unsigned *count) { if (!started) return 1; *count = 3; return 0; }
"""


def config(**keys):
    return resolve([Level("test", {f"trainer.{key}": value for key, value in keys.items()})])


@pytest.mark.parametrize("count", [0, 1, 2, 8])
@pytest.mark.parametrize("names", NAMES)
def test_the_gpus_that_are_visible_are_those_that_torch_sees(monkeypatch, names, count):
    if names is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    expected = list(itertools.takewhile(lambda n: isinstance(n, str) or n < count, torch.cuda._parse_visible_devices()))
    assert machine.visible(count, names) == ([str(name) for name in expected] if count else [])


@pytest.mark.parametrize("names", [None, "", "0", "-1"])
def test_gpus_are_counted_as_torch_counts_them(monkeypatch, names):
    """Of the machine that runs the tests: mostly none."""
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert len(machine.gpus()) == torch.cuda.device_count()


@pytest.mark.parametrize(("fails", "count"), [(0, 3), (9, 0)])
def test_the_driver_is_asked_how_many_gpus_there_are(tmp_path, fails, count):
    """A library in the place of NVIDIA's, which starts or does not."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER.replace("FAILS", str(fails)))
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "driver.c")], check=True)
    program = (
        "import sys; from transformer_pl.runtime import machine; print(machine.nvidia_gpus(), 'torch' in sys.modules)"
    )
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.stdout.split() == [str(count), "False"], ran.stderr


@pytest.mark.parametrize(
    ("keys", "gpus", "expected"),
    [
        ({}, 0, "cpu"),
        ({}, 1, "cuda"),
        ({"precision": "bf16-mixed"}, 0, "cpu"),
        ({"precision": "16-mixed"}, 1, "cuda"),
        ({"accelerator": "cpu"}, 1, "cpu"),
        ({"accelerator": "gpu"}, 1, "cuda"),
        ({"devices": 2}, 0, "cpu"),
        ({"devices": 2}, 2, "cuda"),
        ({"devices": 8, "accelerator": "cpu"}, 1, "cpu"),
    ],
    ids=str,
)
def test_a_trial_is_trained_on_gpus_where_there_are_some(keys, gpus, expected):
    assert machine.accelerator(config(**keys).trainer, gpus) == expected


@pytest.mark.parametrize(
    ("keys", "gpus", "messages"),
    [
        (
            {"precision": "16-mixed"},
            0,
            ["trainer.precision = 16-mixed: needs a GPU, but torch finds none here; choose bf16-mixed or 32-true"],
        ),
        (
            {"accelerator": "gpu", "precision": "16-mixed"},
            0,
            ["trainer.accelerator = gpu: needs a GPU", "trainer.precision = 16-mixed: needs a GPU"],
        ),
        ({"devices": 8}, 2, ["trainer.devices = 8: must be at most the number of GPUs that torch finds here, 2"]),
        ({"devices": 2, "accelerator": "gpu"}, 1, ["trainer.devices = 2: must be at most", "accelerator=cpu"]),
    ],
    ids=str,
)
def test_what_the_machine_cannot_do_is_refused(keys, gpus, messages):
    with pytest.raises(InputError) as refused:
        machine.accelerator(config(**keys).trainer, gpus)
    for message in messages:
        assert message in str(refused.value)


def test_the_paper_s_bleu_needs_its_package(monkeypatch):
    asked, others = config(tokenised_bleu=True).trainer, config().trainer
    assert machine.accelerator(asked, 0) == "cpu"
    monkeypatch.setitem(sys.modules, "sacremoses", None)  # as where it is not installed
    assert machine.accelerator(others, 0) == "cpu"
    with pytest.raises(InputError, match=r"trainer\.tokenised_bleu = True: needs the package sacremoses.*\[wmt\]"):
        machine.accelerator(asked, 0)


ACCELERATORS, STRATEGIES = ["auto", "cpu", "gpu"], ["auto", "ddp", "ddp_find_unused_parameters_true", "fsdp2"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-master", "16-mixed"])
def test_lightning_trains_as_the_config_says_or_the_config_is_refused(precision):
    """It would rather take another precision, with a warning, which here is an error."""
    trained = 0
    for accelerator, strategy, devices in itertools.product(ACCELERATORS, STRATEGIES, [1, 2]):
        try:
            one = config(precision=precision, accelerator=accelerator, strategy=strategy, devices=devices)
            chosen = fit.accelerator(one)
        except InputError:
            continue
        trainer = fit.build_trainer(one, logger=False, callbacks=[])
        assert (trainer.precision, trainer.world_size) == (precision, devices)
        assert isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator) == (chosen == "cuda")
        trained += 1
    assert trained or (precision == "16-mixed" and not torch.cuda.is_available())


def test_fp32_is_fp32_on_a_gpu_too(monkeypatch):
    """By default torch rounds what enters convolutions and LSTMs there to 10 bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    fit.start_libraries()
    assert not torch.backends.cudnn.allow_tf32


def test_more_compiled_products_are_kept_than_onednn_keeps_by_default():
    """It would compile the first of 1,200 shapes anew."""
    script = """
import torch
from transformer_pl.training import fit
fit.start_libraries()
for rows in [*range(1, 1201), 1]:
    torch.zeros(rows, 8).to_mkldnn()
"""
    variables = {**os.environ, "ONEDNN_VERBOSE": "profile_create"}
    variables.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
    run = subprocess.run([sys.executable, "-c", script], env=variables, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    created = [line for line in run.stdout.splitlines() if ",create:" in line]
    assert len(created) == 1201
    assert "create:cache_hit" in created[-1]


def test_a_chosen_number_of_compiled_products_stays(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    keep_compiled_products()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "256"


def test_what_is_finished_needs_no_gpu(tmp_path):
    """It may have been trained elsewhere; only what is missing is refused."""
    keys = {"trainer.precision": "16-mixed"}
    words = ["sweep", "sweeps/table3_A.yaml", "--plan", "--seeds=1", "--set", "trainer.precision=16-mixed"]
    words += ["--runs", tmp_path]
    trials = [
        one.trial
        for one in plan_trials(read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"], sets=keys), tmp_path)
    ]
    result = a_result()
    for trial in trials[1:]:
        trial.folder.mkdir(parents=True)
        (trial.folder / "result.json").write_text(json.dumps(result))
    refused = command(*words, CUDA_VISIBLE_DEVICES="")
    assert refused.returncode == 2 and "trainer.precision = 16-mixed: needs a GPU" in refused.stderr
    trials[0].folder.mkdir()
    (trials[0].folder / "result.json").write_text(json.dumps(result))
    planned = command(*words, CUDA_VISIBLE_DEVICES="")
    assert planned.returncode == 0 and "0 to train" in planned.stdout, planned.stderr


@pytest.mark.parametrize("program", ["grid", "grid --plan", "grid --retune optim.lr_scale", "search --plan", "search"])
def test_a_missing_gpu_is_one_mistake_of_the_input_and_starts_nothing(tmp_path, monkeypatch, capsys, program):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    kind, *options = program.split()
    file = ROOT / "sweeps" / {"grid": "table3_A.yaml", "search": "search_size.yaml"}[kind]
    wanted = ["--set", "trainer.devices=8", "trainer.accelerator=gpu"]
    with pytest.raises(InputError) as refused:
        sweep.main([str(file), *options, f"--runs={tmp_path / 'runs'}", *wanted])
    assert refused.value.messages == (
        "trainer.accelerator = gpu: needs a GPU, but torch finds none here; choose auto or cpu",
    )
    assert not (tmp_path / "runs").exists() and "at a time" not in capsys.readouterr().out


def test_train_refuses_a_missing_gpu_before_the_text_is_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if torch.cuda.is_available():
        pytest.skip("torch has counted the GPUs of this process already")
    with pytest.raises(InputError, match=r"trainer\.accelerator = gpu: needs a GPU"):
        tiny_trials.train(tmp_path / "runs", {"trainer.devices": 8, "trainer.accelerator": "gpu"})
    assert not (tmp_path / "runs" / "data").exists()


def test_several_nodes_need_a_launcher_without_which_they_would_wait_for_each_other(tmp_path, monkeypatch):
    for name in machine.LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("NODE_RANK", "OMPI_COMM_WORLD_SIZE"):  # their ranks are not known when the command begins
        monkeypatch.setenv(name, "1")
    for keys in ({"accelerator": "cpu"}, {}):
        with pytest.raises(InputError, match=r"trainer\.num_nodes = 2: needs a launcher .* such as srun or torchrun"):
            machine.accelerator(config(num_nodes=2, **keys).trainer, 0)
    with pytest.raises(InputError, match="needs a launcher"):
        tiny_trials.train(tmp_path / "runs", {"trainer.num_nodes": 2})
    assert not (tmp_path / "runs" / "data").exists()
    for name in machine.LAUNCHER_VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert machine.accelerator(config(num_nodes=2).trainer, 0) == "cpu"
