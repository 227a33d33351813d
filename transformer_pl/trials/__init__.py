"""One trial: its config and cost, its identity, its folder and how it ended; and the list of all (`--list`)."""
