"""The stages of a rehearsal, each for a child process: a small dataset, checks of laws, and small trainings.

A law is what all parts of a kind must keep, such as that a loss leaves out padding.
"""

import copy
import io
import itertools
import math
import operator
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from transformer_pl.check.dry_run import dry_run
from transformer_pl.check.small_model import small_model
from transformer_pl.config import ALL_PAIRS, BOS, COMPONENTS, EOS, PAD, UNK, Callback, Config, custom_components, sizes
from transformer_pl.config.components import build, is_core
from transformer_pl.data import synthetic
from transformer_pl.data.batches import Batch
from transformer_pl.data.prepare import learn_tokenizer, prepared_dataset, prepared_in, write_tokens
from transformer_pl.data.prepared import SIDES, Prepared
from transformer_pl.data.selection import used_pairs
from transformer_pl.data.tokenizer import FIXED, Tokenizer, check_adds_nothing
from transformer_pl.data.tokens import Tokens, evenly_spaced
from transformer_pl.model.beam_search import CachedSteps, beam_search
from transformer_pl.model.loss import training_loss
from transformer_pl.runtime.errors import InputError, collect_errors, described
from transformer_pl.runtime.signals import Stopped
from transformer_pl.task import EVALUATION, Corpus, Pair, checked_scores, open_corpus, task_of
from transformer_pl.train import fit
from transformer_pl.train.divergence import Diverged
from transformer_pl.train.intervention import intervene
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.one_trial import train_and_evaluate
from transformer_pl.train.teacher import without_teachers
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.result import Result
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_run import Checked, TrialRun

STEPS = 20
SENTENCES = {"train": 24, "val": 8, "test": 8}
BATCHES = 4  # of an epoch, at least
MERGES = 40  # merges of a vocabulary that is learned from so few sentences
LONG = 1000  # sentences that are joined to a long one, whose end no tokenizer may leave out
TRIED = 1000  # steps at which the rate of a schedule is checked
TRIED_TOKENS = 3  # tokens that a model must decode after an intervention
MUCH_SLOWER = 1e-3  # factor of the rate: so slowly, a loss with finite gradients does not diverge


# ---------------------------------------------------------------------------------------------------------------------
# The stages, each in a process of its own


def whole(config: Config, runs: Path, folder: Path) -> tuple[Config, dict[str, Any]]:
    """Write the small dataset, check the laws, train to the end. Returns the small config, and what was found."""
    prepared = _write_dataset(config, runs, folder)
    if not is_core(config.optim.schedule.path):
        _check_schedule(config, len(prepared.tokenizer))
    shallow = small(config, prepared)
    try:
        shallow, found = _whole(shallow, folder)
    except InputError:
        raise
    except Exception:  # perhaps of a callback that asks for a layer which the row has
        shallow, found = _whole(shallow.model_copy(update={"model": config.model}), folder)
    found["notes"] = [*found["notes"], *_lost_text(config, prepared)]
    return shallow, found


def _whole(config: Config, folder: Path) -> tuple[Config, dict[str, Any]]:
    """Train to the end at the row's own learning rate or, if that diverges, at a much lower one.

    A warm-up of few steps leads to a high rate, so a divergence says little unless it also happens at the lower rate.
    """
    slower = config.optim.model_copy(update={"lr_scale": config.optim.lr_scale * MUCH_SLOWER})
    for optim in (config.optim, slower):
        _trial(folder, "whole").clear()
        config = config.model_copy(update={"optim": optim})
        with suppress(Diverged):
            result = _train(config, folder, "whole")
            return config, {"steps": result.steps, "passes": Observer.passes, "notes": Observer.notes}
    raise InputError("must train with finite losses and gradients, but diverges at any learning rate")


def stopped(config: Config, folder: Path, step: int) -> None:
    """Train until a signal stops the training in a step."""
    with suppress(Stopped):
        _train(config, folder, "stopped", stop_at=step)


def continued(config: Config, folder: Path) -> bool:
    """Continue the stopped training to its end. Raises an InputError where it differs from the whole one.

    Returns whether they were compared.
    """
    _train(config, folder, "stopped")
    if config.trainer.accelerator == "gpu":  # sums on a GPU may round differently each time
        return False
    if unequal := _unequal(folder, "whole", "stopped"):
        raise InputError(
            f"must come to the same end as one that is not stopped, but differs in {', '.join(unequal[:3])}: some "
            "state is neither saved (state_dict, load_state_dict, a buffer) nor a function of the step; save it"
        )
    return True


def idle(config: Config, folder: Path) -> bool:
    """Whether the callbacks have changed nothing: a training without them comes to the same end."""
    trainer = config.trainer.model_copy(update={"callbacks": ()})
    _train(config.model_copy(update={"trainer": trainer}), folder, "alone")
    return not _unequal(folder, "whole", "alone")


def intervened(configs: Sequence[Config]) -> None:
    """Change an untrained model of each config by its intervention, and run it. Raises one InputError for all."""
    collect_errors(lambda index: _try_intervention(configs[index]), range(len(configs)))


def _unequal(folder: Path, name: str, other: str) -> list[str]:
    """The names of the weights, and of the fields of the results, in which two trainings differ."""
    first, second = (_trial(folder, name) for name in (name, other))
    second_weights, results = second.weights(), (first.result(), second.result())
    unequal = [key for key, weight in first.weights().items() if not torch.equal(weight, second_weights[key])]
    return unequal + [key for key in ("steps", "metrics") if getattr(results[0], key) != getattr(results[1], key)]


def small(config: Config, prepared: Prepared) -> Config:
    """The config with one layer a stack and STEPS steps on the prepared sentences. Other keys stay if a CPU allows.

    The small model is trained on a GPU if its components do not run on a CPU.
    """
    on_gpu = torch.cuda.is_available() and dry_run(sizes(config.model, len(prepared.tokenizer))) == "cuda"

    def share(steps: int) -> int:
        return max(1, round(steps * STEPS / config.steps))

    optim, trainer, split = config.optim, config.trainer, prepared.split("train")
    keys: dict[str, dict[str, Any]] = {
        "model": {"N": 1, "N_encoder": config.model.N_encoder and 1, "N_decoder": None, "depth": 1.0},
        "optim": {"max_steps": STEPS, "duration": 1.0, "match": "steps", "warmup": min(STEPS, share(optim.warmup))}
        | {"loss": without_teachers(optim.loss)},
        "data": {"vocab_size": len(prepared.tokenizer)} | ALL_PAIRS,
        "decode": {"average": min(config.decode.average, 3), "intervention": COMPONENTS["decode.intervention"]},
        "trainer": {
            "accelerator": "gpu" if on_gpu else "cpu",
            "devices": 1,
            "num_nodes": 1,
            "strategy": "auto",
            "compile": "off",
            "threads": 1,
            "precision": "32-true" if trainer.precision == "16-mixed" else trainer.precision,
            "val_every": min(STEPS, max(4, share(trainer.val_every))),
            "log_every": share(trainer.log_every),
            "callbacks": tuple(_without(callback, "dirpath") for callback in trainer.callbacks),
            "loggers": tuple(_without(logger, "save_dir") for logger in trainer.loggers),
        },
    }
    longest = int(split.longer.max())
    several = longest * SENTENCES["train"] // BATCHES  # else an epoch would be one batch, whose order says nothing
    keys["data"] |= {"max_length": max(config.data.max_length, longest)}
    keys["data"] |= {"batch_tokens": max(longest, min(config.data.batch_tokens, several))}
    sections = {name: getattr(config, name).model_copy(update=update) for name, update in keys.items()}
    return config.model_copy(update=sections)


def _without(plugin: Any, option: str) -> Any:
    """A callback or logger without its option for a folder, so that it writes to the trial's."""
    return plugin.model_copy(update={"options": {k: v for k, v in plugin.options.items() if k != option}})


def _trial(folder: Path, name: str) -> Trial:
    return Trial(folder / name / "trials" / "rehearsal")


def _train(config: Config, folder: Path, name: str, stop_at: int | None = None) -> Result:
    """Train and evaluate as any trial, from a checkpoint where one was stopped. Returns the result."""
    os.environ["WANDB_MODE"] = "disabled"
    fit.start_libraries()
    trial = _trial(folder, name)
    trial.make()
    observer = Callback(path=f"{__name__}.Observer", options={} if stop_at is None else {"stop_at": stop_at})
    callbacks = (*config.trainer.callbacks, observer)
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"callbacks": callbacks})})
    identity = Identity({"rehearsal": name})
    run = TrialRun(config, folder / name, "rehearsal", "base", Corpus({}, "", lambda _: iter(())), identity, trial)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return train_and_evaluate(run, prepared_in(folder / "data", config.data), rerun=False, checked=Checked())


# ---------------------------------------------------------------------------------------------------------------------
# The dataset


def _write_dataset(config: Config, runs: Path, folder: Path) -> Prepared:
    """Write a dataset of a few sentences of the row's own text, in the tokens of its tokenizer."""
    data, corpus = config.data, open_corpus(config.data)
    prepared = prepared_dataset(data, runs, corpus)
    pairs = {name: _few_pairs(name, count, config, corpus, prepared) for name, count in SENTENCES.items()}
    if prepared.is_counted():
        tokenizer, model = prepared.tokenizer, (prepared.folder / "tokenizer.model").read_bytes()
    else:
        tokenizer, model = _learned_tokenizer(config, pairs["train"])
    if not is_core(data.tokenizer.path):
        _check_tokenizer(tokenizer, list(itertools.chain.from_iterable(pairs.values())))
    small_corpus = Corpus({}, "the sentences of a rehearsal", lambda name: iter(pairs[name]))
    small_folder = folder / "data"
    small_folder.mkdir()
    data = data.model_copy(update={"vocab_size": len(tokenizer)} | ALL_PAIRS)
    counts = {name: {"pairs": len(sentences)} for name, sentences in pairs.items()}
    write_tokens(small_folder, data, small_corpus, tokenizer, model, counts)
    for name in EVALUATION:
        _check_scores([target for _, target in pairs[name]], config)
    prepared = prepared_in(small_folder, data)
    for side, sentences in zip(SIDES, zip(*pairs["val"], strict=True), strict=True):
        if _rows(prepared.tokenizer.encode(sentences, side)) != _rows(tokenizer.encode(sentences, side)):
            raise tokenizer.wrong("train", "return all that load needs: loaded again, it gives other tokens")
    return prepared


def _few_pairs(name: str, count: int, config: Config, corpus: Corpus, prepared: Prepared) -> list[Pair]:
    """Sentences of a split: from the text if it can be read here, else from the prepared tokens, else synthetic.

    name: the split.
    count: how many sentences.
    config: the row's.
    corpus: the text.
    prepared: the row's dataset, which need not be prepared yet.
    """
    if corpus.is_local:
        return list(itertools.islice(used_pairs(name, corpus, config.data), count))
    if not prepared.is_counted():
        pairs = synthetic.pairs(name)[:count]
        return pairs if task_of(config.data).has_source else [("", target) for _, target in pairs]
    split = prepared.split(name)
    chosen = evenly_spaced(len(split.source), count)
    source, target = (prepared.tokenizer.decode(_rows(side.take(chosen))) for side in split)
    return list(zip(source, target, strict=True))


def _learned_tokenizer(config: Config, pairs: list[Pair]) -> tuple[Tokenizer, bytes]:
    """The row's own tokenizer, trained on these pairs. The vocabulary is smaller if they are too few for the row's."""
    with suppress(InputError):
        return learn_tokenizer(config.data, lambda: pairs)
    characters = set(itertools.chain.from_iterable(itertools.chain.from_iterable(pairs)))
    return learn_tokenizer(
        config.data.model_copy(update={"vocab_size": FIXED + len(characters) + MERGES}), lambda: pairs
    )


def _rows(tokens: Tokens) -> list[list[int]]:
    """The tokens of each sentence."""
    return [tokens[i].tolist() for i in range(len(tokens))]


# ---------------------------------------------------------------------------------------------------------------------
# The laws


def _check_tokenizer(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> None:
    """Every sentence becomes tokens as a whole, whatever stands beside it, and these become text again."""
    if not all(isinstance(token, str) for token in tokenizer.vocabulary()):
        raise tokenizer.wrong("vocabulary", "give a text for each token")
    if len(tokenizer.vocabulary()) != len(tokenizer):
        raise tokenizer.wrong("vocabulary", f"give {len(tokenizer)} tokens, but gives {len(tokenizer.vocabulary())}")
    for side, sentences in zip(SIDES, map(list, zip(*pairs, strict=True)), strict=True):
        sentences = [sentence for sentence in sentences if sentence.strip()]
        if not sentences:  # a task without a source
            continue
        tokens = _rows(tokenizer.encode(sentences, side))
        if empty := [sentence for sentence, row in zip(sentences, tokens, strict=True) if not row]:
            raise tokenizer.wrong("to_ids", f"give tokens of every sentence, but gives none of {empty[0]!r}")
        if all(token == UNK for row in tokens for token in row):
            raise tokenizer.wrong("to_ids", "know some of the tokens, but gives the unknown one alone")
        for sentence, row in zip(sentences, tokens, strict=True):
            if _rows(tokenizer.encode([sentence], side)) != [row]:
                raise tokenizer.wrong("to_ids", f"give {sentence!r} the same tokens alone as among other sentences")
        long = " ".join(sentences * (LONG // len(sentences)))
        try:
            once, twice = map(len, _rows(tokenizer.encode([long, f"{long} {long}"], side)))
        except Exception:  # it may be no sentence of this task
            once, twice = 0, 1
        if once == twice:
            raise tokenizer.wrong("to_ids", f"give all tokens of a sentence, but of a long one it gives {once}")
        check_adds_nothing(tokenizer, sentences, side)
        texts = tokenizer.decode(tokens)
        if blank := [sentence for sentence, text in zip(sentences, texts, strict=True) if not text.strip()]:
            raise tokenizer.wrong("to_texts", f"give the text of its tokens, but gives a blank one for {blank[0]!r}")


def _lost_text(config: Config, prepared: Prepared) -> list[str]:
    """A note if the tokens of a language model lose some of the text, because its loss per byte would look too good."""
    texts, tokenizer = prepared.text("val")[1], prepared.tokenizer
    if task_of(config.data).has_source or tokenizer.decode(_rows(tokenizer.encode(texts, "target"))) == texts:
        return []
    rule = "its tokens do not give back the whole text: a loss for each byte leaves out what is lost"
    return [f"data.tokenizer = {config.data.tokenizer.path}: {rule}"]


def _check_scores(references: list[str], config: Config) -> None:
    """The last number of a line depends on its reference alone, which the statistics assume."""
    right, wrong = (checked_scores(lines, references, config) for lines in (references, references[::-1]))
    if [row[-1] for row in right.statistics] != [row[-1] for row in wrong.statistics]:
        law = "the last number that score gives for a line must depend on its reference alone, but does not; fix it"
        raise InputError(f"data.task = {config.data.task}: {law}")


def _check_schedule(config: Config, vocab_size: int) -> None:
    """The rate is finite and not negative, at TRIED steps of the row's own training."""
    optim = config.optim.model_copy(update={"max_steps": config.steps, "duration": 1.0})
    schedule = build(optim.schedule, sizes(config.model, vocab_size), optim)
    for done in evenly_spaced(config.steps, TRIED):
        rate = schedule(done + 1)
        if not 0 <= float(rate) < math.inf:
            law = f"must give a finite rate of at least 0 for each step, but gives {rate} for step {done + 1}"
            raise InputError(f"optim.schedule = {optim.schedule.path}: {law}; fix it")


def _try_intervention(config: Config) -> None:
    """An intervention leaves a model of the row's layers and sizes that still runs, at once and step by step."""
    model_sizes = sizes(config.model, config.data.vocab_size)
    device, (_, model, source, target) = dry_run(model_sizes), small_model(model_sizes)
    intervene(model, config)
    try:
        with torch.no_grad(), torch.device(device):
            model, source = model.to(device), source.to(device)
            model(source, target.to(device))
            limits = torch.full((len(source),), TRIED_TOKENS)
            beam_search(CachedSteps(model, source), limits, bos=BOS, eos=EOS, beam=2, alpha=config.decode.alpha)
    except Exception as error:
        law = f"must leave a model that runs, but it fails at {described(error)}; fix it"
        raise InputError(f"decode.intervention = {config.decode.intervention.path}: {law}") from None


def _check_loss(module: TransformerModule, batch: Batch) -> None:
    """The loss is a sum over tokens, without padding, and changes nothing that it is given.

    It is computed without dropout. A loss that draws random numbers has no fixed value, so padding and the sum are not
    tested.
    """
    path, model, loss = module.optim.loss.path, module.model, copy.deepcopy(module.loss)

    def value(batch: Batch, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        return training_loss(loss, model, batch)

    def changed(change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(change(batch.source), change(batch.target_in), change(batch.target_out), batch.tokens)

    def law(holds: bool, text: str) -> None:
        if not holds:
            raise InputError(f"optim.loss = {path}: {text}; fix it")

    model.eval()
    with torch.random.fork_rng(devices=[]):
        given = changed(Tensor.clone)
        expected = value(given)
        is_number = isinstance(expected, Tensor) and expected.shape == () and bool(expected.isfinite())
        law(is_number, f"must return one finite number, but returns {expected}")
        law(all(map(torch.equal, given[:3], batch[:3])), "must not change the batch, such as its target, but does")
        law(expected.requires_grad, "must have a gradient, but has none")
        weights = loss.named_parameters() if isinstance(loss, nn.Module) else ()
        unused = [name for name, weight in weights if weight.requires_grad and not _reaches(expected, weight)]
        law(not unused, f"must use every weight that it has, but {', '.join(unused)} gets no gradient")
        if value(batch, seed=1) == expected:
            longer = changed(lambda part: nn.functional.pad(part, (0, 3), value=PAD))
            same = torch.allclose(value(longer), expected, rtol=1e-4)
            law(same, f"must leave out padding (target {PAD}), but changes with it")
            parts = [value(changed(operator.itemgetter(slice(i, i + 1)))) for i in range(len(batch.source))]
            is_sum = torch.allclose(torch.stack(parts).sum(), expected, rtol=1e-3)
            law(is_sum, "must be a sum over tokens, but differs from the sum over single sentences")
    model.train()


def _reaches(loss: Tensor, weight: Tensor) -> bool:
    """Whether the loss has a gradient by the weight."""
    return torch.autograd.grad(loss, weight, retain_graph=True, allow_unused=True)[0] is not None


class Observer(L.Callback):
    """Watches a training: how often the model is called, and what the optimizer reads and changes.

    stop_at: the step in which it sends a signal to stop.
    """

    passes = 1.0  # calls of the model for each micro-batch, in the last training of this process
    notes: list[str] = []

    def __init__(self, stop_at: int | None = None):
        self.stop_at, self.forward, self.backward = stop_at, 0, 0
        self.learning: set[str] = set()  # the names of weights whose gradient was not zero in a step with a rate

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        model: Any = module.get_submodule("model")
        states, self.first_step, Observer.notes = model.states, trainer.global_step, []
        self.schedule = trainer.lr_scheduler_configs[0].scheduler
        self.before = {name: weight.detach().clone() for name, weight in model.named_parameters()}

        def counted(source: Tensor, target: Tensor) -> Tensor:
            self.forward += module.training and torch.is_grad_enabled()
            return states(source, target)

        model.states = counted
        optimizer = trainer.optimizers[0]
        optimizer.param_groups[:] = map(_Group, optimizer.param_groups)

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        if trainer.global_step + 1 == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if batch_idx == 0 and not is_core(module.optim.loss.path):
            _check_loss(module, batch)
            self.forward = 0  # the check of the loss called the model, too

    def on_before_backward(self, trainer: L.Trainer, module: L.LightningModule, loss: Tensor) -> None:
        self.backward += 1

    def on_before_optimizer_step(self, trainer: L.Trainer, module: Any, optimizer: torch.optim.Optimizer) -> None:
        if not any(group["lr"] for group in optimizer.param_groups):
            return
        gradients = {name: weight.grad for name, weight in module.get_submodule("model").named_parameters()}
        self.learning |= {name for name, gradient in gradients.items() if gradient is not None and gradient.any()}

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        batches = (trainer.global_step - self.first_step) * trainer.accumulate_grad_batches
        if not batches:
            return
        Observer.passes, backward = round(self.forward / batches, 2), self.backward / batches
        if backward > 1 and trainer.accumulate_grad_batches > 1:
            why = f"its optimizer computes {backward:g} gradients of each part; set it to 1"
            raise InputError(f"trainer.accumulate = {trainer.accumulate_grad_batches}: must be 1, because {why}")
        if trainer.lr_scheduler_configs[0].scheduler is not self.schedule:
            rule = "must leave the schedule as it is, but a callback has put one that goes by epochs in its place"
            raise InputError(f"trainer.callbacks: {rule}; the whole training is one epoch")
        if "optimizer" in custom_components(module.optim):
            self._check_optimizer(trainer.optimizers[0], module)

    def _check_optimizer(self, optimizer: torch.optim.Optimizer, module: Any) -> None:
        """The optimizer trains every weight that has a gradient, and reads every key of its groups."""
        name = f"optim.optimizer = {module.optim.optimizer.path}"
        weights = dict(module.model.named_parameters())
        grouped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        left_out = [key for key, weight in weights.items() if weight.requires_grad and id(weight) not in grouped]
        still = [key for key in self.learning if torch.equal(weights[key], self.before[key])]
        if untrained := [*left_out, *sorted(still)]:
            remedy = "to keep it as it is, set its requires_grad to False"
            raise InputError(f"{name}: must train every weight, but {untrained[0]} has not changed; {remedy}")
        known = {*optimizer.defaults, "params", "param_names", "initial_lr", "name"}
        for number, group in enumerate(optimizer.param_groups):
            if unread := [key for key in group if key not in known and key not in getattr(group, "read", ())]:
                raise InputError(f"{name}: {unread[0]} of group {number} must be read by it, but is not; leave it out")
            if (factor := group["initial_lr"]) != 1:
                rate = f"the lr of group {number} is a factor: its rate is {factor:g} times that of the schedule"
                Observer.notes = [*Observer.notes, f"{name}: {rate}"]


class _Group(dict):
    """A group of parameters that knows which of its keys were read."""

    def __init__(self, group: dict[str, Any]):
        super().__init__(group)
        self.read: set[Any] = set()

    def __getitem__(self, key: Any) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)
