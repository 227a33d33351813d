"""Trains and tests a trial: `fit_and_test` shows the steps, and what they need of Lightning and torch follows."""

import logging
import os
import warnings
from contextlib import nullcontext
from typing import Any, NamedTuple

import lightning as L
import lightning.pytorch  # sets its logger's level when it is imported, so before `start_libraries`
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from transformer_pl.config import Config
from transformer_pl.config.components import build, own_parts
from transformer_pl.data.batches import mean_batch
from transformer_pl.data.datamodule import DataModule
from transformer_pl.data.prepared import Prepared
from transformer_pl.model.kernels import set_up_gpu
from transformer_pl.runtime import machine
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.environment import RANKS_OF, WEIGHTS_OF
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import plain
from transformer_pl.train import devices
from transformer_pl.train.checkpoint import CheckpointFiles, Checkpoints, RandomNumbers
from transformer_pl.train.compiling import compile_layers
from transformer_pl.train.counting import CountedPasses, is_counted
from transformer_pl.train.evaluate import Evaluation, evaluate_trial
from transformer_pl.train.logger import LogTraining, TrialLogger
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.random_numbers import same_random_numbers
from transformer_pl.train.start import load_start
from transformer_pl.train.teacher import load_teachers
from transformer_pl.train.watching import watch
from transformer_pl.trials.flops import Computed, Sentences, trained_flops
from transformer_pl.trials.identity import identity_callbacks
from transformer_pl.trials.result import Result
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_folder import METRICS, STATE, WEIGHTS, TrialFolder


class Fitted(NamedTuple):
    """How a training ended."""

    steps: int  # fewer than the config's where a callback has stopped it early
    scored: int  # the step whose weights are scored: the last, or that of the best validation
    params: int  # the parameters of the trained model: a callback may have made layers share weights
    earlier_s: float  # seconds that earlier processes trained, before an interruption
    flops: float | None  # None: not known
    passes: float | None  # that a batch has cost
    weights_of: str | None = None  # the id of another trial that has trained the weights; None: this one


def fit_and_test(trial: Trial, prepared: Prepared, logger: TrialLogger) -> tuple[Fitted, Evaluation] | None:
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

    Raises Diverged, Stopped, or an InputError for a callback that changes weights which are then not scored, or that
    only watches but ends the training or changes it.
    """
    config, folder, decode = trial.config, trial.folder, trial.config.decode

    # The data. The seed comes after it, and decides about all random numbers from here.
    data = DataModule(config, prepared)
    L.seed_everything(config.seed, verbose=False)

    # The module
    module = TransformerModule(config, len(prepared.tokenizer), load_teachers(config, trial.runs, prepared))
    if trial.start:
        load_start(module.model, trial, value_digest(prepared.tokenizer.vocabulary()))
    if config.trainer.compile == "on":
        compile_layers(module.model)

    # The callbacks. A ModelCheckpoint of the user's writes to `best`. Our checkpoints come last, as they hold the state
    # of the other callbacks.
    own = _callbacks(trial)
    minutes = config.trainer.checkpoint_minutes
    checkpoints = Checkpoints(folder.checkpoints, decode.average, minutes, folder.lock.check, decode.select)
    counted = CountedPasses() if is_counted(config) else None

    # The loggers and the trainer
    trainer = build_trainer(config, [logger, *logger.others], [*own, *filter(None, [counted]), checkpoints])
    watch(trainer, "trainer.loggers", zip(config.trainer.loggers, logger.others, strict=True))
    watch(trainer, "trainer.callbacks", zip(config.trainer.callbacks, own, strict=True))

    # Fit, from the last checkpoint if there is one, or else from the last state of the start
    checkpoint, step = checkpoints.newest(trial.continued.path / STATE if trial.continued else None)
    os.environ[RANKS_OF] = trial.id  # for the processes that Lightning starts
    logger.start(step)
    logger.trainer = trainer
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
        weights, computed = module.weights(), counted.computed() if counted else None
    finally:
        if torch.distributed.is_initialized():  # else gloo's threads may abort the process as it ends (pytorch 190489)
            torch.distributed.destroy_process_group()
    steps = trainer.global_step
    if steps < config.steps and not identity_callbacks(config):
        rule = f"must only watch, as in_identity: false says, but the training ended at step {steps} of {config.steps}"
        raise InputError(f"trainer.callbacks: {rule}; leave in_identity out")
    if not trainer.is_global_zero:
        return None

    # Test
    folder.save_weights(checkpoints.scored(steps, weights))
    params = sum(weight.numel() for weight in module.model.parameters())
    flops = _flops(config, prepared, steps - trial.begins_after(), computed)
    passes = computed.passes if computed else 1.0
    fitted = Fitted(steps, checkpoints.best or steps, params, checkpoints.earlier_s, flops, passes)
    return fitted, evaluate_trial(config, folder, prepared, fitted.scored)


def _callbacks(trial: Trial) -> list[L.Callback]:
    """The callbacks of `trainer.callbacks`. One that only watches changes no random number of what comes after it."""
    built = []
    for callback in trial.config.trainer.callbacks:
        with nullcontext() if callback.in_identity else same_random_numbers():
            built.append(build(callback, dirpath=str(trial.folder.path / "best")))
    return built


def _flops(config: Config, prepared: Prepared, steps: int, computed: Computed | None) -> float | None:
    """The FLOPs of a training of so many steps. computed: what was counted, if it was."""
    usual = None
    if "data.batches" in own_parts(config):
        usual = Sentences(*(steps * count for count in mean_batch(prepared.split("train"), config)))
    return trained_flops(config, prepared.mean_lengths, steps, computed, usual)


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


def trained_elsewhere(trial: Trial) -> tuple[TrialFolder, Result] | None:
    """The finished trial whose weights this one can use, because the two differ in evaluation alone, and its result.

    None where there is no such trial whose files can be read, where this one has begun to train, where it is to be
    trained again, or keeps its last state and the other has not. A sweep that started this process has looked for them.
    """
    if not trial.can_share:
        return None
    if (names := os.environ.get(WEIGHTS_OF)) is None:
        others = RunsFolder(trial.runs).with_weights(trial.identity.weights)
    else:
        others = [TrialFolder(trial.runs / "trials" / name) for name in names.split("/") if name]
    for other in others:
        result = other.result()
        is_same = result and other.weights_id == trial.identity.weights and result.id != trial.id
        if result and is_same and trial.can_use(other) and other.is_whole():
            return other, result
    return None


def reuse_weights(trial: Trial, earlier: TrialFolder, result: Result, logger: TrialLogger) -> Fitted:
    """Take over the weights and metrics of the trial that `trained_elsewhere` has found, in place of a training."""
    print(plain(f"weights: those of {earlier}, which differs only in evaluation"), flush=True)
    trial.folder.link(earlier, WEIGHTS, METRICS, *([STATE] if trial.keeps_state else []))
    logger.start(result.steps)
    passes = None if is_counted(trial.config) else 1.0
    return Fitted(result.steps, result.scored_step, result.params, 0.0, result.flops, passes, result.id)


def on_gpu(config: Config) -> bool:
    """Whether a trial is trained on GPUs. Raises an InputError where this machine cannot do as its config says."""
    return devices.accelerator(config.trainer, torch.cuda.device_count()) == "cuda"


def gpu_names(config: Config) -> list[str]:
    """The names of the GPUs of this machine that a trial is trained on; none where that is the CPU."""
    count = config.trainer.devices if on_gpu(config) else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


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
        ".*no current CUDA context.*",  # torch sets it where a backward pass begins with a product of matrices
    )
    for message in messages:
        warnings.filterwarnings("ignore", message)
