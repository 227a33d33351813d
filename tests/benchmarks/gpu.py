"""Training on a GPU: what the card can do at most; rates, memory and launches of four models; trials that share it.

    python tests/benchmarks/gpu.py [--out runs/gpu] [--models demo,multi30k,base,big] [--steps 20] [--minutes 8]

Needs no network and no dataset: the tokens are random, of the lengths that the scales have. Writes gpu.json and gpu.md.
Each model is trained by Lightning with the settings of a trial: as it is ("eager"), with compiled layers, and in
`bf16-master`; base and big come first, and none may take more than a third of the time that is left. Then several
processes train the same model at once, base first. A measurement that fails gets a row, too, which names the error.
Without a GPU demo alone is trained, on the CPU.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from transformer_pl.config import Config, sizes
from transformer_pl.config.levels import Level, resolve, scale_level
from transformer_pl.data.batches import Batch, TrainStream
from transformer_pl.data.datamodule import DataModule
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.environment import describe_environment
from transformer_pl.runtime.files import write_atomically, write_json
from transformer_pl.runtime.machine import cpu_cores, has_bfloat16
from transformer_pl.train import fit
from transformer_pl.train.compiling import compile_layers
from transformer_pl.train.module import TransformerModule
from transformer_pl.trials.flops import forward_costs

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BIG = {"model.d_model": 1024, "model.d_ff": 4096, "model.h": 16, "model.p_drop": 0.3}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {  # the scale, what differs, and the mean length of a sentence
    "base": ("wmt14", {}, 28),
    "big": ("wmt14", BIG, 28),
    "demo": ("demo", {}, 11),
    "multi30k": ("multi30k", {}, 14),
}
NEVER = {"trainer.val_every": 10**6, "trainer.log_every": 10**6}
AT_ONCE = {"base": (1, 4), "multi30k": (1, 4, 16), "demo": (1, 4, 16)} if GPU else {"demo": (2,)}  # that share a card
SHARE = 1 / 3  # of the time that is left, for the next model at most
ACCUMULATE = (1, 2, 4, 8)  # parts of a batch, more where memory is not enough


# ---------------------------------------------------------------------------------------------------------------------
# What is trained


def config_of(name: str, **keys: Any) -> Config:
    """The config of a model, in float16 where its scale asks for bfloat16 and the GPU does not have it."""
    scale, different, _ = MODELS[name]
    levels = [scale_level(scale), Level(name, different | NEVER | keys)]
    if GPU and not has_bfloat16() and resolve(levels).trainer.precision == "bf16-mixed":
        levels.append(Level("older GPU", {"trainer.precision": "16-mixed"}))
    return resolve(levels)


class Generated(L.LightningDataModule):
    """Random sentences of lengths around the mean, for about so many batches, in the stream that a trial has."""

    on_before_batch_transfer = DataModule.on_before_batch_transfer

    def __init__(self, config: Config, mean: int, batches: int):
        super().__init__()
        self.config, rng = config, np.random.default_rng(1)
        count = batches * config.data.batch_tokens // mean
        lengths = np.clip(rng.normal(mean, mean / 3, count), 3, 3 * mean).astype(int)
        sides = (lengths, np.clip(lengths + rng.integers(-2, 3, count), 3, None))
        self.split = Split(*(Tokens.of(rng.integers(4, config.data.vocab_size, one.sum()), one) for one in sides))

    def train_dataloader(self) -> TrainStream:
        return TrainStream(self.split, JointBPE(), self.config)

    @property
    def batches(self) -> int:
        """The batches of an epoch."""
        return len(self.train_dataloader().epoch_batches(self.split, epoch=0))


class Timer(L.Callback):
    """Measures the second epoch of a training, when layers are compiled, and counts the kernels of one more step.

    steps: of an epoch. meet: called before the measurement.
    """

    def __init__(self, steps: int, meet: Any = lambda: None):
        self.first, self.last, self.meet, self.made = steps, 2 * steps, meet, dict[str, Any]()
        self.started, self.tokens = time.perf_counter(), 0

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        if self.first <= trainer.global_step < self.last and not batch_idx % trainer.accumulate_grad_batches:
            self.tokens += batch.tokens

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if trainer.global_step == self.first:
            wait()
            self.meet()
            if GPU:
                torch.cuda.reset_peak_memory_stats()
            self.began = time.perf_counter()
        if trainer.global_step == self.last:
            host = time.perf_counter() - self.began
            wait()
            seconds, steps = time.perf_counter() - self.began, self.last - self.first
            self.made |= {"first_s": self.began - self.started, "tokens_per_s": self.tokens / seconds}
            self.made |= {"ms": 1e3 * seconds / steps, "host_ms": 1e3 * host / steps}
            if GPU:
                self.made["memory_GB"] = torch.cuda.max_memory_reserved() / 1e9
                self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                self.profiler.start()
        if trainer.global_step == self.last + 1 and GPU:
            wait()
            self.profiler.stop()
            kernels = [one for one in self.profiler.events() if one.device_type == torch.autograd.DeviceType.CUDA]
            self.made |= {"kernels": len(kernels), "gpu_ms": sum(one.device_time for one in kernels) / 1e3}


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def trained(name: str, steps: int, meet: Any = lambda: None, compiled: bool = False, **keys: Any) -> dict[str, Any]:
    """Rates of a training, with the batch in as few parts as memory allows."""
    mean = MODELS[name][2]
    epoch = Generated(config_of(name), mean, steps).batches
    for accumulate in ACCUMULATE:
        config = config_of(name, **keys, **{"optim.max_steps": 2 * epoch + 1, "trainer.accumulate": accumulate})
        torch._dynamo.reset()
        gc.collect()  # what the last try has left
        torch.cuda.empty_cache()
        torch.manual_seed(1)
        module, timer = TransformerModule(config, config.data.vocab_size), Timer(epoch, meet)
        if compiled:
            compile_layers(module.model)
        with suppress(torch.OutOfMemoryError):
            fit.build_trainer(config, [], [timer]).fit(module, Generated(config, mean, steps))
            return {"precision": config.trainer.precision, "accumulate": accumulate, **timer.made}
        del module, timer
    raise torch.OutOfMemoryError(f"also with the batch in {ACCUMULATE[-1]} parts")


# ---------------------------------------------------------------------------------------------------------------------
# What the card can do


def rate(work: float, run: Any, seconds: float = 0.5) -> float:
    """The units of work per second that a function does in its fastest call."""
    best, ends = 0.0, time.perf_counter() + (seconds if GPU else 0.05)
    run()
    while not best or time.perf_counter() < ends:
        wait()
        began = time.perf_counter()
        run()
        wait()
        best = max(best, work / (time.perf_counter() - began))
    return best


def ceilings() -> dict[str, float]:
    """The highest rates of this device, of memory traffic and of matrix products."""
    n, size = (8192, 2**28) if GPU else (512, 2**22)
    source, target = (torch.randn(size, device=DEVICE) for _ in range(2))
    found = {"copy GB/s": rate(2 * source.nbytes / 1e9, lambda: target.copy_(source))}
    half = torch.bfloat16 if has_bfloat16() else torch.float16
    for kind, dtype in (("fp32", torch.float32), ("half", half)):
        A = torch.randn(n, n, device=DEVICE, dtype=dtype)  # a card multiplies ones faster than it does real numbers
        found[f"products TFLOP/s {kind}"] = rate(2 * n**3 / 1e12, lambda A=A: A @ A)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Several processes on one card


def shared(name: str, trials: int, steps: int, ends: float) -> dict[str, Any]:
    """The rate of so many trainings at once, each with its own share of the cores, as `--per-device` gives them."""
    cores, share = cpu_cores(), max(1, len(cpu_cores()) // trials)
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--one={name}", f"--steps={steps}", f"--trials={trials}", f"--out={folder}"]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "env": os.environ | {"OMP_NUM_THREADS": str(share)}}
        processes = [subprocess.Popen([sys.executable, __file__, *words], **options) for _ in range(trials)]
        for i, process in enumerate(processes):
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, [cores[(i * share + j) % len(cores)] for j in range(share)])
        try:
            said = [process.communicate(timeout=max(0.0, ends - time.monotonic()))[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a process of {trials} failed; its error is above")
    return {"tokens_per_s": sum(json.loads(one.splitlines()[-1])["tokens_per_s"] for one in said)}


def one_of_several(name: str, steps: int, trials: int, folder: Path) -> None:
    """Train and print the rates, which are measured once all processes have come so far."""

    def meet() -> None:
        (folder / str(os.getpid())).touch()
        ends = time.monotonic() + 100
        while len(list(folder.iterdir())) < trials:
            assert time.monotonic() < ends, "the other processes have not come"
            time.sleep(0.01)

    print(json.dumps(trained(name, steps, meet)), flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# The report


HOW: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compiled": True},
    "bf16-master": {"trainer.precision": "bf16-master"},
    "bf16-master, compiled": {"trainer.precision": "bf16-master", "compiled": True},
}


def measured(name: str, how: str, ends: float, run: Any) -> dict[str, Any]:
    """A row of the report."""
    row: dict[str, Any] = {"model": name, "how": how}
    try:
        assert time.monotonic() < ends, "not measured: the time was over (--minutes)"
        row |= run()
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    if "tokens_per_s" in row:
        length, config = MODELS[name][2], config_of(name)
        (cost,) = forward_costs([(sizes(config.model, config.data.vocab_size), 1, length, length)])
        row["TFLOP/s"] = 3 * cost.flops / length * row["tokens_per_s"] / 1e12
    return row


def trainings(name: str, steps: int, ends: float) -> Iterator[dict[str, Any]]:
    """The rows of one model."""
    for how, keys in HOW.items():
        large = name in ("base", "big")
        if ("compiled" in how and not GPU) or ("master" in how and not (large and has_bfloat16())):
            continue
        yield measured(name, how, ends, partial(trained, name, steps, **keys))


def in_a_process(name: str, steps: int, ends: float) -> Iterator[dict[str, Any]]:
    """The rows of one model, from a process that ends with the time, so that a fault costs the rest of them alone."""
    left = ends - time.monotonic()
    words = [f"--one={name}", f"--steps={steps}", f"--minutes={left / 60}"]
    with subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(max(0.0, left), process.kill)
        timer.start()
        for line in process.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)
        timer.cancel()
    if process.returncode:
        yield {"model": name, "how": "the rest", "error": f"its process has ended with {process.returncode}"}


def rows(models: list[str], steps: int, ends: float) -> Iterator[dict[str, Any]]:
    """The rows of the report, each as soon as it is measured."""
    real = models if GPU else [name for name in models if name == "demo"]
    for name in real:
        yield from in_a_process(name, steps, (1 - SHARE) * time.monotonic() + SHARE * ends)
    for name, levels in AT_ONCE.items():
        for trials in levels if name in real else ():
            yield measured(
                name, f"{trials} at once", ends, lambda name=name, trials=trials: shared(name, trials, steps, ends)
            )


def markdown(report: dict[str, Any]) -> str:
    """The report in Markdown."""
    most = report["ceilings"]
    lines = [f"{report['device']}, torch {report['packages']['torch']}, {report['cpu']}, {report['date']}", ""]
    lines += [f"- {name}: {value:,.1f}" for name, value in most.items()]
    lines += [f"- NVIDIA's MPS: {'on' if report['mps'] else 'off'}", ""]
    columns = {"precision": "", "accumulate": "", "tokens_per_s": ",.0f", "ms": ",.1f", "host_ms": ",.1f"}
    columns |= {"gpu_ms": ",.1f", "times eager": ".2f"}
    columns |= {"share of products": ".0%", "memory_GB": ".2f", "kernels": ",", "first_s": ",.0f", "error": ""}
    lines += [f"| model | how | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for row in report["rows"]:
        if "TFLOP/s" in row:
            kind = "fp32" if row.get("precision", report["precision"][row["model"]]) == "32-true" else "half"
            row = row | {"share of products": row["TFLOP/s"] / most[f"products TFLOP/s {kind}"]}
            before = next((one for one in report["rows"] if (one["model"], one["how"]) == (row["model"], "eager")), {})
            if "tokens_per_s" in before:
                row["times eager"] = row["tokens_per_s"] / before["tokens_per_s"]
        cells = [format(row[name], spec) if name in row else "" for name, spec in columns.items()]
        lines.append(f"| {row['model']} | {row['how']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the report (%(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="models, out of %(default)s")
    parser.add_argument("--steps", type=int, default=20 if GPU else 3, help="steps of each training (%(default)s)")
    parser.add_argument("--minutes", type=float, default=8, help="when to stop (%(default)s)")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    fit.start_libraries()
    warnings.filterwarnings("ignore", ".*no `val_dataloader`.*")  # of Lightning: nothing is validated here
    if options.one and not options.trials:
        for row in trainings(options.one, options.steps, ends):
            print(json.dumps(row), flush=True)
        return
    if options.one:
        one_of_several(options.one, options.steps, options.trials, options.out)
        return
    models = options.models.split(",")
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M"), "steps": options.steps, "rows": []}
    report |= {"device": torch.cuda.get_device_name() if GPU else "no GPU: a CPU"}
    report |= {"mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path("/tmp/nvidia-mps").exists()}
    report |= {"precision": {name: config_of(name).trainer.precision for name in models}}
    report |= describe_environment(["torch", "lightning", "triton"]) | {"ceilings": ceilings()}
    options.out.mkdir(parents=True, exist_ok=True)
    for row in rows(models, options.steps, ends):
        report["rows"].append(row)
        print(json.dumps(row), flush=True)
        write_json(options.out / "gpu.json", report)  # after each row, so that nothing is lost
        write_atomically(options.out / "gpu.md", markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
