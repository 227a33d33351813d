"""The tests mirror the packages of transformer_pl; what they share is in `helpers`, `invariants` and `tiny_trials`."""
