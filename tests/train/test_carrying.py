"""What a part of the model carries from a piece of a document to the next, in training, evaluation and checkpoints."""

import json

import numpy as np
import pytest
import tiny_trials
import torch
import torch.nn.functional as F
from small_trainings import Cut, Power, config, fit

from transformer_pl.api import load_trial
from transformer_pl.config import BOS, EOS, PAD
from transformer_pl.data.batches import batches_in_order
from transformer_pl.data.datamodule import DataModule
from transformer_pl.data.prepare import prepare
from transformer_pl.model.slots import carried, carry
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.checkpoint import Checkpoints
from transformer_pl.train.module import TransformerModule

FILE = "ablations.segment_memory"
KEYS = {"data.task": "transformer_pl.tasks.language_model.LanguageModel", "model.N_encoder": 0, "optim.eps_ls": 0.0}
KEYS |= {"data.pieces": "joined", "data.batches": f"{FILE}.ConsecutiveBatches", "data.max_length": 6}
KEYS |= {"model.attention": f"{FILE}.TransformerXLAttention", "model.position": "ablations.no_position.NoPosition"}
KEYS |= {"model.self_attention": f"{FILE}.SegmentMemory", "model.self_attention.memory": 5, "data.batch_tokens": 26}
KEYS |= {"data.vocab_size": 275, "model.p_drop": 0.0, "trainer.eval_tokens": 20}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Documents of one to nine lines."""
    folder, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(3)
    for split, count in (("train", 30), ("val", 9), ("test", 5)):
        documents = [
            "\n".join(" ".join(rng.choice(["ab", "abba", "ö", "baab"], rng.integers(1, 9))) for _ in range(lines))
            for lines in rng.integers(1, 10, count)
        ]
        (folder / f"{split}.txt").write_text("\n\n".join(documents))
    return folder


def of(text, **keys):
    given = {key.replace(".", "__"): value for key, value in KEYS.items()}
    return config(**given | {"data__path": str(text), "trainer__log_every": 1} | keys)


@pytest.fixture(scope="module")
def prepared(text):
    return prepare(of(text).data, text.parent / "runs")


@pytest.mark.parametrize("world", [1, 2, 4])
def test_documents_lie_side_by_side_in_an_evaluation(prepared, world):
    """Every piece comes once, on one rank, and where it does not begin a document, after the piece before it."""
    target, seen = prepared.split("val").target, []
    for rank in range(world):
        before = np.array([], dtype=int)
        for batch in batches_in_order(target, 20, rank, world):
            begins = target.before[batch] == BOS
            assert begins.all() or ((batch == before[: len(batch)] + 1).all() and not begins.any())
            assert len(batch) <= 20 // 6
            before, seen = batch, [*seen, *batch.tolist()]
    assert sorted(seen) == list(range(len(target)))


def losses_of_documents(model, ids, cuts, memory=True):
    """The nats of each token, of one document after another, in pieces of so many tokens."""
    found = []
    for document in ids:
        states = []
        for start in range(0, len(document) - 1, cuts):
            piece = torch.tensor([document[start : start + cuts + 1]])
            with torch.no_grad():
                carry(model, states if memory else [], torch.tensor([start == 0]))
                logits = model(torch.full((1, 1), EOS), piece[:, :-1])[0].double()
                states = carried(model)
            found += F.cross_entropy(logits, piece[0, 1:], reduction="none").tolist()
    carry(model)
    return found


def test_a_document_has_the_same_loss_whole_and_in_pieces_with_a_long_memory(text, tmp_path):
    """And with a short one, that of a loop over its pieces. A longer memory in evaluation costs no training."""
    trials = {}
    for memory in (None, 500, 0):
        runs = tmp_path / str(memory)
        runs.mkdir()
        with tiny_trials.unrehearsed():
            keys = KEYS | {"data.path": text, "decode.memory": memory}
            code, files = tiny_trials.train(runs, keys)
        assert code == 0
        trials[memory] = load_trial(files.path, runs)
    short, long, none = trials.values()
    assert short.result.weights_id == long.result.weights_id == none.result.weights_id
    assert short.result.id != long.result.id
    assert short.result.metrics["val/loss"] == pytest.approx(short.result.losses[4], rel=1e-5)
    ids = []
    for document in (text / "val.txt").read_text().split("\n\n"):
        rows = short.tokenizer.encode(document.split("\n"), "target").rows()
        ids.append([BOS, *(token for row in rows for token in [*row, EOS])])
    model = short.model
    expected = {
        None: losses_of_documents(model, ids, 6),
        500: losses_of_documents(model, ids, 1000, memory=False),
        0: losses_of_documents(model, ids, 6, memory=False),
    }
    totals = {memory: sum(losses) for memory, losses in expected.items()}
    assert len({round(total, 3) for total in totals.values()}) == 3
    for memory, trial in trials.items():
        lines = [json.loads(line) for line in (trial.folder / "scores.val.jsonl").read_text().splitlines()]
        ends = np.cumsum([line["pieces"] for line in lines])
        by_line = np.add.reduceat(expected[memory], [0, *ends[:-1]])
        assert [line["nll"] for line in lines] == pytest.approx(by_line.tolist(), rel=1e-4)
        assert trial.score().metrics["bpb"] == pytest.approx(trial.result.metrics["val/bpb"], rel=1e-6)


def test_a_plain_loop_over_single_rows_trains_the_same(text, prepared):
    """Each row carries its own, whatever part of a batch it is in. A gradient does not flow into earlier batches."""
    settings = of(text, optim__max_steps=8)
    lines = [line for _, line in fit(prepared, settings)[1] if "train/loss" in line]
    _, in_parts = fit(prepared, of(text, optim__max_steps=8, trainer__accumulate=3))
    torch.manual_seed(settings.seed)
    module = TransformerModule(settings, len(prepared.tokenizer))
    optimizer, schedule = module.configure_optimizers().values()
    rows = [[] for _ in range(26 // 6)]
    assert len(rows) % 3  # parts of different sizes
    for step, batch in enumerate(DataModule(settings, prepared).train_dataloader()):
        total = 0.0
        for row in range(len(rows)):
            given, target = batch.target_in[row : row + 1], batch.target_out[row : row + 1]
            carry(module.model, rows[row], given[:, 0] == BOS)
            logits = module.model(batch.source[row : row + 1], given)
            total += F.cross_entropy(logits[0], target[0], ignore_index=PAD, reduction="sum")
            rows[row] = [{name: value.clone() for name, value in state.items()} for state in carried(module.model)]
        optimizer.zero_grad()
        (total / batch.tokens).backward()
        optimizer.step()
        schedule["scheduler"].step()
        assert lines[step]["train/loss"] == pytest.approx(total.item() / batch.tokens, rel=1e-4)
    losses = [line["train/loss"] for _, line in in_parts if "train/loss" in line]
    assert losses == pytest.approx([line["train/loss"] for line in lines], rel=1e-4)


def test_an_interrupted_training_carries_on(text, prepared, tmp_path):
    settings = of(text, model__p_drop=0.2, trainer__accumulate=2)
    whole, expected = fit(prepared, settings)
    with pytest.raises(Power):
        fit(prepared, settings, Cut(part=11), Checkpoints(tmp_path, minutes=0))
    again = Checkpoints(tmp_path)
    checkpoint, step = again.newest()
    assert step == 5
    module, lines = fit(prepared, settings, again, checkpoint=checkpoint)
    without = [{k: v for k, v in line.items() if k != "tokens_per_s"} for at, line in expected if at > 5]
    assert [{k: v for k, v in line.items() if k != "tokens_per_s"} for _, line in lines] == without
    weights = zip(whole.parameters(), module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert not any("known" in name for name in module.state_dict())
    saved = torch.load(checkpoint, weights_only=True)
    saved["carried"] *= 2
    torch.save(saved, checkpoint)
    with pytest.raises(InputError, match=r"trainer\.devices"):
        fit(prepared, settings, Checkpoints(tmp_path), checkpoint=checkpoint)
