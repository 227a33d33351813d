"""Searches by Optuna on the same sweep files: the search space, the study and its storage, the results.

Only this package imports optuna. Trials are trained and stored as those of any other sweep.
"""
