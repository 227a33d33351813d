"""Searches: Optuna draws the trials of a sweep file with `method: random`, `bayes` or `custom`. The only use of optuna.

A study is a journal file beside the table, or a database that several processes share; trial 0 is the base. Training,
the folders of trials and W&B belong to other packages: a search's trials are trained and stored like those of a grid.
"""
