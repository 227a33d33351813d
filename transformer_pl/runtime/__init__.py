"""What every command needs of the system. Nothing here knows of models or sweeps."""
