"""A report in which rules were not judged says so first, counts them, and does not say that nothing was found."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import RULES, Report, diagnose
from niels_gpt.doctor.show import plain
from tests.conftest import run_cli
from tests.doctor.made import CHATML, Row, as_rows, chats, model, rows, samples, template_of
from tests.doctor.test_reading import as_jsonl
from tests.renderers.tiny_families import folder_of, renderer_of

MASKS = {
    "mask-all-zero",
    "mask-shifted",
    "eot-not-trained",
    "user-tokens-trained",
    "packed-start-trained",
    "loss-share",
}
TURNS = {"eot-missing", "truncated-mid-turn", "begins-mid-turn", "special-tokens-in-content", "turn-order"}
OF_CHATS = {"template-raises", "system-dropped", "history-thinking-stripped"}


def ids() -> list[Row]:
    return [{"input_ids": sample.ids} for sample in samples("chatml")]


def chat_rows() -> list[Row]:
    return as_rows(chats())


def labelled() -> list[Row]:
    return rows(samples("chatml"))


def of_another_format() -> list[Row]:
    return rows(samples("llama-3"))


Make = Callable[[], Any]
CASES: tuple[tuple[Make, dict[str, Any], str, set[str]], ...] = (
    (
        chat_rows,
        {},
        "no tokenizer was given",
        (MASKS | TURNS | OF_CHATS) - {"begins-mid-turn", "turn-order", "packed-start-trained"},
    ),
    (ids, {}, "no tokenizer was given", TURNS | {"id-out-of-range", "pad-is-eos", "eot-not-in-stop-set"}),
    (ids, {}, "the data has no mask", MASKS),
    (ids, {"family": "chatml"}, "the data has no mask", MASKS),
    (labelled, {}, "no tokenizer was given", TURNS | {"mask-all-one", "padding-trained", "mask-shifted"}),
    (of_another_format, {"family": "chatml"}, "no turn of this format is in any row", TURNS | {"mask-shifted"}),
)


def report_of(given: Any, options: dict[str, Any]) -> Report:
    return diagnose(given, **({"renderer": renderer_of(options["family"])} if options else {}))


@pytest.mark.parametrize(("make", "options", "reason", "rules"), CASES)
def test_every_rule_that_was_not_judged_has_its_reason(
    make: Make, options: dict[str, Any], reason: str, rules: set[str]
) -> None:
    report = report_of(make(), options)
    assert rules <= {rule for rule, why in report.skipped.items() if why.startswith(reason)}
    kind = report.source["kind"]
    on_request = ("over-long", "validation-leak")
    asked = [rule.id for rule in RULES.values() if kind in rule.applies and rule.id not in on_request]
    assert report.judged + len(report.skipped) == len(asked)
    head = plain(report).splitlines()[1]
    assert head.startswith(f"not judged: {len(report.skipped)} of {len(asked)} rules: ")
    assert reason in head
    assert "nothing found" not in plain(report)


def test_all_rules_are_judged_where_all_they_need_is_there(tmp_path: Path) -> None:
    for given in (labelled(), chat_rows()):
        report = diagnose(given, renderer=renderer_of("chatml"))
        assert (report.skipped, "nothing found" in plain(report)) == ({}, True)
    assert diagnose(model(tmp_path / "whole", "qwen2.5", template=template_of("qwen2.5"))).skipped == {}
    assert diagnose(tmp_path / "whole", tmp_path / "whole").skipped == {}


def test_a_longest_row_is_judged_only_where_it_is_asked_for() -> None:
    assert "over-long" not in diagnose(chat_rows()).skipped
    assert diagnose(chat_rows(), max_length=20).skipped["over-long"] == "no tokenizer was given"


def test_a_tokenizer_without_a_template_is_not_judged_by_what_templates_write(tmp_path: Path) -> None:
    report = diagnose(model(tmp_path / "bare", "qwen2.5"))
    assert {"eot-not-in-stop-set", "prefix-not-preserved", "system-dropped"} <= set(report.skipped)
    assert "pad-is-eos" not in report.skipped


def test_a_row_that_renders_to_nothing_does_not_keep_the_others_from_being_judged(tmp_path: Path) -> None:
    silent = (
        "{% if 'nothing' not in messages[0].content %}"
        + template_of("qwen2.5", CHATML.replace(" + STOP", ""))
        + "{% endif %}"
    )
    folder = model(tmp_path / "model", "qwen2.5", template=silent)
    given = chats()
    given[2].insert(0, {"role": "system", "content": "nothing"})
    report = diagnose(as_rows(given), tokenizer=folder)
    empty = report.finding("empty-row")
    assert empty is not None
    assert [evidence.row for evidence in empty.evidence] == [2]
    assert report.rules("error") == diagnose(as_rows(chats()), tokenizer=folder).rules("error") != []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--strict",), 4),
        (("--fail-on", "not-judged"), 4),
        (("--fail-on", "warning"), 0),
        (("--tokenizer", folder_of("chatml"), "--renderer", "chatml", "--strict"), 0),
    ],
)
def test_exit_codes_where_nothing_was_found(options: tuple[Any, ...], code: int, tmp_path: Path) -> None:
    done = run_cli("doctor", as_jsonl(chat_rows(), tmp_path), *options)
    assert (done.returncode, done.stderr) == (code, "")
    judged = "--tokenizer" in options
    assert ("nothing found" in done.stdout) == judged
    head = re.fullmatch(r"not judged: \d+ of \d+ rules: no tokenizer was given", done.stdout.splitlines()[1])
    assert (head is None) == judged


def test_each_reason_is_written_once() -> None:
    report = diagnose(ids())
    assert len(report.reasons()) == 2
    text = plain(report)
    for reason in report.reasons():
        assert text.count(reason) == 1, reason
    assert "(1) no tokenizer was given" in text
    assert "\n(1) id-out-of-range" in text


def test_findings_come_before_what_was_not_judged(tmp_path: Path) -> None:
    made = chat_rows()
    made[0]["messages"][1]["content"] = ""  # a warning
    path = as_jsonl(made, tmp_path)
    assert run_cli("doctor", path, "--strict").returncode == 1
    assert run_cli("doctor", path, "--fail-on", "not-judged").returncode == 4
    written = run_cli("doctor", path, "--json", "--out", tmp_path / "report.json")
    assert "1 finding; not judged: " in written.stdout
