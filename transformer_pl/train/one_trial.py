"""One trial from its dataset to its result: prepare, train, evaluate, and record how it ended."""

import sys
import time
import traceback
from contextlib import suppress
from shlex import join
from typing import Any

import yaml
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.config import Component, custom_components_by_key
from transformer_pl.config.component_sources import keep_sources
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.environment import code_state, describe_environment, project_version
from transformer_pl.runtime.errors import InputError, described
from transformer_pl.runtime.files import check_writable, why_unwritable, write_atomically, write_json
from transformer_pl.runtime.signals import Stopped, component_code
from transformer_pl.runtime.terminal import command_console, logged, plain, shown_stages
from transformer_pl.task import task_of
from transformer_pl.train import fit
from transformer_pl.train.divergence import Diverged
from transformer_pl.train.evaluate import Evaluation, evaluate_trial
from transformer_pl.train.logger import TrialLogger, trial_logger, user_loggers
from transformer_pl.trials.convergence import convergence, validation_losses
from transformer_pl.trials.flops import share_of_peak, training_costs
from transformer_pl.trials.lock import LockLost
from transformer_pl.trials.result import Checked, Result
from transformer_pl.trials.trial import Trial

PACKAGES = ("torch", "lightning", "wandb", "sacrebleu", "datasets", "sentencepiece", "numpy")


def train_trial(trial: Trial, checked: Checked) -> int | None:
    """Train and evaluate a trial, record how it ended, and return the exit code.

    checked: what the checks before it have found. Returns None if another process has ended the trial meanwhile.
    """
    fit.on_gpu(trial.config)  # or an InputError
    with shown_stages(command_console()) as on_progress:
        prepared = prepare(trial.config.data, trial.runs, trial.corpus, on_progress)
    fit.start_libraries()
    if getattr(rank_zero_only, "rank", 0):  # Lightning started this process to help rank 0, which does everything else
        return _help_to_train(trial, prepared)
    check_writable(trial.folder.path.parent)  # the dataset may have filled the disk
    with trial.folder.lock.hold():
        if not trial.needs_training():  # another process had it until now
            return None
        with logged(trial.folder.log):
            return _train_and_record(trial, prepared, checked)


def _help_to_train(trial: Trial, prepared: Prepared) -> int:
    """What a process does that is not rank 0: it trains along, unless rank 0 reuses the weights of another trial."""
    fit.use_threads(trial)
    if not fit.trained_elsewhere(trial):
        # Rank 0 reports how it ended; it would be killed if this process ended in error.
        with suppress(Stopped, Diverged):
            logger = TrialLogger(trial.folder.path, trial.config.steps, others=user_loggers(trial))
            fit.fit_and_test(trial, prepared, logger)
    return 0


def _train_and_record(trial: Trial, prepared: Prepared, checked: Checked) -> int:
    """Train and evaluate a trial that this process has the lock of, record how it ended, and return the exit code."""
    try:
        if not trial.folder.needs_training():  # it is trained again
            trial.folder.clear()
        trial.folder.set_status("running")
        with component_code():
            result = train_and_evaluate(trial, prepared, checked)
    except Stopped:
        with suppress(OSError):  # a full disk must not change the exit code
            trial.folder.set_status("stopped")
        raise
    except Diverged as error:
        trial.folder.set_status("diverged", step=error.step)
        print(plain(f"{trial.folder}: {error}; --rerun trains it again"))
        return 1
    except LockLost as error:  # another process records how the trial ends
        print(plain(f"error: {error}; the steps that this process has trained since then are dropped"), file=sys.stderr)
        return 1
    except Exception as error:
        reason = _why_failed(trial, error)
        with suppress(OSError):
            trial.folder.set_status("failed", why=reason)
        if isinstance(error, InputError):  # which the command prints
            raise
        print(plain("".join(traceback.format_exception(error))), file=sys.stderr, end="")
        print(plain(f"error: {reason}"), file=sys.stderr)
        return 1
    print("  ".join(f"{name} {value:.2f}" for name, value in result.metrics.items()), flush=True)
    print(plain(f"trial: {trial.folder}"))
    return 0


def _why_failed(trial: Trial, error: Exception) -> str:
    """Why a training has failed, and what may help."""
    reason = why_unwritable(trial.folder.path.parent) or described(error)  # a full disk has many symptoms
    if "out of memory" in reason:
        reason += f"; increase trainer.accumulate, now {trial.config.trainer.accumulate}, which splits the batch"
    if "CUDA error" in reason and trial.config.trainer.compile == "on":
        reason += "; trainer.compile=off trains without compiled layers"
    return reason


def train_and_evaluate(trial: Trial, prepared: Prepared, checked: Checked) -> Result:
    """Train a trial (see `fit_and_test`) or reuse weights, evaluate it, write and return its result."""
    started = time.perf_counter()
    _record_beginning(trial, prepared)
    earlier = fit.trained_elsewhere(trial)
    with trial_logger(trial) as (logger, wandb):
        if earlier:
            fitted = fit.reuse_weights(trial, *earlier, logger)
            evaluation = evaluate_trial(trial.config, trial.folder, prepared, fitted.scored)
        else:
            tested = fit.fit_and_test(trial, prepared, logger)
            assert tested  # this is the first rank
            fitted, evaluation = tested
        sample = task_of(trial.config.data).sample_metric
        lines = [line for line in trial.folder.metrics() if sample in line]
        if sampled := [line[sample] for line in lines if line["step"] <= fitted.scored]:
            evaluation.metrics[sample] = sampled[-1]
        logger.log_result(evaluation.metrics, fitted.steps)
        wandb.send(translations=evaluation.examples)
        seconds = fitted.earlier_s + time.perf_counter() - started
        result = _result(trial, prepared, fitted, evaluation, checked, seconds)
        trial.folder.set_status("done")  # before the result: from then on another process may have the trial
        trial.folder.finish(result, keep_state=trial.keeps_state and not earlier)
        wandb.send_summary(result)
    return result


def _result(
    trial: Trial, prepared: Prepared, fitted: fit.Fitted, evaluation: Evaluation, checked: Checked, wall_s: float
) -> Result:
    """The result of a trial. wall_s: the seconds of its training and evaluation."""
    config, steps, lines = trial.config, fitted.steps, trial.folder.metrics()
    [cost] = training_costs([(config, prepared.mean_lengths)])
    rates = [line["tokens_per_s"] for line in lines if "tokens_per_s" in line]
    rate = sum(rates) / len(rates) if rates else None
    share = rate and share_of_peak(config, cost, prepared.mean_lengths, rate, fit.gpu_names(config))
    losses = validation_losses(lines)
    fall = convergence(losses, steps)
    return Result(
        version=project_version(),
        id=trial.id,
        weights_id=trial.identity.weights,
        weights_of=fitted.weights_of,
        name=trial.name,
        tags=trial.tags,
        scale=trial.origin.scale,
        seed=config.seed,
        config=trial.settings,
        metrics=evaluation.metrics,
        score=task_of(config.data).measure.name,
        signature=evaluation.signature,
        params=fitted.params,
        steps=steps,
        best_step=None if fitted.scored == steps else fitted.scored,
        stopped_early=steps < config.steps,
        flops=fitted.flops,
        **_of_start(trial),
        tokens_per_s=rate and round(rate, 1),
        of_peak=share and fitted.passes and share * fitted.passes,
        wall_s=round(wall_s, 1),
        exempt=dict(checked.exempt),
        convergence=fall and fall.as_record(),
        losses=losses,
        vocabulary=value_digest(prepared.tokenizer.vocabulary()),
        finished=time.strftime("%Y-%m-%d %H:%M:%S"),
    )


def _of_start(trial: Trial) -> dict[str, Any]:
    """What the result of a trial has of its start."""
    if trial.start is None:
        return {}
    result = trial.start.result()  # None where another command has begun to train it again
    flops = [result.flops, result.flops_before] if result else [None]
    before = None if None in flops else sum(filter(None, flops))
    steps = result.steps if result and trial.continued else 0
    return {
        "flops_before": before,
        "steps_before": steps,
        "starts": [trial.start.weights_id, *(result.starts if result else [])],
    }


def _record_beginning(trial: Trial, prepared: Prepared) -> None:
    """Record the config, the code and the machine of a training. Also set its number of threads, which is recorded."""
    config, folder = trial.config, trial.folder.path
    keep_sources(
        [*custom_components_by_key(config).values(), *config.trainer.callbacks, Component(path=config.data.task)],
        trial.folder.sources,
    )
    write_atomically(folder / "config.yaml", yaml.safe_dump(config.flat(), sort_keys=False))
    write_json(folder / "identity.json", trial.identity.inputs)
    environment = describe_environment(PACKAGES) | {"commit": code_state(), "data": prepared.folder.name}
    environment |= {"gpus": fit.gpu_names(config), "threads": fit.use_threads(trial)}
    environment["command"] = join(["python", "-m", "transformer_pl.train", *sys.argv[1:]])
    write_json(folder / "env.json", environment)
