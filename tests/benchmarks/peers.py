"""The same weights in other libraries: Hugging Face's MarianMTModel, and through it CTranslate2.

MarianMTModel with ReLU and scaled embeddings is the paper's model, but for three things. Its projections of attention
have biases: they are zero here. Its LayerNorm has another epsilon, and its position table another order of columns:
both are replaced by ours. It drops out at the same places.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_pl.config import SLOTS, Sizes, is_papers
from transformer_pl.data.tokenizer import BOS, EOS, PAD
from transformer_pl.model import SinusoidalPosition, Transformer
from transformer_pl.runtime.errors import InputError

POSITIONS = 1024
TOLERANCE = 1e-4  # by which logits, and log-probabilities per token, may differ: rounding is a tenth of it
PROJECTIONS = {"q_proj": "W_Q", "k_proj": "W_K", "v_proj": "W_V", "out_proj": "W_O"}
SUBLAYERS = {  # of a layer, by stack: our name, Marian's, and Marian's name of the norm behind it
    "encoder": [("self_attention", "self_attn", "self_attn_layer_norm"), ("ffn", "", "final_layer_norm")],
    "decoder": [
        ("self_attention", "self_attn", "self_attn_layer_norm"),
        ("cross_attention", "encoder_attn", "encoder_attn_layer_norm"),
        ("ffn", "", "final_layer_norm"),
    ],
}


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


def marian(model: Transformer, sizes: Sizes, attention: str | None = None) -> Any:
    """A MarianMTModel with the weights of ours. attention: Hugging Face's name; None: as shipped."""
    from transformers import MarianConfig, MarianMTModel

    papers = all(is_papers(slot, getattr(sizes, slot)) for slot in SLOTS)
    if not papers or not sizes.d_k == sizes.d_v == sizes.d_model / sizes.h:
        raise InputError(
            "MarianMTModel holds the paper's components alone, with d_k = d_v = d_model / h; take its base"
        )
    config = MarianConfig(
        vocab_size=sizes.vocab_size,
        max_position_embeddings=POSITIONS,
        d_model=sizes.d_model,
        encoder_layers=sizes.N,
        decoder_layers=sizes.N,
        encoder_attention_heads=sizes.h,
        decoder_attention_heads=sizes.h,
        encoder_ffn_dim=sizes.d_ff,
        decoder_ffn_dim=sizes.d_ff,
        activation_function="relu",
        dropout=sizes.p_drop,
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=BOS,
        **({"attn_implementation": attention} if attention else {}),
    )
    peer = MarianMTModel(config)
    peer.load_state_dict(marian_weights(model, peer.state_dict()))
    for module in peer.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = model.encoder[0].residual[0].norm.eps
    return peer


def marian_weights(model: Transformer, shapes: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights by Marian's names. shapes: Marian's weights; its biases of attention and logits become zero."""
    own = model.state_dict()
    matrix = own["embedding.weight"]
    weights = {"model.shared.weight": matrix, "lm_head.weight": matrix}
    for stack, sublayers in SUBLAYERS.items():
        theirs = f"model.{stack}"
        weights[f"{theirs}.embed_tokens.weight"] = matrix
        weights[f"{theirs}.embed_positions.weight"] = SinusoidalPosition.encoding(0, POSITIONS, matrix.shape[1])
        for layer in range(len(getattr(model, stack))):
            for place, (name, attention, norm) in enumerate(sublayers):
                pairs = {f"{norm}.{kind}": f"residual.{place}.norm.{kind}" for kind in ("weight", "bias")}
                if attention:
                    pairs |= {f"{attention}.{key}.weight": f"{name}.{W}.weight" for key, W in PROJECTIONS.items()}
                else:
                    linear = {"fc1": "W_1", "fc2": "W_2"}.items()
                    pairs |= {f"{key}.{kind}": f"ffn.{W}.{kind}" for key, W in linear for kind in ("weight", "bias")}
                weights |= {f"{theirs}.layers.{layer}.{k}": own[f"{stack}.{layer}.{v}"] for k, v in pairs.items()}
    zero = {name: torch.zeros_like(w) for name, w in shapes.items() if "_proj.bias" in name or "logits_bias" in name}
    return weights | zero


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
            "models are not the same, so their speed cannot be compared; fix marian() in tests/benchmarks/peers.py"
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
    from ctranslate2.converters.transformers import BartLoader

    peer.config.normalize_before = peer.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(peer)  # the loader of Marian would cut off the last token
    spec.register_source_vocabulary(list(vocabulary))
    spec.register_target_vocabulary(list(vocabulary))
    spec.config.layer_norm_epsilon = next(m.eps for m in peer.modules() if isinstance(m, nn.LayerNorm))
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=threads)


def check_scores(model: Transformer, translator: Any, batch: Any, vocabulary: Sequence[str]) -> None:
    """Raise an InputError where CTranslate2 gives the targets of a batch other log-probabilities than our model."""
    source, target = texts(batch.source.tolist(), vocabulary), texts(batch.target_out.tolist(), vocabulary)
    scores = translator.score_batch(source, [tokens[:-1] for tokens in target])  # it adds EOS
    theirs = torch.tensor([sum(score.log_probs) for score in scores])
    with torch.no_grad():
        logs = model(batch.source, batch.target_in).log_softmax(-1).gather(-1, batch.target_out[..., None])[..., 0]
    inside = batch.target_out != PAD
    largest = ((logs * inside).sum(-1) - theirs).abs().div(inside.sum(-1)).max().item()
    if not largest < TOLERANCE:
        raise InputError(
            f"log-probabilities per token of CTranslate2 must differ by less than {TOLERANCE} from ours, but differ by "
            f"{largest:.2g}: the models are not the same; fix ctranslate2_model() in tests/benchmarks/peers.py"
        )


def texts(rows: list[list[int]], vocabulary: Sequence[str]) -> list[list[str]]:
    """Rows of token ids as CTranslate2 takes them: the names of the tokens, without padding."""
    return [[vocabulary[token] for token in row if token != PAD] for row in rows]
