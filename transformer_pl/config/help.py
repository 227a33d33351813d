"""The JSON schema of every key, the help of `train`, and the message for an unknown key."""

from functools import cache
from typing import Any

from transformer_pl.config.keys import KEYS, SECTIONS, Config
from transformer_pl.runtime.errors import suggestion

SYNONYMS = {  # what other projects call a key
    "layers": "model.N",
    "num_layers": "model.N",
    "heads": "model.h",
    "num_heads": "model.h",
    "hidden_size": "model.d_model",
    "dropout": "model.p_drop",
    "lr": "optim.lr_scale, which multiplies the rate of equation 3,",
    "learning_rate": "optim.lr_scale, which multiplies the rate of equation 3,",
    "weight_decay": "optim.optimizer.weight_decay, of optim.optimizer=torch.optim.AdamW,",
    "steps": "optim.max_steps",
    "epochs": "optim.max_steps, which counts batches,",
    "label_smoothing": "optim.eps_ls",
    "batch_size": "data.batch_tokens, which counts tokens,",
    "length_penalty": "decode.alpha",
    "gradient_accumulation_steps": "trainer.accumulate",
}


@cache
def key_schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema of every dotted key, from the declared types."""
    schema, schemas = Config.model_json_schema(), {}
    for key in KEYS:
        section, _, name = key.rpartition(".")
        schemas[key] = (schema["$defs"][section.capitalize()] if section else schema)["properties"][name]
    return schemas


def help_text() -> str:
    """The sections, each with its keys: choices, default and description."""
    lines, section = [], None
    for key, schema in key_schemas().items():
        if key.rpartition(".")[0] != section:
            section = key.rpartition(".")[0]
            about = (type(getattr(Config(), section)).__doc__ or "").partition("\n")[0] if section else ""
            lines += ["", f"{section}: {about}" if section else "without a section:"]
        choices = f"{' | '.join(schema['enum'])}; " if "enum" in schema else ""
        lines += [f"  --{key}  ({choices}default {KEYS[key]})", f"      {schema.get('description', '')}"]
    return "\n".join(lines[1:])


def unknown_key(key: str) -> str:
    """What is wrong with a key that does not exist, and the remedy."""
    section, _, name = key.rpartition(".")
    if key == "scale":
        return "no such key; use --scale, or parameters.scale of a sweep file"
    if name in SYNONYMS:
        return f"is called {SYNONYMS[name]} here"
    if key in SECTIONS:
        return f"no such key: keys are dotted, such as {next(known for known in KEYS if known.startswith(key))}"
    if near := suggestion(key, [*KEYS, "variant"]):
        return f"no such key{near}"
    if section not in SECTIONS:
        return f"no such key: a key begins with {', '.join(f'{known}.' for known in SECTIONS)}"
    return f"no such key; known: {', '.join(known for known in KEYS if known.startswith(f'{section}.'))}"
