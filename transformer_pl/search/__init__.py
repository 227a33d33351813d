"""Searches: Optuna draws the trials of a sweep file with `method: random`, `bayes` or `custom`; trial 0 is the base.

A study is a journal file beside the table, or a database that several processes share.
"""
