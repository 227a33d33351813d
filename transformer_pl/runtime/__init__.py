"""What every command needs of the system. Nothing here imports another part of the project."""
