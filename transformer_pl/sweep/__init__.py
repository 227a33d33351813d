"""The sweep command: trains the trials of a sweep file, on this machine or on a cluster, or searches."""
