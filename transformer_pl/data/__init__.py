"""From sentences to batches: where they come from, the tokenizer, token arrays, batches of similar length."""
