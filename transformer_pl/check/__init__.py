"""The check command: whether a component runs, and keeps the properties of its slot. It may compute anything else."""
