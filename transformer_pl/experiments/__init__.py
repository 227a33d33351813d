"""From a sweep file to trials that run: rows, the plan and its cost, the dry run, parallel trials, retuning.

How one trial is trained is not here (`training`), nor is what it leaves on disk (`trials`) or Optuna (`search`).
"""
