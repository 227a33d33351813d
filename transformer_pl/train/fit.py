"""Trains and tests a trial: `fit_and_test` shows the steps, and what they need of Lightning and torch follows."""

import logging
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import lightning.pytorch  # sets its logger's level when it is imported, so before `start_libraries`
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from transformer_pl.config import Callback, Config
from transformer_pl.config.components import build
from transformer_pl.data.datamodule import DataModule
from transformer_pl.data.prepared import Prepared
from transformer_pl.model.kernels import set_up_gpu
from transformer_pl.runtime import machine
from transformer_pl.runtime.environment import RANKS_OF
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import plain
from transformer_pl.train import devices
from transformer_pl.train.checkpoint import CheckpointFiles, Checkpoints, RandomNumbers
from transformer_pl.train.compiling import CompiledLayers
from transformer_pl.train.cuda_graphs import StepGraphs, why_no_graphs
from transformer_pl.train.evaluate import Evaluation, evaluate_trial
from transformer_pl.train.logger import LogTraining, TrialLogger
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.teacher import load_teachers
from transformer_pl.trials.result import Result
from transformer_pl.trials.runs_folder import finished_trials
from transformer_pl.trials.trial import METRICS, WEIGHTS, Trial


class Fitted(NamedTuple):
    """How a training ended."""

    steps: int  # fewer than the config's where a callback has stopped it early
    scored: int  # the step whose weights are scored: the last, or that of the best validation
    params: int  # the parameters of the trained model: a callback may have made layers share weights
    earlier_s: float  # seconds that earlier processes trained, before an interruption


def fit_and_test(trial: Trial, prepared: Prepared, logger: TrialLogger) -> tuple[Fitted, Evaluation | None]:
    """Train a model with Lightning and test it: data, module, callbacks, loggers, trainer; fit; test.

    Every process of a training calls this function, and only the first one tests: the others return None. It departs
    from Lightning's own ways in six points:

    - The whole training is one epoch. Steps end it, and steps say when a validation comes.
    - All ranks share one stream of global batches (`data/batches.py`), so that the number of devices does not change
      what is trained on. Lightning's distributed sampler is off.
    - `Checkpoints` saves in place of ModelCheckpoint, which saves at moments from which a training cannot be continued
      exactly. A signal also stops a training only after it has saved.
    - Metrics go to the loggers by `TransformerModule.log_now` and not by `self.log`, which adds the epoch and counts
      steps otherwise. Sums stay on the device until a line is logged.
    - `devices.join_world` decides which processes train together, not the variables that Lightning would read.
    - The test is `evaluate_trial` and not `trainer.test`. It loads the saved weights, which may be averaged, in float32
      on one device, and translates both sets, as every later command does with a trained model.

    Raises Diverged, Stopped, or an InputError for a callback that changes weights which are then not scored.
    """
    config = trial.config

    # The data. The seed comes after it, and decides about all random numbers from here.
    data = DataModule(config, prepared)
    L.seed_everything(config.seed, verbose=False)

    # The module
    module = TransformerModule(config, len(prepared.tokenizer), load_teachers(config, trial.runs, prepared))
    if config.trainer.compile == "on":  # `auto` is off as long as no GPU has shown that the two train the same
        compile_steps(module)

    # The callbacks. A ModelCheckpoint of the user's writes to `best`. Our checkpoints come last, as they hold the state
    # of the other callbacks.
    callbacks = [_built(callback, trial.folder / "best") for callback in config.trainer.callbacks]
    minutes = config.trainer.checkpoint_minutes
    folder, decode = trial.folder / "checkpoints", config.decode
    checkpoints = Checkpoints(folder, decode.average, minutes, trial.lock.check, decode.select)
    callbacks.append(checkpoints)

    # The loggers and the trainer
    trainer = build_trainer(config, [logger, *logger.others], callbacks)

    # Fit, from the last checkpoint if there is one
    checkpoint, step = checkpoints.newest()
    os.environ[RANKS_OF] = trial.id  # for the processes that Lightning starts
    logger.start(step)
    logger.trainer = trainer
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
        weights = module.weights()
    finally:
        if torch.distributed.is_initialized():  # else gloo's threads may abort the process as it ends (pytorch 190489)
            torch.distributed.destroy_process_group()
    params = sum(weight.numel() for weight in module.model.parameters())
    steps = trainer.global_step
    fitted = Fitted(steps, checkpoints.best or steps, params, checkpoints.earlier_s)
    if not trainer.is_global_zero:
        return fitted, None

    # Test
    trial.save_weights(checkpoints.scored(steps, weights))
    return fitted, evaluate_trial(config, trial, prepared, fitted.scored)


def _built(written: Callback, folder: Path) -> L.Callback:
    """The callback of a config. One that says `in_identity: false` may not stop the training.

    Otherwise a training that ended early would be taken for the result of a config without the callback.
    """
    callback = build(written, dirpath=str(folder))

    def watched(hook: Callable[..., Any], trainer: L.Trainer, *arguments: Any, **options: Any) -> Any:
        before, returned = trainer.should_stop, hook(trainer, *arguments, **options)
        if trainer.should_stop and not before:
            rule = f"must only watch, as in_identity: false says, but stops the training at step {trainer.global_step}"
            raise InputError(f"trainer.callbacks = {written.path}: {rule}; leave in_identity out")
        return returned

    for name in () if written.in_identity else dir(L.Callback):
        if name.startswith("on_"):
            setattr(callback, name, partial(watched, getattr(callback, name)))
    return callback


def build_trainer(config: Config, loggers: list[Logger], callbacks: list[L.Callback]) -> L.Trainer:
    """Lightning's trainer for a config. It also logs the training.

    It tells Lightning what has started the processes, as `devices.join_world` found out. Under SLURM, Lightning would
    requeue the job by itself, with a checkpoint in the working folder, so this is off.
    """
    plugins: list[Any] = [LightningEnvironment()]
    if devices.TORCHRUN in os.environ:
        plugins = [TorchElasticEnvironment()]
    elif devices.STEP in os.environ:
        plugins = [SLURMEnvironment(auto_requeue=False)]
    precision = config.trainer.precision
    strategy: str | Strategy = config.trainer.strategy
    if strategy == "fsdp2":
        ranks = config.trainer.devices * config.trainer.num_nodes
        strategy = ModelParallelStrategy(ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)
    trainer = L.Trainer(
        plugins=[*plugins, CheckpointFiles()],
        accelerator=devices.accelerator(config.trainer, torch.cuda.device_count()),
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        strategy=strategy,
        precision=None if precision == "bf16-master" else precision,  # which the module computes itself
        max_steps=config.steps,
        accumulate_grad_batches=config.trainer.accumulate,
        val_check_interval=config.trainer.val_every * config.trainer.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        inference_mode=False,  # a table that a component extends in a validation must serve training, too
        logger=loggers,
        callbacks=[RandomNumbers(), LogTraining(), *callbacks],
        use_distributed_sampler=False,
        log_every_n_steps=config.trainer.log_every,  # for callbacks; the module decides when it logs
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        enable_model_summary=False,
    )
    # Lightning's processes would ask each other about SIGTERM at each part of a batch, which waits for their GPUs.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


def trained_elsewhere(trial: Trial) -> tuple[Trial, Result] | None:
    """The finished trial whose weights this one can use, because the two differ in decoding alone, and its result.

    None where there is no such trial whose files can be read, where this one has begun to train, or where it is to be
    trained again.
    """
    if trial.rerun or (trial.folder / "checkpoints").exists():
        return None
    for other, result in finished_trials(trial.runs):
        if result.weights_id == trial.identity.weights and result.id != trial.id and other.is_whole():
            return other, result
    return None


def reuse_weights(trial: Trial, earlier: Trial, result: Result, logger: TrialLogger) -> Fitted:
    """Take over the weights and metrics of the trial that `trained_elsewhere` has found, in place of a training."""
    print(plain(f"weights: those of {earlier.folder}, which differs only in decoding"), flush=True)
    trial.link(earlier.folder, WEIGHTS, METRICS)
    logger.start(result.steps)
    return Fitted(result.steps, result.scored_step, result.params, 0.0)


def on_gpu(config: Config) -> bool:
    """Whether a trial is trained on GPUs. Raises an InputError where this machine cannot do as its config says."""
    return devices.accelerator(config.trainer, torch.cuda.device_count()) == "cuda"


def gpu_names(config: Config) -> list[str]:
    """The names of the GPUs of this machine that a trial is trained on; none where that is the CPU."""
    count = config.trainer.devices if on_gpu(config) else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


def compile_steps(module: TransformerModule) -> None:
    """Compile layers and loss. On a GPU, also replay steps as CUDA graphs, or print why not."""
    is_on_gpu = on_gpu(module.config)
    module.compiled = CompiledLayers(module, is_on_gpu)
    if is_on_gpu:
        if why := why_no_graphs(module.config, module.model, module.loss):
            print(plain(f"no CUDA graphs: {why}"), flush=True)
        else:
            module.passes = StepGraphs(module)


def use_threads(trial: Trial) -> int:
    """Set torch's number of threads to the trial's, and return it."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")  # torch has read it only if this process was not forked
    cores = min(torch.get_num_threads(), len(machine.cpu_cores()))
    share = (chosen.isdecimal() and int(chosen)) or max(1, cores // trial.config.trainer.devices)
    threads = trial.threads(share)
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # without it Lightning chooses a number for the processes it starts
    return threads


def start_libraries() -> None:
    """Set up torch and Lightning: float32 is computed as such, memory and compiled code are kept, noise is silenced."""
    set_up_gpu()
    machine.keep_freed_memory()
    # oneDNN compiles a product of bfloat16 matrices for each shape. A training at scale multi30k has 3,000 shapes, and
    # by default oneDNN keeps 1,024 of them. With all of them a training of base takes 2.7 GB and not 2.3.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    torch.set_flush_denormal(True)  # numbers below 1e-38 make a product of matrices up to 25 times as slow
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    messages = (
        ".*WeightAveraging callback with a model that overrides.*",
        ".*LeafSpec.*",
        ".*srun.*",
        ".*does not have many workers.*",
        ".*GPU available but not used.*",
        ".*smaller than the logging interval.*",
        ".*returned a view tensor.*",  # the code changes no keys or values in place
        ".*Synchronization debug mode.*",  # it finds what cannot be captured
        ".*no current CUDA context.*",  # torch sets it where a backward pass begins with a product of matrices
    )
    for message in messages:
        warnings.filterwarnings("ignore", message)
