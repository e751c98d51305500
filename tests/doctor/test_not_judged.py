"""A report in which rules were not judged says so first, counts them, and does not say that nothing was found."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import RULES, diagnose
from niels_gpt.doctor.show import plain
from tests.conftest import run_cli
from tests.doctor.made import CHATML, Row, as_rows, chats, model, rows, samples, template_of
from tests.doctor.test_reading import as_jsonl
from tests.renderers.tiny_families import folder_of, renderer_of

MASKS = {"mask-all-zero", "mask-shifted", "eot-not-trained", "user-tokens-trained", "loss-share"}
TURNS = {"eot-missing", "truncated-mid-turn", "special-tokens-in-content"}
OF_CHATS = {"template-raises", "system-dropped", "history-thinking-stripped"}


def ids(family: str = "chatml") -> list[Row]:
    return [{"input_ids": sample.ids} for sample in samples(family)]


def chat_rows() -> list[Row]:
    return as_rows(chats())


def labelled(family: str = "chatml") -> list[Row]:
    return rows(samples(family))


@pytest.mark.parametrize(
    ("given", "with_tokenizer", "reason", "rules"),
    [
        (chat_rows, False, "no tokenizer was given", MASKS | TURNS | OF_CHATS),
        (ids, False, "no tokenizer was given", TURNS | {"id-out-of-range", "pad-is-eos", "eot-not-in-stop-set"}),
        (ids, False, "the data has no mask", MASKS),
        (ids, True, "the data has no mask", MASKS),
        (labelled, False, "no tokenizer was given", TURNS | {"mask-all-one", "padding-trained", "mask-shifted"}),
        (
            lambda: labelled("llama-3"),
            True,
            "no turn of this format is in any row",
            TURNS | {"mask-shifted", "begins-mid-turn", "turn-order"},
        ),
    ],
)
def test_every_rule_that_was_not_judged_has_its_reason(
    given: Callable[[], Any], with_tokenizer: bool, reason: str, rules: set[str]
) -> None:
    report = diagnose(given(), renderer=renderer_of("chatml") if with_tokenizer else None)
    assert rules <= {rule for rule, why in report.skipped.items() if why.startswith(reason)}
    kind, on_request = report.source["kind"], ("over-long", "validation-leak")
    asked = [rule.id for rule in RULES.values() if kind in rule.applies and rule.id not in on_request]
    assert report.judged + len(report.skipped) == len(asked)
    head = plain(report).splitlines()[1]
    assert head.startswith(f"not judged: {len(report.skipped)} of {len(asked)} rules: ")
    assert plain(report).count(reason) == 1
    assert "nothing found" not in plain(report)


def test_all_rules_are_judged_where_all_they_need_is_there(tmp_path: Path) -> None:
    for given in (labelled(), chat_rows()):
        report = diagnose(given, renderer=renderer_of("chatml"))
        assert (report.skipped, "nothing found" in plain(report)) == ({}, True)
    whole = model(tmp_path / "whole", "qwen2.5", template=template_of("qwen2.5"))
    assert (diagnose(whole).skipped, diagnose(whole, whole).skipped) == ({}, {})
    bare = diagnose(model(tmp_path / "bare", "qwen2.5")).skipped
    assert {"eot-not-in-stop-set", "prefix-not-preserved", "system-dropped"} <= set(bare)
    assert "pad-is-eos" not in bare


def test_a_longest_row_is_judged_only_where_it_is_asked_for() -> None:
    assert "over-long" not in diagnose(chat_rows()).skipped
    assert diagnose(chat_rows(), max_length=20).skipped["over-long"] == "no tokenizer was given"


def test_a_row_that_renders_to_nothing_leaves_the_others_judged(tmp_path: Path) -> None:
    without_stops = template_of("qwen2.5", CHATML.replace(" + STOP", ""))
    silent = "{% if 'nothing' not in messages[0].content %}" + without_stops + "{% endif %}"
    folder = model(tmp_path / "model", "qwen2.5", template=silent)
    given = chats()
    given[2].insert(0, {"role": "system", "content": "nothing"})
    report = diagnose(as_rows(given), tokenizer=folder)
    empty = report.finding("empty-row")
    assert empty is not None
    assert [evidence.row for evidence in empty.evidence] == [2]
    assert report.rules("error") == diagnose(as_rows(chats()), tokenizer=folder).rules("error") != []


@pytest.mark.parametrize(
    ("options", "code", "code_with_a_warning"),
    [
        ((), 0, 0),
        (("--strict",), 4, 1),
        (("--fail-on", "not-judged"), 4, 4),
        (("--fail-on", "warning"), 0, 1),
        (("--tokenizer", folder_of("chatml"), "--renderer", "chatml", "--strict"), 0, 1),
    ],
)
def test_exit_codes_put_findings_before_rules_not_judged(
    options: tuple[Any, ...], code: int, code_with_a_warning: int, tmp_path: Path
) -> None:
    done = run_cli("doctor", as_jsonl(chat_rows(), tmp_path), *options)
    assert (done.returncode, done.stderr) == (code, "")
    head = re.fullmatch(r"not judged: \d+ of \d+ rules: no tokenizer was given", done.stdout.splitlines()[1])
    assert (head is None) == ("nothing found" in done.stdout) == ("--tokenizer" in options)
    made = chat_rows()
    made[0]["messages"][1]["content"] = ""
    assert run_cli("doctor", as_jsonl(made, tmp_path), *options).returncode == code_with_a_warning
