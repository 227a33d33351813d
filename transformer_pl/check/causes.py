"""What usually breaks each property, by the slots in which it can: what a message names beside what was measured."""

from collections.abc import Collection

ANY = ""
MASKED = "attention self_attention"  # the slots that receive `mask`

# For each property, in the order in which they are measured: the slots, and a cause.
CAUSES: dict[str, list[tuple[str, str]]] = {
    "the_logits_are_finite": [
        (ANY, "a division by zero, a root or logarithm of zero or less, a number too large for its type"),
        (MASKED, "a softmax over no keys"),
    ],
    "the_future_is_hidden": [
        (MASKED, "`mask` is not applied or is inverted (True: a query may look), perhaps in one path"),
        (ANY, "a norm, a mean or a shift over positions or over sentences"),
        (ANY, "a state that is no buffer"),
    ],
    "padding_changes_nothing": [
        (MASKED, "`mask.keys` is not applied or is inverted (True is a token)"),
        ("position", "positions counted from the end"),
        (ANY, "a norm, a mean, a maximum or a shift over positions or over sentences"),
        (ANY, "a state that is no buffer"),
    ],
    "every_token_is_read": [
        (MASKED, "`mask` hides too much, or is inverted"),
        ("residual", "`x` or the output of `sublayer` is left out"),
        ("ffn position self_attention embedding", "the input is ignored"),
    ],
    "every_weight_gets_a_gradient": [
        (ANY, "a parameter that is not used, or behind `detach`, `no_grad` or a choice that has no gradient"),
        (ANY, "a root or a division whose derivative is infinite at zero"),
    ],
    "decoding_step_by_step_equals_decoding_at_once": [
        (f"position {MASKED}", "`start`, the position of the first query, is ignored or off by one"),
        (MASKED, "`mask` is not applied where `mask.keys` is None"),
        ("self_attention", "`cache` misses what later steps need"),
        (ANY, "something is kept on `self`, or mixed over positions"),
        (ANY, "the whole prefix is needed (then write `incremental = False`)"),
    ],
    "weights_are_what_attention_computes": [
        (ANY, "`weights` misses a mask, a bias or `start` that `forward` has"),
    ],
    "evaluation_repeats": [
        (ANY, "dropout or noise that `eval()` does not switch off"),
        (ANY, "something is kept from one call to the next"),
    ],
    "saved_weights_are_all": [
        (ANY, "random numbers, a statistic or a learned tensor in a plain attribute in place of a buffer or parameter"),
    ],
    "it_runs_on_the_device_of_its_input": [
        (ANY, "a tensor in a plain attribute in place of a buffer, or made without `device=x.device`"),
    ],
    "bfloat16_is_close": [
        (ANY, "long sums in bfloat16, which has three significant digits"),
        ("position", "positions in bfloat16"),
        (MASKED, "a mask value that float32 alone can hold"),
    ],
}


def usual_causes(name: str, slots: Collection[str]) -> str:
    """What usually breaks a property in components of these slots, in one line."""
    fitting = [cause for of, cause in CAUSES[name] if of == ANY or not {*of.split()}.isdisjoint(slots)]
    return f"usual causes: {'; '.join(fitting)}"
