"""Evaluates a trained model on whole sets: the loss of the references, translations, scores, and attention weights."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import BOS, EOS, Config, Decode, sizes
from transformer_pl.config.components import build, evaluated_model
from transformer_pl.data.batches import batches_in_order, collate, eval_batches, padded
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.model import Transformer, has_weights
from transformer_pl.model.beam_search import CachedSteps, Hypothesis, beam_search
from transformer_pl.model.dry_run import check_classes
from transformer_pl.model.kernels import set_up_gpu
from transformer_pl.model.loss import negative_log_likelihood
from transformer_pl.model.slots import Carrying, carried, carry, parts_with, tell_step
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code
from transformer_pl.task import checked_scores, task_of
from transformer_pl.train.divergence import Diverged, diverged_if_not_finite
from transformer_pl.train.intervention import intervene
from transformer_pl.trials.metrics import perplexity
from transformer_pl.trials.trial_folder import WEIGHTS, TrialFolder
from transformer_pl.trials.trial_of import check_code

POSITIONS = 2**17  # tokens that the hypotheses of a batch may have in all, as their keys and values are kept
LONGEST = 2**12  # source tokens that the length of a translation grows with: one of a whole book ends, too
SHOWN_SENTENCES = 20  # validation sentences whose translations W&B shows


class Likelihood(NamedTuple):
    """How likely each reference is, with all of its pieces, in the order of the text."""

    nll: np.ndarray  # (sentences,) nats: the negative log-likelihood without label smoothing, EOS included
    tokens: np.ndarray  # (sentences,) EOS included

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nll.sum() / self.tokens.sum())


def reference_likelihood(model: Transformer, split: Split, tokens: int) -> Likelihood:
    """Score every reference, in batches of at most `tokens` tokens per language."""
    nll, lengths = np.zeros(len(split.source)), split.target.lengths_with_special
    for indexes, token_nll in _token_nll(model, split, tokens):
        nll[indexes] = token_nll.sum(-1).cpu().numpy()
    return Likelihood(*(np.bincount(split.target.sentence, values) for values in (nll, lengths)))


def _token_nll(model: Transformer, split: Split, tokens: int) -> Iterator[tuple[np.ndarray, Tensor]]:
    """The indexes of the targets of each batch, and the nats of their tokens (B, Lt), 0 for padding."""
    states: list[dict[str, Tensor]] = []
    if split.target.before is not None and any(parts_with(Carrying, model)):
        batches = batches_in_order(split.target, tokens)
    else:
        batches = eval_batches(split.source.lengths_with_special, split.target.lengths_with_special, tokens)
    for indexes in batches:
        batch = collate(split, indexes)
        with _evaluating(model) as device:
            carry(model, states, batch.begins.to(device))
            target = batch.target_out.to(device)
            hidden = model.states(batch.source.to(device), batch.target_in.to(device))
            token_nll = negative_log_likelihood(model.embedding, hidden, target).double()
            states = carried(model)
            carry(model)
        yield indexes, token_nll


def set_likelihood(model: Transformer, config: Config, prepared: Prepared, name: str) -> Likelihood:
    """Score every reference of a set, those of a language model as `data.pieces` and `decode.stride` say."""
    tokens, stride = config.trainer.eval_tokens, config.decode.stride
    if not prepared.joined and stride is None:
        return reference_likelihood(model, prepared.split(name), tokens)
    pieces, earlier, lines = prepared.windows(name, stride)
    ends, nll = np.cumsum(pieces.lengths - earlier), np.zeros(lines.sum())  # of all tokens, in the order of the text
    for indexes, token_nll in _token_nll(model, Split.of_targets(pieces), tokens):
        for index, of_piece in zip(indexes, token_nll.cpu().numpy(), strict=True):
            own = of_piece[earlier[index] : pieces.lengths[index]]
            nll[ends[index] - len(own) : ends[index]] = own
    return Likelihood(np.add.reduceat(nll, np.cumsum(lines) - lines), lines)


def translate(
    model: Transformer, source: Tokens, decode: Decode, tokens: int, on_progress: Callable[[int], Any] = lambda _: None
) -> list[Hypothesis | None]:
    """Return the best translation of every sentence (Section 6.1), or None if there is none.

    Large batches are faster, because the last steps of a batch, with few sentences, cost nearly as much as the first
    ones. To save memory, the hypotheses of a batch have at most POSITIONS tokens in all, if none ends early.

    model: translates.
    source: the sentences.
    decode: the keys of beam search.
    tokens: the most source tokens of a batch.
    on_progress: called with the number of finished sentences.
    """
    translations: list[Hypothesis | None] = [None for _ in range(len(source))]
    lengths, reads_source = source.lengths_with_special, model.encoder_norm is None  # the decoder, before each target
    longest = np.minimum(source.lengths.astype(np.int64), LONGEST) + decode.extra
    kept = longest + reads_source * lengths
    share = -(-kept * decode.beam * tokens // POSITIONS)  # what a sentence takes of `tokens` by its hypotheses
    batches = eval_batches(lengths, np.maximum(lengths, share), tokens)
    if reads_source:
        batches = [batch[lengths[batch] == length] for batch in batches for length in np.unique(lengths[batch])]
    for indexes in batches:
        rows = torch.from_numpy(padded(source, indexes))
        limits = torch.from_numpy(longest[indexes])
        with _evaluating(model) as device:
            step, limits = CachedSteps(model, rows.to(device)), limits.to(device).clamp(min=1)
            outputs = beam_search(step, limits, bos=BOS, eos=EOS, beam=decode.beam, alpha=decode.alpha)
        for index, hypothesis in zip(indexes, outputs, strict=True):
            translations[index] = hypothesis
        on_progress(sum(map(bool, translations)))
    return translations


def best_translations(
    model: Transformer, source: Tokens, tokenizer: Tokenizer, decode: Decode, tokens: int, **options: Any
) -> list[str]:
    """Return the best translation of every sentence as text, which is empty if there is none.

    tokenizer: makes the text; model, source, decode, tokens, options: as for `translate`.
    """
    translations = translate(model, source, decode, tokens, **options)
    return tokenizer.decode([hypothesis.tokens if hypothesis else [] for hypothesis in translations])


def trained_model(config: Config, prepared: Prepared, folder: TrialFolder) -> Transformer:
    """The model of a trained trial as it was scored, after its intervention; on a GPU if there is one.

    Raises an InputError where the code of its components has changed since, and for weights that do not fit.
    """
    check_code(config, folder)  # before anything is imported or built, as a result may name any class
    check_classes(config.model)
    result = folder.result()
    return _load_model(config, prepared, folder, result.scored_step if result else config.steps)


def _load_model(config: Config, prepared: Prepared, folder: TrialFolder, steps: int) -> Transformer:
    set_up_gpu()  # a trial is translated as it was evaluated
    shape = sizes(evaluated_model(config), len(prepared.tokenizer))
    model: Transformer = build(shape.architecture, shape)
    try:
        model.load_state_dict(folder.weights())
    except RuntimeError as error:  # other names, or other shapes
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder.path / WEIGHTS}: cannot be used: {reason}; train the trial again") from None
    tell_step(steps, config.steps, model)  # its own: it may have ended early, or be the best of a longer training
    intervene(model, config)
    return model.cuda() if config.trainer.accelerator != "cpu" and torch.cuda.is_available() else model


def shown_text(prepared: Prepared) -> tuple[list[str], list[str]]:
    """Sources and references of the validation set, as people see them.

    Of a language model these are the beginnings and the whole of the first documents, as far as `data.max_length`
    tokens reach, which bounds the work. A beginning is the first half, up to a blank if there is one.
    """
    if prepared.longest is None:
        return prepared.text("val")
    documents, pieces = prepared.text("val")[1][:SHOWN_SENTENCES], prepared.in_pieces("val")
    first, counts = np.unique(pieces.sentence, return_index=True, return_counts=True)[1:]
    for i in range(len(documents)):
        if counts[i] > 1:
            documents[i] = prepared.tokenizer.decode([pieces[first[i]].tolist()])[0]
    middles = [(len(document) + 1) // 2 for document in documents]
    halves = [document[:middle] for document, middle in zip(documents, middles, strict=True)]
    return [half[: half.rfind(" ")] if " " in half else half for half in halves], documents


def continuations(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], most: int, temperature: float = 0.0, seed: int = 1
) -> list[str]:
    """Each text with what a language model adds to it, until it ends the text.

    model: a decoder alone.
    tokenizer: makes tokens and text.
    texts: the beginnings.
    most: tokens that are added to each.
    temperature: of the probabilities that tokens are drawn by; 0: always the most probable token.
    seed: of the draws, which are the same for a text wherever it stands.
    """
    whole = []
    for text in texts:
        ids, generator = [BOS, *map(int, tokenizer.encode([text], "target")[0])], torch.Generator().manual_seed(seed)
        given = len(ids)
        with _evaluating(model) as device:
            step = CachedSteps(model, torch.full((1, 1), EOS, device=device))
            for _ in range(most):  # the first step reads all that is given
                prefix = torch.tensor([[ids]], device=device)
                logits = step(prefix, torch.zeros(1, 1, dtype=torch.long, device=device))[0, 0].cpu()
                if temperature:
                    ids.append(int((logits / temperature).softmax(0).multinomial(1, generator=generator)))
                else:
                    ids.append(int(logits.argmax()))
                if ids[-1] == EOS:
                    break
        before, after = tokenizer.decode([ids[:given], ids])
        whole.append(text + after[len(before) :])
    return whole


class SetScores(NamedTuple):
    """The scores of a model on one set."""

    metrics: dict[str, float]  # loss (nats per token), ppl, and the task's metrics, such as bleu
    hypotheses: list[str]  # its outputs; none of a language model
    sentences: np.ndarray  # (sentences, k + 2): the k numbers of the task's measure, nats, tokens
    signature: str  # how the task computed its score


def score_set(model: Transformer, config: Config, prepared: Prepared, name: str) -> SetScores:
    """Evaluate a model on a set, such as `val`, with beam search and task as in the config.

    Raises a FloatingPointError where the probabilities of translations are not finite.
    """
    split, tokens = prepared.split(name), config.trainer.eval_tokens
    likelihood = set_likelihood(model, config, prepared, name)
    hypotheses: list[str] = []
    if task_of(config.data).has_source:
        hypotheses = best_translations(model, split.source, prepared.tokenizer, config.decode, tokens)
    return _scores(config, prepared, name, likelihood, hypotheses)


def _scores(config: Config, prepared: Prepared, name: str, likelihood: Likelihood, hypotheses: list[str]) -> SetScores:
    scores, measure = checked_scores(hypotheses, prepared.text(name)[1], config), task_of(config.data).measure
    metrics = {"loss": likelihood.loss, "ppl": perplexity(likelihood.loss)} | scores.metrics
    sentences = np.column_stack([scores.statistics, likelihood.nll, likelihood.tokens])
    if measure.of_loss:
        metrics[measure.name] = float(measure.score(sentences.sum(0)))
    return SetScores(metrics, hypotheses, sentences, scores.signature)


class Evaluation(NamedTuple):
    """The scores of a trained model."""

    metrics: dict[str, float]  # val/* and so on: loss (nats per token), ppl, and the task's metrics, such as bleu
    signature: str  # how the score was computed
    examples: list[dict[str, str]]  # a few sentences of the validation set, with what the model makes of them


def evaluate_trial(config: Config, folder: TrialFolder, prepared: Prepared, steps: int) -> Evaluation:
    """Evaluate the weights of a trial in fp32 on all sets, and save its translations and their statistics.

    steps: how many steps these weights were trained.

    Raises Diverged where the loss of a set, or the probabilities of translations, are not finite.
    """
    metrics: dict[str, float] = {}
    sets, task = config.data.evaluated, task_of(config.data)
    model = _load_model(config, prepared, folder, steps)  # not `trained_model`: this process has trained with this code
    likelihoods = [set_likelihood(model, config, prepared, name) for name in sets]
    if not np.isfinite([likelihood.loss for likelihood in likelihoods]).all():
        raise Diverged(steps)
    with diverged_if_not_finite(steps):
        outputs = _outputs(model, config, folder, prepared)
    for name, likelihood in zip(sets, likelihoods, strict=True):
        scores = _scores(config, prepared, name, likelihood, outputs[name] if task.has_source else [])
        metrics |= {f"{name}/{metric}": value for metric, value in scores.metrics.items()}
        folder.save_sentences(name, outputs[name], task.measure, scores.sentences, prepared.documents(name))
    names = ("source", "reference", "translation") if task.has_source else ("beginning", "document", "continued")
    examples = list(zip(*shown_text(prepared), outputs["val"], strict=True))[:SHOWN_SENTENCES]
    shown = [dict(zip(names, example, strict=True)) for example in examples]
    return Evaluation(metrics, scores.signature, shown)


def _outputs(model: Transformer, config: Config, folder: TrialFolder, prepared: Prepared) -> dict[str, list[str]]:
    """The translations of each set; of a language model, how it continues the beginnings of `shown_text`.

    Few large batches are faster, so val and test are decoded together. Further sets change nothing in the batches of
    these.
    """
    tokenizer, decode, tokens = prepared.tokenizer, config.decode, config.trainer.eval_tokens
    outputs: dict[str, list[str]] = {name: [] for name in config.data.evaluated}
    if not task_of(config.data).has_source:
        return outputs | {"val": continuations(model, tokenizer, shown_text(prepared)[0], decode.extra)}
    sources = {name: prepared.split(name).source for name in outputs}
    total, before = sum(map(len, sources.values())), 0
    for names in [("val", "test"), *((name,) for name in config.data.further)]:

        def report(done: int, before: int = before) -> None:
            folder.set_status("running", translated=f"{before + done}/{total}")

        joined = Tokens.joined([sources[name] for name in names])
        found = iter(best_translations(model, joined, tokenizer, decode, tokens, on_progress=report))
        outputs |= {name: list(itertools.islice(found, len(sources[name]))) for name in names}
        before += len(joined)
    return outputs


def attention_maps(model: Transformer, source: Tensor, target: Tensor) -> dict[str, list[Tensor]]:
    """Return the attention weights of every layer: for each site, one tensor (B, h, Lq, Lk) per layer.

    source (B, Ls), target (B, Lt), padded. The sites are `encoder`, `decoder` and `cross`. A site is left out if its
    attention component has no method `weights`. Some attentions have weights below 0 or above 1. Without an encoder
    `cross` is what the target's tokens see of the source; all sources then have the same length.
    """
    maps: dict[str, list[Tensor]] = {}
    hooks = []

    def record(site: str, attention: Any, inputs: tuple, named: dict[str, Any]) -> None:
        Q, K, _, *mask_and_start = inputs
        maps.setdefault(site, []).append(attention.weights(Q, K, *mask_and_start, **named))

    for name, module in model.named_modules():
        if name.endswith("attention.attention") and has_weights(module):
            site = "cross" if "cross" in name else name.partition(".")[0]
            hooks.append(module.register_forward_pre_hook(partial(record, site), with_kwargs=True))
    try:
        with _evaluating(model) as device:
            model(source.to(device), target.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    end = source.shape[1] - 1
    if model.encoder_norm is None and end and maps:  # the decoder has read all of the source but EOS
        of_target = [weights[..., end:, :] for weights in maps["decoder"]]
        cross = [F.pad(weights[..., :end], (0, 1)) for weights in of_target]
        return {"decoder": [weights[..., end:] for weights in of_target], "cross": cross}
    return maps


@contextmanager
def _evaluating(model: Transformer) -> Iterator[torch.device]:
    """Switch off dropout and gradients. Yields the model's device."""
    training = model.training
    model.eval()
    try:
        with component_code(), torch.no_grad():  # a component may extend a table here that training uses, too
            yield next(model.parameters()).device
    finally:
        model.train(training)
