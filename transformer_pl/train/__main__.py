"""Train one trial:  python -m transformer_pl.train [--scale=demo] [--variant="model.h=4"] [--seed=1] [--model.h=4 ...]

The config alone decides which trial it is. A finished trial is not trained again; an interrupted one continues from
its last checkpoint. One that diverged keeps its last good checkpoint and is not trained again either.
"""

import argparse
import itertools
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from shlex import join
from typing import Any

import yaml

from transformer_pl.check.run import check_model
from transformer_pl.config import components, sizes
from transformer_pl.config.component_sources import keep_sources
from transformer_pl.config.help import help_text
from transformer_pl.config.levels import (
    DEFAULT_SCALE,
    Level,
    parse_variant,
    read_pairs,
    resolve,
    scale_level,
    scale_names,
)
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.command_line import CommandParser, add_runs_option, run_command, text
from transformer_pl.runtime.environment import (
    ROW,
    TRIAL,
    avoid_spinning_threads,
    code_state,
    describe_environment,
    project_version,
    under_wandb_agent,
)
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import check_writable, why_unwritable, write_atomically, write_json
from transformer_pl.runtime.signals import Stopped, component_code
from transformer_pl.runtime.terminal import command_console, logged, shown_stages
from transformer_pl.task import open_corpus, task_of
from transformer_pl.trials.convergence import convergence
from transformer_pl.trials.cost import training_cost
from transformer_pl.trials.identity import describe_difference
from transformer_pl.trials.lock import Lost
from transformer_pl.trials.metrics import Diverged
from transformer_pl.trials.trial_config import trial_config
from transformer_pl.trials.trial_run import TrialRun

PACKAGES = ("torch", "lightning", "wandb", "sacrebleu", "datasets", "sentencepiece", "numpy")
EXAMPLES = """\
examples:
  python -m transformer_pl.train --model.h=4 --seed=2                   a trial at scale demo, with 4 heads
  python -m transformer_pl.train --variant="model.h=1 model.p_drop=0"   as a row of a sweep file names it
  python -m transformer_pl.train --scale=multi30k --runs=elsewhere      base on real text, results in another folder

The keys of the config follow. Their defaults are the paper's base; a scale sets some of them. The arguments of a
component are keys too: --model.attention=ablations.local_attention.LocalAttention --model.attention.window=8
"""


def main(argv: list[str]) -> int:
    """Train, evaluate and record one trial; returns the exit code."""
    options, levels = read_argv(argv)
    avoid_spinning_threads()
    scale = Path(options.scale).stem
    row = describe_difference(resolve(levels), resolve(levels[:1]))  # as it is written, FLOPs not matched
    config = trial_config(levels)
    check_writable(options.runs / "trials")
    run = TrialRun.of(config, options.runs, scale, os.environ.get(ROW, row), open_corpus(config.data))
    if os.environ.get(TRIAL, run.identity.trial) != run.identity.trial:
        raise InputError(
            f"{run.trial.folder.name}: must be the trial that the sweep has planned, but its text or the code of "
            "its components has changed since; run the sweep again"
        )
    if not options.rerun and (code := _report_ended(run)) is not None:
        return code
    return train(run, options.rerun)


def read_argv(argv: list[str]) -> tuple[argparse.Namespace, list[Level]]:
    """The command's own options, and the levels of the config, the scale's first.

    Keys of the config are options too: `--model.h=4` or `--model.h 4`.
    """
    parser = CommandParser(
        prog="python -m transformer_pl.train",
        usage='%(prog)s [--scale=S] [--variant="..."] [--runs=DIR] [--rerun] [--key=value ...]',
        description="Train one trial, unless it has finished or diverged; an interrupted one continues. Defaults are\n"
        "in parentheses.",
        epilog=f"{EXAMPLES}\n{help_text()}",
    )
    known = f"{', '.join(scale_names())} or your own YAML (%(default)s)"
    parser.add_argument("--scale", type=text, default=DEFAULT_SCALE, metavar="S", help=known)
    row = "a row of a sweep: `base`, or what differs from it; wins over --key=value"
    parser.add_argument("--variant", metavar="KEY=VALUE ...", help=row)
    add_runs_option(parser)
    parser.add_argument("--rerun", action="store_true", help="train a trial anew that has finished or diverged")
    options, rest = parser.parse_known_args(argv)
    levels = [scale_level(options.scale), _read_keys(rest)]
    if options.variant is not None:
        levels.append(parse_variant(options.variant, "command line"))
    return options, levels


def _read_keys(argv: list[str]) -> Level:
    """The keys of the config on a command line, as `--key=value` or `--key value`."""
    words, pairs = iter(argv), []
    for word in words:
        if not word.startswith("--"):
            raise InputError(f"command line: {shown(word)}: must be --key=value, or --key value")
        pairs.append(word[2:] if "=" in word else "=".join([word[2:], *itertools.islice(words, 1)]))
    return read_pairs(pairs, "command line")


def _report_ended(run: TrialRun) -> int | None:
    """Report a trial that has finished (exit code 0) or diverged (1), also to W&B's agent; None for any other."""
    if run.trial.needs_training():
        return None
    result, step = run.trial.result(), run.trial.diverged_at()
    if result:
        print(f"{run.trial.folder}: finished already")
        _print_metrics(result)
    else:
        print(f"{run.trial.folder}: diverged at step {step}; --rerun trains it anew")
    if under_wandb_agent():
        from transformer_pl.train.logger import log_ended_trial

        log_ended_trial(run, result, step)
    return 0 if result else 1


def train(run: TrialRun, rerun: bool = False) -> int:
    """Train and evaluate a trial, record how it ended, and return the exit code."""
    if not sys.modules.get("lightning"):  # not yet: that takes seconds
        print(f"{run.trial.folder}: importing torch", flush=True)
    from lightning.pytorch.utilities import rank_zero_only

    from transformer_pl.train import fit

    fit.accelerator(run.config)
    with shown_stages(command_console()) as on_progress:
        prepared = prepare(run.config.data, run.runs, run.corpus, on_progress)
    fit.start_libraries()
    if getattr(rank_zero_only, "rank", 0):  # Lightning started this process to help rank 0, which does everything else
        return _help_to_train(run, prepared, rerun)
    trial = run.trial
    check_writable(trial.folder.parent)  # the text may have filled the disk
    with trial.lock():
        if not rerun and (code := _report_ended(run)) is not None:  # another process had it until now
            return code
        with logged(trial.log):
            return _train_and_record(run, prepared, rerun)


def _help_to_train(run: TrialRun, prepared: Prepared, rerun: bool) -> int:
    """The part of a process that is not rank 0. It does not train where rank 0 does not either."""
    from transformer_pl.train.fit import fit, trained_elsewhere, use_threads
    from transformer_pl.train.logger import MetricsFile

    use_threads(run.config, run.trial)
    if not trained_elsewhere(run, rerun):
        # Rank 0 reports how it ended; it would be killed if this process ended in error.
        with suppress(Stopped, Diverged):
            fit(run, prepared, MetricsFile(run.trial.folder, run.config.steps))
    return 0


def _train_and_record(run: TrialRun, prepared: Prepared, rerun: bool) -> int:
    """Train and evaluate a trial that this process has the lock of, record how it ended, and return the exit code."""
    trial = run.trial
    try:
        if rerun and not trial.needs_training():
            trial.clear()
        trial.set_status("running")
        with component_code():
            result = _train_and_evaluate(run, prepared, rerun)
    except Stopped:
        with suppress(OSError):  # a full disk must not change the exit code
            trial.set_status("stopped")
        raise
    except Diverged as error:
        trial.set_status("diverged", step=error.step)
        print(f"{trial.folder}: {error}; --rerun trains it anew")
        return 1
    except Lost as lost:  # another process records how the trial ends
        print(f"error: {lost}; the steps that this process has trained since then are dropped", file=sys.stderr)
        return 1
    except Exception as error:
        _record_failure(run, error)
        if isinstance(error, InputError):
            raise
        return 1
    _print_metrics(result)
    print(f"trial: {trial.folder}")
    return 0


def _record_failure(run: TrialRun, error: Exception) -> None:
    """Record why a training failed, and print it unless the command prints the error."""
    reason = why_unwritable(run.trial.folder.parent) or components.described(error)  # a full disk has many symptoms
    if "out of memory" in reason:
        reason += f"; increase trainer.accumulate, now {run.config.trainer.accumulate}, which splits the batch"
    with suppress(OSError):
        run.trial.set_status("failed", why=reason)
    if not isinstance(error, InputError):
        traceback.print_exception(error)
        print(f"error: {reason}", file=sys.stderr)


def _train_and_evaluate(run: TrialRun, prepared: Prepared, rerun: bool) -> dict[str, Any]:
    """Train or reuse weights, evaluate them, write and return the result."""
    from transformer_pl.train.evaluate import evaluate_trial
    from transformer_pl.train.fit import fit, reuse_weights, trained_elsewhere
    from transformer_pl.train.logger import trial_loggers, wandb_summary

    started, config, trial = time.perf_counter(), run.config, run.trial
    _record_beginning(run, prepared)
    exempt = check_model(config.model, config.data.vocab_size, run.runs)
    mean_lengths = [prepared.mean_length("train", side) for side in ("source", "target")]
    model_sizes = sizes(config.model, len(prepared.tokenizer))
    cost = training_cost(model_sizes, config.steps, config.data.batch_tokens, *mean_lengths)
    earlier = trained_elsewhere(run, rerun)
    with trial_loggers(run) as (file, wandb):
        earlier_s = reuse_weights(run, earlier, file) if earlier else fit(run, prepared, file, wandb)
        evaluation = evaluate_trial(config, trial, prepared)
        metrics, sample = evaluation.metrics, task_of(config.data).sample_metric
        lines = trial.metrics()
        if sampled := [line[sample] for line in lines if sample in line]:
            metrics[sample] = sampled[-1]
        converged = convergence(lines, config.steps)
        rates = [line["tokens_per_s"] for line in lines if "tokens_per_s" in line]
        for logger in (file, wandb):
            logger.log_metrics(metrics, config.steps)
        wandb.tell(tables={"translations": evaluation.examples})
        result = {
            "version": project_version(),
            "id": run.identity.trial,
            "weights_id": run.identity.weights,
            "weights_of": earlier and earlier["id"],
            "name": run.name,
            "tags": run.tags,
            "scale": run.scale,
            "seed": config.seed,
            "config": run.settings,
            "metrics": metrics,
            "score": evaluation.score,
            "signature": evaluation.signature,
            "params": evaluation.params,
            "steps": config.steps,
            "flops": cost.flops,
            "tokens_per_s": round(sum(rates) / len(rates), 1) if rates else None,
            "wall_s": round(earlier_s + time.perf_counter() - started, 1),
            "exempt": exempt,
            "convergence": converged and converged._asdict(),
            "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        trial.set_status("done")  # it is when it has a result, with which the next process may have the trial
        trial.finish(result)
        wandb.tell(summary=wandb_summary(result))
    return result


def _record_beginning(run: TrialRun, prepared: Prepared) -> None:
    """Write what is trained, with what, and where; and set the number of threads, which is part of that."""
    from transformer_pl.train.fit import gpu_names, use_threads

    config, trial = run.config, run.trial
    keep_sources(config.model, trial.sources)
    write_atomically(trial.folder / "config.yaml", yaml.safe_dump(config.flat(), sort_keys=False))
    write_json(trial.folder / "identity.json", run.identity.inputs)
    packages = (*PACKAGES, "sacremoses") if config.trainer.tokenised_bleu else PACKAGES
    environment = describe_environment(packages) | {"commit": code_state()}
    environment |= {"gpus": gpu_names(config), "threads": use_threads(config, trial), "data": prepared.folder.name}
    environment["command"] = join(["python", "-m", "transformer_pl.train", *sys.argv[1:]])
    write_json(trial.folder / "env.json", environment)


def _print_metrics(result: dict[str, Any]) -> None:
    print("  ".join(f"{name} {value:.2f}" for name, value in result["metrics"].items()), flush=True)


if __name__ == "__main__":
    run_command(main)
