"""The final evaluation of a trial, on its validation set and its test set."""

import itertools
import math
from typing import NamedTuple

from transformer_pl.config import Config
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokens import Tokens
from transformer_pl.evaluation.evaluate import best_translations, reference_likelihood, trained_model
from transformer_pl.model import Transformer
from transformer_pl.task import checked_scores, task_of
from transformer_pl.trials.divergence import Diverged, diverged_if_not_finite
from transformer_pl.trials.trial import Trial

EXAMPLES = 20  # validation sentences whose translations W&B shows


class Evaluation(NamedTuple):
    """What a trained model is worth."""

    params: int
    metrics: dict[str, float]  # val/* and test/*: loss (nats per token), ppl, and the task's metrics, such as bleu
    score: str  # which of these the task compares rows by, such as bleu
    signature: str  # how that was computed
    examples: list[dict[str, str]]  # a few sentences of the validation set, their references and translations


def evaluate_trial(config: Config, trial: Trial, prepared: Prepared) -> Evaluation:
    """Evaluate the trial's weights in fp32 and save its translations and their statistics.

    Raises Diverged where the loss of a set, or the probabilities of translations, are not finite.
    """
    with trained_model(config, prepared, trial) as model:
        return _evaluate(model, config, trial, prepared)


def _evaluate(model: Transformer, config: Config, trial: Trial, prepared: Prepared) -> Evaluation:
    metrics: dict[str, float] = {}
    examples: list[dict[str, str]] = []
    sets, tokens, task = ("val", "test"), config.trainer.eval_tokens, task_of(config.data)
    splits = [prepared.split(name) for name in sets]
    likelihoods = [reference_likelihood(model, split, tokens) for split in splits]
    if not all(math.isfinite(nll.loss) for nll in likelihoods):
        raise Diverged(config.steps)
    every = Tokens.joined([split.source for split in splits])  # decoded together: few large batches are faster
    with diverged_if_not_finite(config.steps):
        translations = iter(best_translations(model, every, prepared.tokenizer, config.decode, tokens))
    for name, split, nll in zip(sets, splits, likelihoods, strict=True):
        sources, references = prepared.text(name)
        hypotheses = list(itertools.islice(translations, len(split.source)))
        scores = checked_scores(hypotheses, references, config)
        metrics |= {f"{name}/loss": nll.loss, f"{name}/ppl": nll.perplexity}
        metrics |= {f"{name}/{metric}": value for metric, value in scores.metrics.items()}
        first = zip(sources[:EXAMPLES], references, hypotheses, strict=False)
        examples = examples or [{"source": s, "reference": r, "translation": h} for s, r, h in first]
        trial.save_sentences(name, hypotheses, task.measure.name, scores.statistics, nll.nll, nll.tokens)
    params = sum(p.numel() for p in model.parameters())
    return Evaluation(params, metrics, task.measure.name, scores.signature, examples)
