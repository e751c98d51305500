"""Every family writes what its golden texts say; see `tests/golden/__init__.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.registry import FAMILIES
from tests.golden import FOLDER, beside_template, difference
from tests.renderers.small import CHATML


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_writes_its_golden_texts(family: str) -> None:
    found = difference(family)
    if found:
        pytest.fail(f"{found}\n\nIf this is meant: python -m tests.golden update {family}", pytrace=False)


def test_a_family_beside_a_template(tmp_path: Path) -> None:
    file = tmp_path / "chat_template.jinja"
    file.write_text(CHATML, encoding="utf-8")
    found = beside_template("chatml", file, {})
    assert "--- one call, template" in found, "which ChatML refuses"
    assert "plain" not in found
    file.write_text(CHATML.replace("<|im_end|>\n", "<|im_end|>"), encoding="utf-8")
    assert "+TEMPLATE   1 | \\n" in beside_template("chatml", file, {})


def test_no_golden_texts_are_of_a_family_that_is_no_more() -> None:
    assert {file.parent.name for file in FOLDER.glob("*/*.txt")} == {*FAMILIES, "templates", "completions"}
