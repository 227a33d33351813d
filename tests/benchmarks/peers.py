"""Our trained weights in other libraries (export.py): the models are checked against ours, and run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from export import save_ctranslate2
from torch import Tensor

from transformer_pl.config import BOS, EOS, PAD
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError

TOLERANCE = 1e-4  # by which logits, and log-probabilities per token, may differ: rounding is a tenth of it


def need_peers() -> None:
    """Raise an InputError where the libraries are not installed."""
    try:
        import ctranslate2  # noqa: F401
        import transformers
    except ImportError as error:
        raise InputError(
            f"this benchmark needs transformers and ctranslate2, but: {error}; install them with "
            "pip install -c constraints.txt -e '.[bench]'"
        ) from None
    transformers.logging.set_verbosity_error()


@torch.no_grad()
def check_logits(model: Transformer, peer: Any, source: Tensor, target: Tensor) -> None:
    """Raise an InputError where the logits of two models differ by more than rounding."""
    training = model.training, peer.training
    model.eval()
    peer.eval()
    theirs = marian_logits(peer, source, target)
    largest = (model(source, target) - theirs)[target != PAD].abs().max().item()
    model.train(training[0])
    peer.train(training[1])
    if not largest < TOLERANCE:
        raise InputError(
            f"logits of the copied weights must differ by less than {TOLERANCE}, but differ by {largest:.2g}: the "
            "models are not the same, so their speed cannot be compared; fix marian() in export.py"
        )


def marian_logits(peer: Any, source: Tensor, target: Tensor) -> Tensor:
    """Logits (B, Lt, V) of the tokens after each of target (B, Lt), from source (B, Ls), padded."""
    return peer(input_ids=source, attention_mask=source != PAD, decoder_input_ids=target, use_cache=False).logits


def marian_translate(peer: Any, source: Tensor, beam: int, alpha: float, extra: int) -> list[list[int]]:
    """Beam search by Hugging Face: the tokens of each sentence, without special ones. source (B, Ls), padded."""
    with torch.inference_mode():
        rows = peer.generate(
            input_ids=source,
            attention_mask=source != PAD,
            num_beams=beam,
            do_sample=False,
            length_penalty=alpha,
            max_new_tokens=source.shape[1] - 1 + extra,
        )
    return [[token for token in row if token not in (PAD, BOS, EOS)] for row in rows.tolist()]


def ctranslate2_model(peer: Any, vocabulary: Sequence[str], folder: Path, threads: int) -> Any:
    """A CTranslate2 translator in fp32 with the weights of a MarianMTModel, saved in an empty folder."""
    import ctranslate2

    save_ctranslate2(peer, vocabulary, folder)
    return ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=threads)


def check_scores(model: Transformer, translator: Any, batch: Any, vocabulary: Sequence[str]) -> None:
    """Raise an InputError where CTranslate2 gives the targets of a batch other log-probabilities than our model."""
    source, target = texts(batch.source.tolist(), vocabulary), texts(batch.target_out.tolist(), vocabulary)
    scores = translator.score_batch(source, [tokens[:-1] for tokens in target])  # CTranslate2 adds EOS
    theirs = torch.tensor([sum(score.log_probs) for score in scores])
    with torch.no_grad():
        logs = model(batch.source, batch.target_in).log_softmax(-1).gather(-1, batch.target_out[..., None])[..., 0]
    inside = batch.target_out != PAD
    largest = ((logs * inside).sum(-1) - theirs).abs().div(inside.sum(-1)).max().item()
    if not largest < TOLERANCE:
        raise InputError(
            f"log-probabilities per token of CTranslate2 must differ by less than {TOLERANCE} from ours, but differ by "
            f"{largest:.2g}: the models are not the same; fix save_ctranslate2() in export.py"
        )


def texts(rows: list[list[int]], vocabulary: Sequence[str]) -> list[list[str]]:
    """Rows of token ids as CTranslate2 takes them: the names of the tokens, without padding."""
    return [[vocabulary[token] for token in row if token != PAD] for row in rows]
