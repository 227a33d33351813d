"""From text to batches: where text comes from, the tokenizer, prepared token arrays, batches of similar length.

What a model does with a batch is not here: see `model` and `training`.
"""
