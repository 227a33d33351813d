"""What every command needs of the system: errors, signals, the machine, memory, the network, digests, passwords.

Nothing here knows of models or sweeps.
"""
