"""Every loader gives the batches that it gave when they were frozen, value for value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frozen_batches.cases import FROZEN, cases, digest, write_datasets

pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create")]
EXPECTED = json.loads(FROZEN.read_text())


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    write_datasets(folder)
    return folder


def test_all_cases_are_frozen() -> None:
    assert set(cases()) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_batches_are_the_frozen_ones(datasets: Path, name: str) -> None:
    assert digest(cases()[name](datasets)) == EXPECTED[name]
