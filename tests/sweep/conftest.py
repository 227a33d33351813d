"""The cluster that the tests of the SLURM launcher share."""

import pytest

from tests.sweep.cluster import Cluster, why_not


@pytest.fixture(scope="module")
def cluster():
    if reason := why_not():
        pytest.skip(reason)
    with Cluster() as running:
        yield running
