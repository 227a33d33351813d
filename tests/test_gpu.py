"""What a GPU must show:  pytest -m gpu.  Without that option, or without a GPU, as much of it runs on the CPU as can.

The references are float64 on the CPU, so that the tests mean something there, too.
"""

import json
import re

import lightning as L
import pytest
import tiny_trials
import torch
import torch.nn.functional as F
from forked import command, running
from helpers import ROOT, little_text, wait_for
from shipped_components import components, each
from small_models import batch, built, small
from small_trainings import config, fit
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_pl.config import BOS, EOS, PAD, Optim, custom_components
from transformer_pl.config.components import import_component
from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.laws import components as of_components
from transformer_pl.laws.law import laws_of
from transformer_pl.model import Dropout, Mask, ScaledDotProductAttention, SharedEmbedding
from transformer_pl.model.beam_search import CachedSteps, beam_search
from transformer_pl.model.dry_run import small_model
from transformer_pl.model.kernels import set_up_gpu
from transformer_pl.model.loss import SmoothedCrossEntropy
from transformer_pl.trials.trial_folder import TrialFolder

LAWS = laws_of(of_components)
pytestmark = [
    pytest.mark.gpu,
    # Torch warns once in a process: where a backward pass begins with a product, and where a wait will be an error.
    pytest.mark.filterwarnings("ignore:.*no current CUDA context"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    *([] if torch.cuda.is_available() else [pytest.mark.slow]),  # other tests say the same of a CPU every day
]
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
CARDS = torch.cuda.device_count()
HAS_BFLOAT16 = not GPU or torch.cuda.is_bf16_supported(including_emulation=False)
LOW = torch.bfloat16 if HAS_BFLOAT16 else torch.float16
MIXED = "bf16-mixed" if HAS_BFLOAT16 else "16-mixed"
on_a_gpu = pytest.mark.skipif(not GPU, reason="no GPU, or not with -m gpu")
COMPONENTS = components() if GPU else {"base": {}}  # other tests try all of them on a CPU
WAITING = pytest.mark.xfail(GPU, reason="R-Drop indexes by booleans, for which the host waits", strict=True)
TRAININGS = [
    pytest.param(keys, False, id=name, marks=[WAITING] if "RDrop" in name else [])
    for name, keys in (components(training=True) if GPU else {"base": {}}).items()
]


@pytest.fixture(autouse=True)
def as_a_command():
    set_up_gpu()
    torch.manual_seed(1)


# ---------------------------------------------------------------------------------------------------------------------
# The model


@pytest.mark.parametrize("keys", COMPONENTS.values(), ids=COMPONENTS)
def test_a_component_keeps_its_properties(keys):
    model = resolve([Level("test", keys)]).model
    exempt = {
        name for one in custom_components(model).values() for name in getattr(import_component(one.path), "exempt", {})
    }
    for name in LAWS:
        with torch.device(DEVICE):
            assert name in exempt or LAWS[name](small_model(small(keys))).state != "BROKEN"


@each(components())
def test_logits_and_gradients_are_those_of_float64(keys):
    model, reference, (source, target) = built(small(keys)).to(DEVICE), built(small(keys)).double(), batch()
    reference.load_state_dict(model.state_dict())
    for one in (model, reference):
        one.eval()  # what is drawn at random, such as a depth, is not the same in two types
    ours, expected = model(source.to(DEVICE), target.to(DEVICE)), reference(source, target)
    real = target != PAD
    torch.testing.assert_close(ours.cpu().double()[real], expected[real], atol=1e-4, rtol=1e-4)
    for logits, where in ((ours, real.to(DEVICE)), (expected, real)):
        logits[where].square().mean().backward()
    weights = zip(model.parameters(), reference.parameters(), strict=True)
    for weight, exact in ((one, other) for one, other in weights if other.grad is not None):
        scale = exact.grad.abs().max().item()
        torch.testing.assert_close(weight.grad.cpu().double(), exact.grad, atol=1e-3 * scale + 1e-6, rtol=0)


class Attention(TorchDispatchMode):
    """Notes which of torch's kernels compute attention."""

    def __init__(self):
        super().__init__()
        self.kernels = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.kernels |= set(re.findall(r"^aten\._scaled_dot_product_(\w+)_attention", str(operation)))
        return operation(*args, **kwargs or {})


@pytest.mark.parametrize(("mask", "on_ampere"), [("keys", "efficient"), ("causal", "flash"), ("both", "efficient")])
def test_attention_is_computed_by_a_fused_kernel(mask, on_ampere):
    """Of encoder and cross-attention; of the decoder, which needs no mask tensor in training; of both at once."""
    dtype = LOW if GPU else torch.float32  # a CPU has one fused kernel, of float32
    Q, K, V = (torch.randn(4, 8, 40, 64, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3))
    keys = torch.arange(40, device=DEVICE) < torch.tensor([[40], [31], [7], [1]], device=DEVICE)
    seen = Mask(None if mask == "causal" else keys, mask != "keys")
    with Attention() as computed:
        ScaledDotProductAttention(small(), "decoder")(Q, K, V, seen).sum().backward()
    old = torch.cuda.get_device_capability() < (8, 0) if GPU else False
    assert computed.kernels == {("efficient" if old else on_ampere) if GPU else "flash"}


@pytest.mark.parametrize("dtype", [torch.float32, LOW], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_that_sees_nothing_yields_zeros_and_finite_gradients(dtype, causal):
    Q, K, V = (torch.randn(3, 4, 24, 16, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3))
    keys = torch.arange(24, device=DEVICE) < torch.tensor([[24], [0], [9]], device=DEVICE)
    attention, mask = ScaledDotProductAttention(small(), "decoder"), Mask(keys, causal)
    heads = attention(Q, K, V, mask)
    assert not heads[1].any()
    expected = attention.weights(Q.float(), K.float(), mask) @ V.float()
    torch.testing.assert_close(heads.float(), expected, atol=1e-4 if dtype == torch.float32 else 0.03, rtol=0)
    for gradient in torch.autograd.grad(heads.sum(), (Q, K, V)):
        assert gradient.isfinite().all() and not gradient[1].any()


@pytest.mark.parametrize("p", [0.1, 0.3])
def test_dropout_drops_its_share_and_each_number_for_itself(p):
    dropout = Dropout(p).train()
    ones = torch.ones(8, 64, 4096, device=DEVICE)
    kept, others = (dropout(ones) != 0 for _ in range(2))
    torch.testing.assert_close(dropout(ones).max().item(), 1 / (1 - p), atol=1e-4, rtol=1e-4)
    n, alike = kept.numel(), p * p + (1 - p) ** 2
    pairs = {"rate": (kept, 1 - p), "another draw": (kept == others, alike)}
    for shift in (1, 2, 3):
        pairs |= {f"{axis}, {shift}": (kept == kept.roll(shift, axis), alike) for axis in (0, 1, 2)}
    for name, (share, expected) in pairs.items():
        spread = 6 * (expected * (1 - expected) / n) ** 0.5
        assert share.float().mean().item() == pytest.approx(expected, abs=spread), name


@pytest.mark.parametrize("dtype", [torch.float32, LOW], ids=str)
def test_the_loss_is_that_of_float64(dtype):
    V, eps_ls = 37_000, 0.1
    loss, embedding = SmoothedCrossEntropy(small(), Optim(eps_ls=eps_ls)), SharedEmbedding(small(vocab_size=V), None)
    x, target = torch.randn(5, 11, 24), torch.randint(4, V, (5, 11))
    target[2, 6:] = PAD
    inputs = [one.to(DEVICE).detach().requires_grad_() for one in (x, embedding.weight)]
    exact = [one.detach().double().requires_grad_() for one in (x, embedding.weight)]
    embedding.weight = torch.nn.Parameter(inputs[1])
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        ours = loss.of_states(embedding, inputs[0], target.to(DEVICE))
    options = {"ignore_index": PAD, "reduction": "sum", "label_smoothing": eps_ls}
    expected = F.cross_entropy((exact[0] @ exact[1].T).flatten(0, 1), target.flatten(), **options)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(ours.cpu().double(), expected, rtol=tolerance, atol=0)
    found = torch.autograd.grad(ours, [inputs[0], embedding.weight])
    for gradient, reference in zip(found, torch.autograd.grad(expected, exact), strict=True):
        scale = reference.abs().max().item()
        torch.testing.assert_close(gradient.cpu().double(), reference, rtol=tolerance, atol=tolerance * scale)


def test_beam_search_finds_what_it_finds_in_float64_or_as_good_a_hypothesis():
    model, reference = built(small({"model.p_drop": 0.0})).eval(), built(small()).double().eval()
    source, limits = torch.randint(4, 31, (20, 9)), torch.full((20,), 12)
    reference.load_state_dict(model.state_dict())
    found = []
    for one, device in ((model.to(DEVICE), DEVICE), (reference, "cpu")):
        step = CachedSteps(one, source.to(device))
        found.append(beam_search(step, limits.to(device), bos=BOS, eos=EOS, beam=4, alpha=0.6))
    for ours, expected in zip(*found, strict=True):
        assert ours.score == pytest.approx(expected.score, abs=1e-4)
    assert sum(ours.tokens == expected.tokens for ours, expected in zip(*found, strict=True)) >= 18  # of 20


# ---------------------------------------------------------------------------------------------------------------------
# Training


class NoWaiting(L.Callback):
    """Lets torch raise an error where the host waits for the GPU, in 20 steps after the first ones."""

    steps = 0

    def __init__(self, first):
        self.first = first

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        is_watched = self.first <= batch_idx < trainer.max_steps - 1
        self._set("error" if is_watched else "default")
        self.steps += is_watched

    def on_exception(self, trainer, module, exception):
        self._set("default")

    def _set(self, mode):
        if GPU:
            torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize(("keys", "compiled"), [*TRAININGS, pytest.param({}, True, id="compiled", marks=on_a_gpu)])
def test_twenty_steps_wait_for_nothing(tmp_path, keys, compiled):
    first = 40 if compiled else 2  # which compile
    chosen = {"trainer.accelerator": "auto", "trainer.precision": MIXED, "optim.max_steps": first + 21} | keys
    chosen |= {"trainer.log_every": 100, "trainer.val_every": 100}
    chosen |= {"data.path": str(little_text(tmp_path, 400, 30, 20))}
    one, watch = config(**{key.replace(".", "__"): value for key, value in chosen.items()}), NoWaiting(first)
    fit(prepare(one.data, tmp_path / "runs"), one, watch, compiled=compiled)
    assert watch.steps == 20


def losses(tmp_path, compiled, **keys):
    """The training loss of every step."""
    keys = {"trainer__accelerator": "auto", "trainer__log_every": 1, "trainer__val_every": 100} | keys
    one = config(**keys, data__path=str(little_text(tmp_path, 400, 30, 20)))
    _, lines = fit(prepare(one.data, tmp_path / "runs"), one, compiled=compiled)
    return [line["train/loss"] for _, line in lines if "train/loss" in line]


@on_a_gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_compiled_training_is_the_training(tmp_path, accumulate):
    """With its masks of dropout."""
    keys = {"model__p_drop": 0.1, "optim__max_steps": 25, "trainer__accumulate": accumulate, "optim__clip": 0.5}
    expected, found = (losses(tmp_path, compiled, **keys) for compiled in (False, True))
    assert found == pytest.approx(expected, rel=1e-3)


WORDS = {key: value for key, value in tiny_trials.TINY.items() if key != "optim.max_steps"}
WORDS |= {"optim.max_steps": 200, "trainer.val_every": 50, "trainer.log_every": 10, "decode.beam": 1}


def trained(runs, *argv, **keys):
    """The only trial of a runs folder, trained to its end by the command."""
    words = [f"--{key}={value}" for key, value in (WORDS | keys).items()]
    completed = command("train", f"--runs={runs}", *words, *argv, WANDB_MODE="disabled")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (folder,) = (runs / "trials").iterdir()
    gpus = json.loads((folder / "env.json").read_text())["gpus"]
    assert len(gpus) == min(CARDS, int(keys.get("trainer.devices", 1)))
    return TrialFolder(folder)


def apart(one, other):
    weights = other.weights()
    return max((weight.double() - weights[name].double()).abs().max().item() for name, weight in one.weights().items())


@pytest.mark.slow
def test_a_trial_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path):
    """Bit for bit, or as far as two trials that nothing happens to: some kernels of a GPU add in any order."""
    text = {"data.path": little_text(tmp_path, 400, 30, 20)}
    whole, again = (trained(tmp_path / name, **text) for name in ("whole", "again"))
    words = [f"--runs={tmp_path / 'killed'}", *(f"--{key}={value}" for key, value in (WORDS | text).items())]
    with (tmp_path / "log").open("w") as log, running("train", *words, output=log, WANDB_MODE="disabled") as process:
        metrics = "killed/trials/*/metrics.jsonl"
        wait_for(lambda: any(path.read_text().count("\n") > 6 for path in tmp_path.glob(metrics)), every=0.005)
        process.kill()
    assert not list(tmp_path.glob("killed/trials/*/result.json"))
    killed = trained(tmp_path / "killed", **text)
    assert apart(killed, whole) <= 10 * apart(again, whole)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_strategy_trains_on_all_cards_as_one_device_does(tmp_path, strategy):
    text = {"data.path": little_text(tmp_path, 400, 30, 20), "model.p_drop": 0.0, "optim.max_steps": 20}
    alone = trained(tmp_path / "alone", **text)
    together = trained(tmp_path / strategy, **text, **{"trainer.strategy": strategy, "trainer.devices": max(1, CARDS)})
    losses = [[line["train/loss"] for line in one.metrics() if "train/loss" in line] for one in (alone, together)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_a_trial_of_scale_demo_is_translated_as_it_was_evaluated(tmp_path):
    """On a GPU all of its 1,500 steps. A sentence or two may have equally good translations."""
    words = [] if GPU else ["--optim.max_steps=30", "--trainer.val_every=30", "--decode.extra=3"]
    completed = command("train", "--scale=demo", f"--runs={tmp_path / 'runs'}", *words, WANDB_MODE="disabled")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (folder,) = (tmp_path / "runs/trials").iterdir()
    trial = TrialFolder(folder)
    assert not GPU or trial.result().metrics["test/bleu"] > 80
    source, _ = Prepared(tmp_path / "runs/data" / trial.data()).text("val")
    (tmp_path / "in.txt").write_text("".join(f"{sentence}\n" for sentence in source[:100]))
    found = command("translate", folder, tmp_path / "in.txt", "--runs", tmp_path / "runs").stdout.splitlines()
    expected = (folder / "hyp.val.txt").read_text().splitlines()[:100]
    assert len(found) == 100 and sum(a != b for a, b in zip(found, expected, strict=True)) <= 2


@pytest.mark.slow
def test_two_trials_share_a_card(tmp_path):
    how = ["--per-device", 2, "--devices", 1] if GPU else ["--parallel", 2]
    completed = command("sweep", ROOT / "sweeps/smoke.yaml", "--runs", tmp_path / "runs", *how, WANDB_MODE="disabled")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "2 at a time" in completed.stdout + completed.stderr
    assert len(list(tmp_path.glob("runs/trials/*/result.json"))) == 4
