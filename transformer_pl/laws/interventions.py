"""The laws of interventions (`decode.intervention`): each is tried on an untrained model of its row's sizes."""

import copy
import sys
from functools import cache, partial

import torch
from torch import Tensor

from transformer_pl.config import BOS, EOS, Config, sizes
from transformer_pl.laws.law import HOLDS, Finding, Found, broken, found
from transformer_pl.model import Transformer
from transformer_pl.model.beam_search import CachedSteps, beam_search
from transformer_pl.model.dry_run import dry_run, small_model
from transformer_pl.train.intervention import intervene

TOKENS = 3  # that a model must decode


class Subject:
    """An intervention, by the config that names it, and a model for it."""

    def __init__(self, config: Config):
        shape = sizes(config.model, config.data.vocab_size)
        self.config, self.device = config, dry_run(shape)
        _, self.model, self.source, self.target = small_model(shape)

    @torch.no_grad()
    def logits(self, model: Transformer) -> Tensor:
        return model.eval().to(self.device)(self.source.to(self.device), self.target.to(self.device))

    def changed(self) -> Transformer:
        """A copy of the model, changed."""
        model = copy.deepcopy(self.model)
        intervene(model, self.config)
        return model


def findings(config: Config) -> list[Found]:
    """What each law has seen of the intervention of a config."""
    subject = cache(partial(Subject, config))
    return found(f"decode.intervention = {config.decode.intervention.path}", sys.modules[__name__], subject)


def it_leaves_a_model_that_runs(subject: Subject) -> Finding:
    """It changes a model of the row's sizes, which then computes and decodes."""
    model, source = subject.changed(), subject.source.to(subject.device)
    subject.logits(model)
    with torch.no_grad(), torch.device(subject.device):
        limits = torch.full((len(source),), TOKENS)
        beam_search(CachedSteps(model, source), limits, bos=BOS, eos=EOS, beam=2, alpha=subject.config.decode.alpha)
    return HOLDS


def two_calls_give_the_same_model(subject: Subject) -> Finding:
    """Two calls give the same model: a trial is loaded as it was scored.

    Usual cause: random numbers of a generator of its own, the time, or a file that it changes.
    """
    one, other = (subject.logits(model) for model in (subject.changed(), subject.changed()))
    return HOLDS if torch.equal(one, other) else broken(f"logits differ by up to {(one - other).abs().max():.2g}")


def it_changes_what_the_model_computes(subject: Subject) -> Finding:
    """It changes what the model computes; one that changes nothing is named in a note."""
    before, after = (subject.logits(model) for model in (subject.model, subject.changed()))
    return Finding("holds", "it changes nothing: the model computes the same after it" if before.equal(after) else "")
