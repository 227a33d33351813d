"""A trained model in other libraries: Hugging Face's MarianMTModel, and through it CTranslate2.

MarianMTModel with ReLU and scaled embeddings is the paper's model, with dropout at the same places, but for three
things. Its projections of attention have biases, which are zero here. Its position table has all sines before all
cosines, so every vector of the model is put into that order, which changes no logit. Its LayerNorm has another epsilon,
1e-5, which is replaced by ours.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_pl.config import BOS, EOS, PAD, Sizes, custom_components
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError

POSITIONS = 1024  # the longest sentence, in tokens
FROM_D_MODEL = ("W_Q", "W_K", "W_V", "W_1")  # matrices whose input, and not their output, has d_model numbers
NAMES = {  # of the parts of a layer, ours and Marian's
    **{"self_attention": "self_attn", "cross_attention": "encoder_attn"},
    **{"W_Q": "q_proj", "W_K": "k_proj", "W_V": "v_proj", "W_O": "out_proj", "ffn.W_1": "fc1", "ffn.W_2": "fc2"},
}
NORMS = {  # by stack, Marian's names of the norms behind the sub-layers
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def marian(model: Transformer, sizes: Sizes, attention: str | None = None) -> Any:
    """A MarianMTModel with the weights of ours. attention: Hugging Face's name of its kernels; None: as shipped.

    Raises an InputError for a model that it cannot hold.
    """
    from transformers import MarianConfig, MarianMTModel

    if custom_components(sizes) or not sizes.N_encoder or not sizes.d_k == sizes.d_v == sizes.d_model / sizes.h:
        rule = "holds an encoder and a decoder of the paper's components, with d_k = d_v = d_model / h"
        raise InputError(f"MarianMTModel {rule}; export such a model")
    config = MarianConfig(
        vocab_size=sizes.vocab_size,
        max_position_embeddings=POSITIONS,
        d_model=sizes.d_model,
        encoder_layers=sizes.N_encoder,
        decoder_layers=sizes.N_decoder,
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
    peer.load_state_dict(peer.state_dict() | _marian_weights(model, peer.state_dict()))
    for norm in (module for module in peer.modules() if isinstance(module, nn.LayerNorm)):
        norm.eps = next(module.eps for module in model.modules() if isinstance(module, nn.LayerNorm))
    return peer


def _marian_weights(model: Transformer, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights by Marian's names, without positions. theirs: Marian's weights, for the biases that become zero."""
    ours = {name: value.cpu() for name, value in model.state_dict().items()}
    d_model = ours["embedding.weight"].shape[1]
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])  # sines, then cosines
    matrix = ours["embedding.weight"][:, order]
    weights = {"model.shared.weight": matrix, "lm_head.weight": matrix}
    weights |= {f"model.{stack}.embed_tokens.weight": matrix for stack in NORMS}
    for name, value in ours.items():
        if name.startswith(("encoder.", "decoder.")):
            if name.split(".")[-2] not in FROM_D_MODEL:
                value = value[order]
            elif name.endswith("weight"):
                value = value[:, order]
            weights[_marian_name(name)] = value
    zero = {name: torch.zeros_like(w) for name, w in theirs.items() if "_proj.bias" in name or "logits_bias" in name}
    return weights | zero


def _marian_name(name: str) -> str:
    """Marian's name of a weight of a layer: `encoder.0.ffn.W_1.bias` is `model.encoder.layers.0.fc1.bias`."""
    stack, layer, part = name.split(".", maxsplit=2)
    norms = {f"residual.{place}.norm": norm for place, norm in enumerate(NORMS[stack])}
    for ours, theirs in (NAMES | norms).items():
        part = part.replace(ours, theirs)
    return f"model.{stack}.layers.{layer}.{part}"


def save_ctranslate2(peer: Any, vocabulary: Sequence[str], folder: str | Path) -> None:
    """Write a MarianMTModel of `marian` as a model of CTranslate2, in fp32. vocabulary: every token by its id."""
    from ctranslate2.converters.transformers import BartLoader

    Path(folder).mkdir(parents=True, exist_ok=True)
    peer.config.normalize_before = peer.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(peer)  # the loader of Marian would cut off the last token
    spec.register_source_vocabulary(list(vocabulary))
    spec.register_target_vocabulary(list(vocabulary))
    spec.config.layer_norm_epsilon = next(m.eps for m in peer.modules() if isinstance(m, nn.LayerNorm))
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
