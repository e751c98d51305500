"""A Ray cluster of several raylets on this machine, once for all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import REPOSITORY

STORE_BYTES = 80 << 20  # about the least that Ray takes: ids that passed through it would fill it


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head and a node, one CPU each; this process is connected to it."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'niels-gpt[ray]'")
    from ray.cluster_utils import Cluster

    environment = {
        "PYTHONPATH": str(REPOSITORY),  # workers import the sources of these tests
        "RAY_memory_monitor_refresh_ms": "0",  # what else runs on this machine must not kill our workers
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        running = Cluster(initialize_head=True, head_node_args=head)
        running.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        ray.init(address=running.address, log_to_driver=False, logging_level="ERROR")
        os.environ.pop("RAY_ADDRESS", None)
        yield running
        ray.shutdown()
        running.shutdown()
