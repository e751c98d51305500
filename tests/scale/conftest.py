"""What several tests of builds and uploads need: a Ray cluster, an S3 server, a dataset of several parts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.scale.stores import s3_server

STORE_BYTES = 80 << 20  # about the least that Ray takes: ids that passed through it would fill it


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Each start of a node of Ray installs a handler that exits with 15; tests of signals run in this process too."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        with sigterm_kept():
            running = Cluster(initialize_head=True, head_node_args=head)
            running.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
            ray.init(address=running.address, log_to_driver=False, logging_level="ERROR")
        os.environ.pop("RAY_ADDRESS", None)
        yield running
        ray.shutdown()
        running.shutdown()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket of an S3 server of our own."""
    with s3_server() as url:
        yield url
