"""Small chat templates are rendered as their golden texts say; see `tests/golden/by_template.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
from tests.golden.by_template import TEMPLATES, difference


@pytest.mark.parametrize("file", sorted(TEMPLATES.glob("*.txt")), ids=lambda file: file.stem)
def test_a_template_is_rendered_as_its_golden_text(file: Path) -> None:
    found = difference(file)
    if found:
        pytest.fail(f"{found}\n\nIf this is meant: python -m tests.golden update templates", pytrace=False)
