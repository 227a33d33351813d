"""Searches: Optuna on the same sweep files, trained and kept like any other trials. The only door to optuna.

`method: random`, `bayes`, or `custom` with `scheduler: {engine: optuna}`. A study lies in a journal beside the table,
or in a database that several machines share: the same command goes on with it, or joins it. Trial 0 is the base.
"""
