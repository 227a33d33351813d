"""The tests mirror the packages of transformer_pl. They share `helpers`, `small_models` and `tiny_trials`."""
