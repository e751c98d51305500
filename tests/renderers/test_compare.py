"""The comparison of a family with a template, by which new families are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.errors import NielsError
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jinja"], "no such file"),
        (["empty.jinja"], "the file is empty"),
        (["refuses.jinja", "--number", "2"], "no conversation was compared"),
        (["refuses.jinja", "--special", "bos"], "expected NAME=VALUE"),
        (["refuses.jinja", "--number", "0"], "expected 1 conversation or more"),
    ],
)
def test_mistakes_are_errors_in_words(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jinja").write_text("", encoding="utf-8")
    Path("refuses.jinja").write_text("{{ raise_exception('never') }}", encoding="utf-8")
    with pytest.raises(NielsError, match=message):
        main(["chatml", *arguments])
