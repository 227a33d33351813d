"""The regime of a training, beside the paper's: epochs, target tokens per parameter, peak learning rate."""

import pytest
from helpers import little_text

from transformer_pl.config import Config
from transformer_pl.data.batches import token_batches
from transformer_pl.data.epoch import epoch
from transformer_pl.data.prepare import prepare
from transformer_pl.experiments.regime import Regime, describe_regime, papers_regime, regime
from transformer_pl.levels import Level, resolve
from transformer_pl.schedule import learning_rate

KEYS = {"data.vocab_size": 300, "data.batch_tokens": 200, "data.max_length": 12, "optim.max_steps": 50}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A little text, prepared, and its config."""
    folder = tmp_path_factory.mktemp("regime")
    config = resolve([Level("test", KEYS | {"data.path": str(little_text(folder, 2000, 20, 20))})])
    return prepare(config.data, folder / "runs"), config


def test_an_epoch_is_as_long_as_the_batches_of_one(text):
    prepared, config = text
    lengths = [tokens.lengths_with_special for tokens in prepared.split("train")]
    batches = token_batches(*lengths, config.data.batch_tokens, config.data.max_length, 1, 0)
    size = epoch(prepared, config.data.batch_tokens, config.data.max_length)
    assert size.batches == pytest.approx(len(batches), rel=0.05)
    assert size.target_tokens == sum(int(lengths[1][batch].sum()) for batch in batches)
    assert any(length > config.data.max_length for length in lengths[1])  # a pair is left out


def test_the_regime_follows_from_the_config_and_the_text(text):
    prepared, config = text
    size = epoch(prepared, 200, 12)
    ours = regime(config, prepared, 1000)
    assert ours.epochs == pytest.approx(50 / size.batches)
    assert ours.tokens_per_param == pytest.approx(ours.epochs * size.target_tokens / 1000)
    assert regime(config, prepared, 2000).tokens_per_param == pytest.approx(ours.tokens_per_param / 2)


@pytest.mark.parametrize(
    "keys", [{}, {"model.width": 0.125, "optim.warmup": 400, "optim.lr_scale": 0.5}, {"optim.max_steps": 300}]
)
def test_the_peak_rate_is_the_highest_of_the_schedule(text, keys):
    config = resolve([Level("test", keys)])
    optim, d_model = config.optim, round(512 * config.model.width)
    steps = range(1, min(config.steps, 20_000) + 1)
    highest = max(learning_rate(step, d_model, optim.warmup, optim.lr_scale) for step in steps)
    assert regime(config, text[0], 1).peak_rate == pytest.approx(highest)


def test_the_paper_s_regime():
    """100K steps of 25,000 target tokens, 65M parameters, and the rate at the end of 4,000 steps of warm-up."""
    paper = papers_regime()
    assert paper.epochs == pytest.approx(100_000 * 25_000 / (4.5e6 * 30), rel=0.05)
    assert paper.tokens_per_param == pytest.approx(38, abs=0.5) and paper.peak_rate == pytest.approx(7.0e-4, abs=1e-5)
    assert Config().optim.warmup == 4000


def test_the_sentence_names_the_paper_and_the_range_of_rows():
    base, deep = Regime(1.62, 0.77, 0.00625), Regime(1.62, 0.5, 0.00625)
    told = describe_regime(base, [base, deep])
    assert all(number in told for number in ("1.6 epochs", "18)", "0.77 target", "0.5 to 0.77", "0.0063", "0.0007"))
    unknown = describe_regime(Regime(None, None, 0.001))
    assert "0.001" in unknown and "target tokens" not in unknown and "epochs" not in unknown
