"""Train a trial to the end of its schedule and keep its weights; or reuse those of a trial that trained the same."""

import logging
import os
import warnings
from typing import Any, NamedTuple

import lightning as L
import lightning.pytorch  # sets its logger's level when it is imported, so before `start_libraries`
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from transformer_pl.config import Config
from transformer_pl.config.components import build
from transformer_pl.data.datamodule import DataModule
from transformer_pl.data.prepared import Prepared
from transformer_pl.model.kernels import set_up_gpu
from transformer_pl.runtime import machine
from transformer_pl.runtime.environment import RANKS_OF
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import plain
from transformer_pl.train import devices
from transformer_pl.train.checkpoint import CheckpointFiles, Checkpoints
from transformer_pl.train.logger import TrialLogger
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.precision import MasterWeights
from transformer_pl.trials.runs_folder import FinishedTrial, finished_trials
from transformer_pl.trials.trial import WEIGHTS, Trial
from transformer_pl.trials.trial_run import TrialRun


class Fitted(NamedTuple):
    """How a training ended."""

    steps: int  # fewer than the config's where a callback has stopped it early
    params: int  # of the trained model: a callback may have made layers share weights
    earlier_s: float  # seconds that earlier processes trained, before an interruption


def fit(run: TrialRun, prepared: Prepared, logger: TrialLogger) -> Fitted:
    """Train to the end of the schedule, from the last checkpoint if there is one, and save the weights.

    Opens the logger's file. Raises Diverged or Stopped.
    """
    config = run.config
    L.seed_everything(config.seed, verbose=False)
    module = TransformerModule(config, len(prepared.tokenizer))
    if compiles(config):
        module.compile_model()
    data = DataModule(config, prepared)
    folder, minutes = run.trial.folder / "checkpoints", config.trainer.checkpoint_minutes
    checkpoints = Checkpoints(folder, config.decode.average, minutes, run.trial.lock.check)
    kept = str(run.trial.folder / "best")  # where a ModelCheckpoint writes
    callbacks: list[L.Callback] = [build(one, dirpath=kept) for one in config.trainer.callbacks]
    # The checkpoints come last: they hold the state of the other callbacks.
    trainer = build_trainer(config, [logger, *logger.others], [*callbacks, checkpoints])
    newest, step = checkpoints.newest()
    os.environ[RANKS_OF] = run.identity.trial  # for the processes that Lightning starts
    logger.start(step)
    logger.trainer = trainer
    try:
        trainer.fit(module, data, ckpt_path=newest, weights_only=True)
        weights = module.weights()
    finally:
        if torch.distributed.is_initialized():  # else gloo's threads may abort the process as it ends (pytorch 190489)
            torch.distributed.destroy_process_group()
    steps, averaged = trainer.global_step, checkpoints.averaged(trainer.global_step)
    if trainer.is_global_zero:
        if averaged and not _same(weights, checkpoints.kept(steps)):
            why = "which scores the mean of checkpoints from before; set decode.average=1"
            rule = f"must not change the weights at the end of the training with decode.average = {checkpoints.average}"
            raise InputError(f"trainer.callbacks: {rule}, {why}")
        run.trial.save_weights(averaged or weights)
    return Fitted(steps, sum(weight.numel() for weight in module.model.parameters()), checkpoints.earlier_s)


def _same(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value.cpu(), others[name]) for name, value in weights.items())


def build_trainer(config: Config, loggers: list[Logger], callbacks: list[L.Callback]) -> L.Trainer:
    """Lightning's trainer for a config.

    Who has started the processes is what `devices.join_world` found. Lightning would believe other variables, too; and
    under SLURM it would requeue the job itself, with a checkpoint in the working folder.
    """
    plugins: list[Any] = [LightningEnvironment()]
    if devices.TORCHRUN in os.environ:
        plugins = [TorchElasticEnvironment()]
    elif devices.STEP in os.environ:
        plugins = [SLURMEnvironment(auto_requeue=False)]
    precision = config.trainer.precision
    if precision == "bf16-master":
        plugins.append(MasterWeights())
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
        precision=None if precision == "bf16-master" else precision,
        max_steps=config.steps,
        accumulate_grad_batches=config.trainer.accumulate,
        val_check_interval=config.trainer.val_every * config.trainer.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        inference_mode=False,  # as in `evaluate`: a table that a component extends then must serve training, too
        logger=loggers,
        callbacks=callbacks,
        use_distributed_sampler=False,
        log_every_n_steps=config.trainer.log_every,  # for callbacks; the module decides when it logs
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),  # see train/checkpoint.py
        enable_progress_bar=any(isinstance(one, ProgressBar) for one in callbacks),
        enable_model_summary=False,
    )
    # Several processes would ask each other at each part of a batch whether SIGTERM has come, and wait for their GPUs.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


def trained_elsewhere(run: TrialRun, rerun: bool) -> FinishedTrial | None:
    """A finished trial that differs from this one only in decoding; None without one.

    None also where this one has begun to train, or is to be trained again.
    """
    if rerun or (run.trial.folder / "checkpoints").exists():
        return None
    for one in finished_trials(run.runs):
        same_weights = one.result.weights_id == run.identity.weights and one.result.id != run.identity.trial
        if same_weights and (one.trial.folder / WEIGHTS).exists():
            return one
    return None


def reuse_weights(run: TrialRun, earlier: FinishedTrial, logger: TrialLogger) -> Fitted:
    """Hard-link the weights of a trial that `trained_elsewhere` has found. Returns what `fit` returns."""
    print(plain(f"weights: those of {earlier.trial.folder}, which differs only in decoding"), flush=True)
    run.trial.link(earlier.trial.folder, WEIGHTS, "metrics.jsonl")
    logger.start(earlier.result.steps)
    return Fitted(earlier.result.steps, earlier.result.params, 0.0)


def on_gpu(config: Config) -> bool:
    """Whether a trial is trained on GPUs. Raises an InputError where this machine cannot do as its config says."""
    return devices.accelerator(config.trainer, torch.cuda.device_count()) == "cuda"


def gpu_names(config: Config) -> list[str]:
    """The names of the GPUs of this machine that a trial is trained on; none where that is the CPU."""
    count = config.trainer.devices if on_gpu(config) else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


def compiles(config: Config) -> bool:
    """Whether model and loss are compiled for training. `auto`: on a GPU, but not with fsdp2 or bf16-master."""
    if config.trainer.compile == "auto":
        whole = config.trainer.strategy != "fsdp2" and config.trainer.precision != "bf16-master"
        return whole and on_gpu(config)
    return config.trainer.compile == "on"


def use_threads(config: Config, trial: Trial) -> int:
    """Set torch's number of threads to the trial's, and return it."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")  # torch has read it only if this process was not forked
    cores = min(torch.get_num_threads(), len(machine.cpu_cores()))
    share = (chosen.isdecimal() and int(chosen)) or max(1, cores // config.trainer.devices)
    threads = trial.threads(config.trainer.threads, share)
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # without it Lightning chooses a number for the processes it starts
    return threads


def start_libraries() -> None:
    """Set what torch and Lightning do by default: fp32 stays fp32, memory and code are kept, and noise is silenced."""
    set_up_gpu()
    machine.keep_freed_memory()
    # oneDNN compiles a product of bfloat16 matrices for each shape. A training at scale multi30k has 3,000 shapes, and
    # by default oneDNN keeps 1,024 of them. With all of them a training of base takes 2.7 GB and not 2.3.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    torch.set_flush_denormal(True)  # numbers below 1e-38 make a product of matrices up to 25 times as slow
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    messages = (
        *(
            ".*WeightAveraging callback with a model that overrides.*",
            ".*LeafSpec.*",
            ".*srun.*",
            ".*does not have many workers.*",
            ".*GPU available but not used.*",
        ),
        ".*smaller than the logging interval.*",
        ".*returned a view tensor.*",  # the code changes no keys or values in place
        ".*no current CUDA context.*",  # torch sets it where a backward pass begins with a product of matrices
    )
    for message in messages:
        warnings.filterwarnings("ignore", message)
