"""One trial: its config and cost, its identity, its folder, how it ended; what `--list` sees."""
