"""A trained language model in lm-evaluation-harness, where that is installed."""

import json
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_trials
import torch
import yaml
from forked import command
from helpers import little_text

from transformer_pl.api import load_trial
from transformer_pl.config import BOS, EOS
from transformer_pl.lm_eval import TrialLM
from transformer_pl.runtime.errors import InputError

TASK = "transformer_pl.tasks.language_model.LanguageModel"
needs_lm_eval = pytest.mark.skipif(not find_spec("lm_eval"), reason="pip install -c constraints.txt -e '.[eval]'")
needs_its_models = pytest.mark.skipif(
    not (find_spec("lm_eval") and find_spec("accelerate")),
    reason="pip install -c constraints.txt -e '.[eval]' accelerate",
)
MOST = 9  # tokens of the longest piece
TEXTS = ["ein hund", "ein hund ein hund ein mann ein hund ein mann", "hund", ""]


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Of documents of three lines, scored in pieces that reach back."""
    folder = tmp_path_factory.mktemp("lm")
    lines = (little_text(folder / "text") / "val.de").read_text().splitlines()
    (folder / "text" / "val.de").write_text("\n\n".join("\n".join(lines[i : i + 3]) for i in range(0, len(lines), 3)))
    keys = {"data.task": TASK, "model.N_encoder": 0, "data.vocab_size": 300, "data.max_length": MOST, "decode.extra": 9}
    keys |= {"data.pieces": "joined", "decode.stride": MOST, "data.path": folder / "text"}
    with tiny_trials.unrehearsed():
        code, trained = tiny_trials.train(folder / "runs", keys)
    assert code == 0
    return load_trial(trained.path)


def asked(*arguments):
    """A request of lm-eval."""
    return SimpleNamespace(args=arguments)


def log_probabilities(trial, ids):
    """Of each token after the first, by one pass over this text alone."""
    with torch.no_grad():
        found = trial.model(torch.tensor([[EOS]]), torch.tensor([ids[:-1]]))[0].log_softmax(-1).double()
    return found[range(len(ids) - 1), ids[1:]].tolist()


def tokens(trial, text):
    return trial.tokenizer.encode([text], "target")[0].tolist()


@needs_lm_eval
def test_a_likelihood_is_that_of_the_text_alone(trial):
    """Whatever it is asked beside; a context that is too long is cut behind BOS."""
    requests = [asked(context, f" {end}") for context in TEXTS for end in ("ein", "hund mann")]
    found = TrialLM(trial).loglikelihood(requests)
    for request, (score, is_greedy) in zip(requests, found, strict=True):
        context, end = request.args
        count = len(tokens(trial, context + end)) - len(tokens(trial, context))
        ids = tokens(trial, context + end)
        kept = [BOS, *ids[-max(MOST, count) :]] if len(ids) > MOST else [BOS, *ids]
        assert score == pytest.approx(sum(log_probabilities(trial, kept)[-count:]), abs=1e-5)
        logits = trial.model(torch.tensor([[EOS]]), torch.tensor([kept[:-1]]))[0, -count:]
        assert is_greedy == (logits.argmax(-1).tolist() == kept[-count:])
    assert len({len(tokens(trial, context)) > MOST for context in TEXTS}) == 2


def harness(trial, encode):
    """lm-eval's own likelihoods of a model of Hugging Face's, which has our weights, and tokens by `encode`."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.huggingface import HFLM

    class Harness(HFLM):
        def __init__(self):
            TemplateLM.__init__(self)
            self._max_length, self.custom_prefix_token_id = MOST, BOS
            self._device, self._rank, self._world_size = torch.device("cpu"), 0, 1
            self.backend, self.batch_size_per_gpu = "causal", 3
            self.logits_cache = False  # which in 0.4.13 confuses the ends of one text that begin at different places
            self.softmax_dtype, self.enable_thinking = torch.double, False

        def tok_encode(self, string, add_special_tokens=None, **_):
            return encode(string)[add_special_tokens is False :]

        def _model_call(self, inps):
            with torch.no_grad():
                return trial.model(torch.full((len(inps), 1), EOS), inps)

    return Harness()


@needs_its_models
def test_likelihoods_are_those_that_lm_eval_computes_itself(trial):
    """Of texts in windows of the longest piece, and of how a text that fits into one goes on."""
    rolled = [asked(text) for text in TEXTS]
    theirs = harness(trial, lambda text: tokens(trial, text)).loglikelihood_rolling(rolled)
    assert TrialLM(trial).loglikelihood_rolling(rolled) == pytest.approx(theirs, rel=1e-6)
    pairs = [asked(context, f" {end}") for context in ("", "ba", "ba di") for end in ("ba", "di ba", "e")]
    theirs = harness(trial, lambda text: [BOS, *tokens(trial, text)]).loglikelihood(pairs)
    for ours, (score, is_greedy) in zip(TrialLM(trial).loglikelihood(pairs), theirs, strict=True):
        assert ours == (pytest.approx(score, rel=1e-6), is_greedy)


@needs_its_models
def test_a_loss_in_pieces_that_reach_back_is_that_of_lm_eval_s_windows(trial):
    """Of documents, whose lines end with EOS; the stride is the longest piece."""
    lines = trial._prepared.text("val")[1]
    documents = ["\n".join(lines[start : start + 3]) for start in range(0, len(lines), 3)]

    def ids(text):
        return [token for line in text.split("\n") for token in (*tokens(trial, line), EOS)]

    theirs = harness(trial, ids).loglikelihood_rolling([asked(document) for document in documents])
    assert min(len(ids(document)) for document in documents) > MOST
    scores = [json.loads(line) for line in (trial.folder / "scores.val.jsonl").read_text().splitlines()]
    ours = np.bincount([line["document"] for line in scores], [line["nll"] for line in scores])
    assert ours == pytest.approx([-log for log in theirs], rel=1e-6)


@needs_lm_eval
def test_a_text_goes_on_up_to_what_ends_it(trial):
    whole = trial.translate("ein hund")[len("ein hund") :]
    for until in ([], [whole[2:3]], whole[1:4]):
        (output,) = TrialLM(trial).generate_until([asked("ein hund", {"until": until, "max_gen_toks": 9})])
        assert output == (whole.split(until if isinstance(until, str) else until[0])[0] if until else whole)


@needs_lm_eval
def test_a_translator_is_refused(tmp_path):
    with tiny_trials.unrehearsed():
        _, trained = tiny_trials.train(tmp_path / "runs", {})
    with pytest.raises(InputError, match="language model"):
        TrialLM(load_trial(trained.path))


@needs_lm_eval
@pytest.mark.slow
def test_the_command_hands_its_arguments_to_lm_eval(trial, tmp_path):
    little_text(tmp_path / "text")
    lines = (tmp_path / "text" / "val.de").read_text().splitlines()[:6]
    pairs = [{"good": line, "bad": " ".join(reversed(line.split()))} for line in lines]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    task = {"task": "pairs", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice"}
    task |= {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "pairs.jsonl")}}, "doc_to_text": ""}
    task |= {"doc_to_choice": "{{[good, bad]}}", "doc_to_target": 0, "metric_list": [{"metric": "acc"}]}
    (tmp_path / "pairs.yaml").write_text(yaml.safe_dump(task))
    words = ["--tasks", "pairs", "--include_path", tmp_path, "--log_samples", "--output_path", tmp_path / "out"]
    done = command("lm_eval", f"trial={trial.folder}", *words)
    assert done.returncode == 0, done.stderr
    (samples,) = (tmp_path / "out" / trial.folder.name).glob("samples_pairs_*.jsonl")
    assert [json.loads(line)["doc"] for line in samples.read_text().splitlines()] == pairs


@pytest.mark.parametrize("words", [["--tasks", "pairs"], ["trial=none-s1-0123456789ab", "--tasks", "pairs"]])
def test_without_a_trial_or_without_lm_eval_nothing_is_started(words):
    done = command("lm_eval", *words)
    assert done.returncode == 2 and done.stderr.startswith("error: ")
