"""The comparison of a family with a template, by which new families are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from tests.renderers.compare import main
from tests.renderers.small import CHATML


@pytest.mark.parametrize(
    ("spelled", "found"),
    [("assistant", ""), ("robot", "the shortest conversation whose text differs")],
)
def test_equal_and_different_templates(
    spelled: str, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "chatml.jinja"
    template.write_text(CHATML.replace("m.role", f"m.role.replace('assistant', '{spelled}')"), encoding="utf-8")
    assert main(["chatml", str(template), "--number", "6"]) == bool(found)
    report = capsys.readouterr().out
    assert ("text   12 equal" in report) != bool(found)
    assert found in report
    assert (spelled in report) == bool(found)


def test_other_facts_and_refusals_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = tmp_path / "chatml.jinja"
    template.write_text(refuses + CHATML, encoding="utf-8")
    assert main(["chatml", str(template), "--number", "6"]) == 0
    assert "refused by the template" in capsys.readouterr().out
