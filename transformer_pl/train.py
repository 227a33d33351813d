"""Train one trial:  python -m transformer_pl.train [--scale=demo] [--variant="model.h=4"] [--seed=1] [--model.h=4 ...]

From one config to one result. What a trial is follows from its config alone: a finished one is not trained again, an
interrupted one goes on from its last checkpoint. One that diverges ends there, keeps its last good checkpoint, and is
not trained again either.
"""

import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import yaml

from transformer_pl import components
from transformer_pl.config import (
    KEYS,
    Config,
    Level,
    effective_sizes,
    parse_variant,
    resolve,
    scale_level,
    sizes,
)
from transformer_pl.data.prepare import Prepared, prepare
from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.cost import training_cost
from transformer_pl.experiments.trial_config import trial_config
from transformer_pl.runtime import machine, memory
from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.environment import describe_environment
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import write_atomically, write_json
from transformer_pl.runtime.signals import Stopped, component_code, end_with_parent
from transformer_pl.training.divergence import Diverged, diverged_if_not_finite
from transformer_pl.trials.identity import Identity, describe_difference, identity
from transformer_pl.trials.runs_folder import DEFAULT_RUNS, check_writable, finished_results, runs_lock, why_unwritable
from transformer_pl.trials.trial import Trial

PACKAGES = ("torch", "lightning", "wandb", "sacrebleu", "datasets", "sentencepiece", "numpy")
SHOWN = 20  # validation sentences whose translations W&B shows
USAGE = """usage: python -m transformer_pl.train [--scale=S] [--variant="..."] [--runs=DIR] [--rerun] [--key=value ...]

Trains one trial, unless it is finished or has diverged; an interrupted one goes on. Keys and their defaults, the
paper's base:
"""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(USAGE + "\n".join(f"  --{key}={value}" for key, value in KEYS.items()))
        return 0
    end_with_parent()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads starve each other as soon as two trials run
    options, levels = read_argv(argv)
    config = trial_config(levels)
    runs = Path(options.get("runs", DEFAULT_RUNS))
    check_writable(runs)
    name = describe_difference(resolve(levels), resolve(levels[:1]))  # in the user's words: before FLOPs are matched
    with runs_lock(runs):
        return train(config, runs, name, Path(options["scale"]).stem, rerun="rerun" in options)


def read_argv(argv: list[str]) -> tuple[dict[str, str], list[Level]]:
    """`--key value` and `--key=value`: the command's own options, and the levels of the config, the scale's first."""
    options: dict[str, str] = {}
    keys: dict[str, str] = {}
    left = list(argv)
    while left:
        word = left.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise InputError(f"command line: {word}: must be --key=value, with the dashes")
        if name == "rerun":
            if equals:
                raise InputError(f"command line: {word}: must be --rerun, without a value")
            options[name] = value
            continue
        if not equals and not left:
            raise InputError(f"command line: {word}: must be followed by a value")
        given = options if name in ("scale", "variant", "runs") else keys
        if name in given:
            raise InputError(f"command line: --{name} is set twice; set it once")
        given[name] = value if equals else left.pop(0)
    if options.get("runs") == "":
        raise InputError("command line: --runs: must be a folder, but is empty; name one")
    options.setdefault("scale", "demo")
    levels = [scale_level(options["scale"]), Level("command line", keys)]
    if "variant" in options:
        levels.append(parse_variant(options["variant"], "command line"))
    return options, levels


def train(config: Config, runs: Path, name: str, scale: str, rerun: bool = False) -> int:
    """Train and evaluate one trial, unless it is finished or has diverged; returns the exit code."""
    corpus = open_corpus(config.data)
    who = identity(config, corpus.fingerprint, components.source_digests(config.model))
    trial = Trial.at(runs, who.trial, f"{scale}-{name}-s{config.seed}")
    if (result := trial.result()) and not rerun:
        print(f"{trial.folder}: finished already")
        _tell(result)
        if os.environ.get("WANDB_SWEEP_ID"):
            from transformer_pl.training.logger import log_finished_trial

            log_finished_trial(trial.folder, result)
        return 0
    told = {"name": f"{name} s{config.seed}", "tags": [scale, name]}
    if (step := trial.diverged_at()) is not None and not rerun:
        print(f"{trial.folder}: diverged at step {step}; --rerun trains it anew")
        if os.environ.get("WANDB_SWEEP_ID"):
            from transformer_pl.training.logger import tell_diverged

            tell_diverged(trial.folder, step, **told, config=config.flat() | effective_sizes(config))
        return 1
    _accelerator(config)
    prepared = prepare(config.data, runs, corpus)
    _start_libraries()
    from lightning.pytorch.utilities import rank_zero_only

    if rank_zero_only.rank:  # Lightning has started this process to help rank 0, which does all the rest
        _use_threads(config, trial)
        with suppress(Stopped, Diverged):  # which rank 0 tells; it would be killed if this process ended in error
            _fit(config, runs, trial, prepared, told)
        return 0
    with trial.lock(), _logged(trial):
        try:
            if rerun and not trial.needs_training():
                trial.clear()
            trial.set_aside_damaged_result()
            trial.set_status("running")
            with component_code():
                result = _run(config, runs, trial, prepared, who, told | {"scale": scale}, rerun)
            trial.set_status("done")
        except Stopped:
            trial.set_status("stopped")
            raise
        except Diverged as error:
            with suppress(OSError):
                trial.set_status("diverged", step=error.step)
                print(f"{trial.folder}: {error}; --rerun trains it anew")
            return 1
        except Exception as error:
            why = why_unwritable(runs)  # a library may have strange words for a full disk
            why = why or components.described(error)
            with suppress(OSError):
                trial.drop_unfinished()
                trial.set_status("failed", why=why)
            if isinstance(error, InputError):
                raise
            with suppress(OSError):
                traceback.print_exc()
                print(f"error: {why}", file=sys.stderr)
            return 1
        _tell(result)
        return 0


def _run(
    config: Config, runs: Path, trial: Trial, prepared: Prepared, who: Identity, told: dict[str, Any], rerun: bool
) -> dict[str, Any]:
    """Weights, then what they are worth, then the result: the last file to be written."""
    began = time.perf_counter()
    write_atomically(trial.folder / "config.yaml", yaml.safe_dump(config.flat(), sort_keys=False))
    about = describe_environment(PACKAGES) | {"data": prepared.folder.name, "threads": _use_threads(config, trial)}
    write_json(trial.folder / "env.json", about)
    begun = rerun or (trial.folder / "checkpoints").exists()
    shared = None if begun else _same_weights(config, runs, trial, who, told)
    tracker, training = shared or _fit(config, runs, trial, prepared, told)
    try:
        params, metrics, signature, translations = _evaluate(config, trial, prepared)
        sampled = [line["val/bleu_sample"] for line in trial.metrics() if "val/bleu_sample" in line]
        metrics |= {"val/bleu_sample": sampled[-1]} if sampled else {}
        tracker.log_metrics(metrics, config.steps)
        tracker.log_translations(translations)
        means = [prepared.mean_length("train", side) for side in ("source", "target")]
        model_sizes = sizes(config.model, len(prepared.tokenizer))
        result = {
            "id": who.trial,
            "weights_id": who.weights,
            **told,
            "seed": config.seed,
            "config": config.flat() | effective_sizes(config),
            "metrics": metrics,
            "signature": signature,
            "params": params,
            "steps": config.steps,
            "flops": training_cost(model_sizes, config.steps, config.data.batch_tokens, *means).flops,
            "dropped": training["dropped"],
            "tokens_per_s": training["tokens_per_s"],
            "wall_s": round(training["earlier_s"] + time.perf_counter() - began, 1),
            "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
    except BaseException as error:
        tracker.fail(error)
        raise
    trial.finish(result)
    tracker.finish(0, result)
    return result


def _fit(
    config: Config, runs: Path, trial: Trial, prepared: Prepared, told: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Train to the end of the schedule, from the last checkpoint if there is one, and keep the weights."""
    import lightning as L
    import torch
    from lightning.pytorch.callbacks import LambdaCallback

    from transformer_pl.data.datamodule import TranslationDataModule
    from transformer_pl.training.bleu_sample import BleuSample
    from transformer_pl.training.checkpoint import Checkpoints
    from transformer_pl.training.logger import TrialLogger
    from transformer_pl.training.module import TransformerModule

    L.seed_everything(config.seed, verbose=False)
    module = TransformerModule(config, len(prepared.tokenizer))
    data = TranslationDataModule(config, prepared)
    checkpoints = Checkpoints(trial.folder / "checkpoints", config.decode.average)
    tracker = TrialLogger(
        trial.folder, config.steps, told["name"], told["tags"], config.flat() | effective_sizes(config)
    )

    def draw_own_dropout(trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.global_rank:  # with the same weights everywhere
            torch.manual_seed(config.seed + trainer.global_rank)

    own_dropout = LambdaCallback(on_train_start=draw_own_dropout)  # no earlier: Lightning seeds all processes alike
    trainer = L.Trainer(
        accelerator=_accelerator(config),
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        strategy=_strategy(config),
        precision=config.trainer.precision,
        max_steps=config.steps,
        accumulate_grad_batches=config.trainer.accumulate,
        val_check_interval=config.trainer.val_every * config.trainer.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=tracker,
        callbacks=[*([BleuSample(config, prepared)] if config.trainer.bleu_sample else []), checkpoints, own_dropout],
        use_distributed_sampler=False,
        log_every_n_steps=1,  # the module writes its own lines
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = checkpoints.newest()
    tracker.start(torch.load(newest, mmap=True)["global_step"] if newest else 0)
    try:
        trainer.fit(module, data, ckpt_path=newest)
    except BaseException as error:
        tracker.fail(error)
        raise
    weights = module.weights()
    if trainer.is_global_zero:
        trial.save_weights(checkpoints.averaged() or weights)
    rates = [line["tokens_per_s"] for line in trial.metrics() if "tokens_per_s" in line]
    return tracker, {
        "dropped": data.dropped,
        "tokens_per_s": round(sum(rates) / len(rates), 1) if rates else None,
        "earlier_s": checkpoints.earlier_s,
    }


def _strategy(config: Config) -> Any:
    if config.trainer.strategy != "fsdp2":
        return config.trainer.strategy
    from lightning.pytorch.strategies import ModelParallelStrategy

    ranks = config.trainer.devices * config.trainer.num_nodes
    return ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)


def _same_weights(
    config: Config, runs: Path, trial: Trial, who: Identity, told: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    """The weights of a finished trial that differs from this one in decoding alone, hard-linked; None without one.

    A trial whose weights or curve are damaged is named and passed over.
    """
    from transformer_pl.training.logger import TrialLogger

    shared = ("weights.pt", "metrics.jsonl")

    def is_whole(twin: dict[str, Any]) -> bool:
        try:
            for name in shared:
                Trial(twin["folder"]).intact(name)
        except InputError as error:
            warn(f"weights are not shared: {error}")
            return False
        return True

    twins = (r for r in finished_results(runs) if r["weights_id"] == who.weights and r["id"] != who.trial)
    twin = next((r for r in twins if (r["folder"] / "weights.pt").exists() and is_whole(r)), None)
    if not twin:
        return None
    print(f"weights: those of {twin['folder']}, which differs in decoding alone", flush=True)
    trial.link(twin["folder"], *shared)
    tracker = TrialLogger(
        trial.folder, config.steps, told["name"], told["tags"], config.flat() | effective_sizes(config)
    )
    tracker.start(config.steps)
    return tracker, {"dropped": twin["dropped"], "tokens_per_s": twin["tokens_per_s"], "earlier_s": 0.0}


def _evaluate(
    config: Config, trial: Trial, prepared: Prepared
) -> tuple[int, dict[str, float], str, list[dict[str, str]]]:
    """The model's parameters, its metrics on both sets in fp32, sacreBLEU's signature, and a few translations.

    Raises Diverged where the loss of a set, or the probabilities of translations, are not finite.
    """
    from transformer_pl.evaluation.evaluate import best_translations, load_trained_model, reference_likelihood
    from transformer_pl.evaluation.score import corpus_score

    model = load_trained_model(config, prepared, trial.folder / "weights.pt")
    metrics: dict[str, float] = {}
    translations: list[dict[str, str]] = []
    for name in ("val", "test"):
        split, (sources, references) = prepared.split(name), prepared.text(name)
        nll = reference_likelihood(model, split, config.trainer.eval_tokens)
        if not math.isfinite(nll.loss):
            raise Diverged(config.steps)
        with diverged_if_not_finite(config.steps):
            hypotheses = best_translations(
                model, split.source, prepared.tokenizer, config.decode, config.trainer.eval_tokens
            )
        score = corpus_score(hypotheses, references)
        metrics |= {f"{name}/loss": nll.loss, f"{name}/ppl": nll.perplexity}
        metrics |= {f"{name}/bleu": score.bleu, f"{name}/chrf": score.chrf}
        shown = zip(sources[:SHOWN], references, hypotheses, strict=False)
        translations = translations or [{"source": s, "reference": r, "translation": h} for s, r, h in shown]
        trial.save_sentences(name, hypotheses, score.statistics, nll.nll, nll.tokens)
    return sum(p.numel() for p in model.parameters()), metrics, score.signature, translations


def _tell(result: dict[str, Any]) -> None:
    print("  ".join(f"{name} {value:.2f}" for name, value in result["metrics"].items()), flush=True)


def _accelerator(config: Config) -> str:
    """What the trial is trained on, named to Lightning so that it cannot choose another.

    Raises an InputError where this machine cannot train the trial as its config says.
    """
    import torch

    return machine.accelerator(config.trainer, torch.cuda.device_count())


def _use_threads(config: Config, trial: Trial) -> int:
    """Give torch the trial's number of threads, and return it."""
    import torch

    share = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:  # else it says what each process is to have
        share = max(1, share // config.trainer.devices)
    begun, threads = trial.threads_begun(), trial.threads(config.trainer.threads, share)
    if begun not in (None, threads):
        print(f"trainer.threads = {threads}: this trial began with {begun}; its result may differ in the last digits")
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # Lightning sets its own number where this is missing
    return threads


def _start_libraries() -> None:
    """Import what takes seconds, and silence what says nothing to a user."""
    import logging

    import lightning.pytorch  # noqa: F401  (it sets its logger's level when it is imported: first, or ours is lost)
    import torch

    torch.backends.cudnn.allow_tf32 = False  # on a GPU, convolutions and LSTMs would not be computed in fp32
    memory.keep_freed()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    messages = (".*LeafSpec.*", ".*srun.*", ".*does not have many workers.*", ".*GPU available but not used.*")
    for message in (*messages, ".*returned a view tensor.*"):  # nothing is done in place to keys and values
        warnings.filterwarnings("ignore", message)


@contextmanager
def _logged(trial: Trial) -> Iterator[None]:
    """Copy what is printed to the trial's log, unless that is where it goes already."""

    class Both:
        def __init__(self, stream: Any):
            self.stream = stream

        def write(self, text: str) -> int:
            with suppress(OSError):  # a full disk: the terminal still hears of it
                file.write(text.encode(errors="replace"))
            return self.stream.write(text)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    with trial.log.open("ab", buffering=0) as file:
        if os.path.samestat(os.fstat(1), os.fstat(file.fileno())):
            yield
        else:
            with redirect_stdout(Both(sys.stdout)), redirect_stderr(Both(sys.stderr)):
                yield


if __name__ == "__main__":
    run_command(main)
