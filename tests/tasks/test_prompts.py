"""A decoder alone that reads a source: `model.N_encoder=0` with a task that has one."""

import pytest
import small_models
import tiny_trials
import torch

from transformer_pl.api import load_trial
from transformer_pl.config import BOS, EOS, Decode
from transformer_pl.data.tokens import Tokens
from transformer_pl.laws import components as of_components
from transformer_pl.laws.law import laws_of
from transformer_pl.model.beam_search import length_penalty
from transformer_pl.model.dry_run import small_model
from transformer_pl.train.evaluate import translate
from transformer_pl.trials.trial_folder import TrialFolder

PREFIX = """
import torch
from transformer_pl.model import ScaledDotProductAttention, softmax


class Prefix(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        seen = mask.dense(Q, K, start)
        if mask.source is not None:
            seen = seen | (torch.arange(K.shape[-2], device=K.device) < mask.source[:, None, None, None])
        return softmax(Q @ K.mT * Q.shape[-1] ** -0.5, seen) @ V
"""


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    with tiny_trials.unrehearsed():
        code, trained = tiny_trials.train(folder / "runs", {"model.N_encoder": 0, "decode.beam": 3})
    assert code == 0
    return load_trial(trained.path)


@pytest.fixture(scope="module")
def prepared(trial):
    return TrialFolder(trial.folder).prepared(trial.config.data)


def log_probability(model, source, output):
    """Of a whole output with its end, given a source without EOS: by one pass over the two as one text."""
    ids = torch.tensor([[*source, BOS, *output]])
    with torch.no_grad():
        found = model(torch.tensor([[EOS]]), ids)[0, len(source) :].log_softmax(-1)
    return found[range(len(output) + 1), [*output, EOS]].sum().item()


@pytest.mark.parametrize("incremental", [True, False])
def test_beam_search_scores_outputs_as_one_pass_does(incremental):
    """Whatever the lengths of the sentences beside them, also of none."""
    model = small_models.built(small_models.small({"model.N_encoder": 0})).eval()
    model.embedding.incremental = incremental
    lengths = [3, 0, 5, 3, 1, 7, 5, 3]
    tokens = torch.randint(4, small_models.VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    source, decode = Tokens.of(tokens.numpy(), lengths), Decode(beam=3, alpha=0.6, extra=2)
    found = translate(model, source, decode, 30)
    assert len({len(one.tokens) for one in found}) > 2
    for i, one in enumerate(found):
        expected = log_probability(model, source[i].tolist(), one.tokens) / length_penalty(len(one.tokens) + 1, 0.6)
        assert one.score == pytest.approx(expected, abs=1e-4)


def test_the_loss_is_of_the_target_alone(trial, prepared):
    split, measured = prepared.split("val"), trial.score().sentences
    for i in range(len(split.source)):
        expected = -log_probability(trial.model, split.source[i].tolist(), split.target[i].tolist())
        assert measured[i, -2:] == pytest.approx([expected, len(split.target[i]) + 1], abs=1e-3)
    assert trial.result.metrics["val/bleu"] == pytest.approx(trial.score().metrics["bleu"])
    sentence = prepared.text("val")[0][0]
    maps = trial.attention(sentence, prepared.text("val")[1][0])
    both = torch.cat([maps["cross"], maps["decoder"]], -1)
    assert torch.allclose(both.sum(-1), torch.ones(both.shape[:-1])) and maps["cross"].any()


def test_a_mask_says_where_the_source_ends(module):
    """So an attention may look at all of it. Decoding and padding then keep the laws, and the source is seen whole."""
    module(PREFIX, "prefix")
    config = small_models.small({"model.N_encoder": 0, "model.attention": "prefix.Prefix"})
    broken = {name for name, law in laws_of(of_components).items() if law(small_model(config)).state == "BROKEN"}
    assert not broken
    cost, causal = (
        small_models.forward_cost(one, 1, 5, 4).flops for one in (config, small_models.small({"model.N_encoder": 0}))
    )
    assert cost == causal
