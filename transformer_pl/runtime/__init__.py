"""What every command needs of the system: errors, signals, the machine, memory, the network, digests.

Nothing here knows of models or sweeps.
"""
