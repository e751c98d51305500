"""What the hub refuses is said once, whole, with a way out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

if any(find_spec(name) is None for name in ("datasets", "huggingface_hub", "pyarrow")):
    pytest.skip("needs datasets, huggingface_hub and pyarrow", allow_module_level=True)

from tests.conftest import run_python
from tests.hub import Hub

ROWS = """
from niels_gpt.errors import SourceError
from niels_gpt.sources.files.hub import HubDataset
try:
    print(next(HubDataset("no/such").rows("train")))
except SourceError as error:
    print(error)
"""


def test_a_dataset_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    with Hub({}) as hub:
        environment = hub.environment(tmp_path, longest_sleep=0.001, USE_TORCH="0")
        done = run_python("-c", ROWS, environment=environment)
    said = done.stdout
    assert said.startswith("no/such: reading from the hub failed: RepositoryNotFoundError"), done.stderr
    assert said.count("reading from the hub failed") == 1
    assert said.count("SourceError") == 0
    assert said.rstrip().endswith("then run the same command again")
    assert said.count("Check the network") == 1
