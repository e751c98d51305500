"""`niels-gpt doctor` as a user runs it: exit codes, forms of report, words on rules."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor import RULES
from tests.conftest import cli_here
from tests.conftest import run_cli as in_a_process
from tests.doctor.made import as_rows, chats, model, template_of
from tests.doctor.test_reading import as_jsonl, broken_rows
from tests.renderers.tiny_families import folder_of

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return cli_here(capsys, monkeypatch)


CHATML = ("--tokenizer", folder_of("chatml"), "--renderer", "chatml")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_jsonl(as_rows(chats(4)), tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_jsonl(broken_rows(), tmp_path_factory.mktemp("broken"))


def test_clean_data_exits_with_0(clean: Path) -> None:
    done = in_a_process("doctor", clean, *CHATML)
    assert done.returncode == 0, done.stderr  # with a line of progress on a slow machine
    assert "nothing found" in done.stdout


def test_findings_exit_with_1_and_show_row_cause_fix_and_thread(run_cli: Run, broken: Path) -> None:
    done = run_cli("doctor", broken, *CHATML)
    assert done.returncode == 1
    assert f"{broken}:4 (row 3): no token of this row is trained" in done.stdout
    for label in ("cause", "fix", "thread  https://github.com/huggingface/transformers/issues/34172"):
        assert label in done.stdout


def test_warnings_exit_with_1_only_if_asked_to(run_cli: Run, tmp_path: Path) -> None:
    made = as_rows(chats(4))
    made[0]["messages"][1]["content"] = ""
    path = as_jsonl(made, tmp_path)
    assert run_cli("doctor", path, *CHATML).returncode == 0
    assert run_cli("doctor", path, *CHATML, "--fail-on", "warning").returncode == 1
    silenced = run_cli("doctor", path, *CHATML, "--fail-on", "warning", "--silence", "empty-answer=known, kept")
    assert silenced.returncode == 0
    assert "silenced  empty-answer: known, kept" in silenced.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "Missing argument 'INPUT'"),
        (("x.jsonl", "--silence", "empty-answer"), 2, "expected RULE=REASON"),
        (("clean.jsonl", "--silence", "empty-answers=so"), 2, "did you mean 'empty-answer'?"),
        (("clean.jsonl", "--silence", "empty-answer= "), 2, "without a reason"),
        (("x.jsonl", "--json", "--sarif"), 2, "one form of report at a time"),
        (("x.jsonl",), 3, "no such file"),
        (("clean.jsonl", "--renderer", "chatml"), 2, "pass --tokenizer"),
        (("x.jsonl", "--fail-on", "never"), 2, "--fail-on"),
        # Before the tokenizer is loaded and the rows are read.
        (("clean.jsonl", "--tokenizer", ".", "--fix", "none/rows.jsonl"), 3, "there is no directory none"),
        (("clean.jsonl", "--tokenizer", ".", "--fix", "x", "--out", "./x"), 2, "both write x"),
        (("clean.jsonl", "--tokenizer", ".", "--out", "none/report.md"), 3, "there is no directory none"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    run_cli: Run, clean: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run_cli("doctor", *(str(clean) if one == "clean.jsonl" else one for one in arguments))
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_report_as_json_is_its_contract(run_cli: Run, broken: Path) -> None:
    done = run_cli("doctor", broken, *CHATML, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["version"], report["rows"]) == (1, 1, 41)
    assert report["source"] | {"tokenizer": ""} == {
        "kind": "tokens",
        "name": str(broken),
        "form": "jsonl",
        "tokenizer": "",
        "renderer": "chatml",
    }
    finding = next(one for one in report["findings"] if one["rule"] == "id-out-of-range")
    assert set(finding) >= {"rule", "severity", "title", "count", "summary", "cause", "fix", "thread", "evidence"}
    evidence = finding["evidence"][0]
    assert (evidence["row"], evidence["where"], evidence["message"], evidence["token"]) == (7, f"{broken}:8", None, 5)
    marked = evidence["window"][evidence["mark"]]
    assert marked == {"id": 10_000, "text": "<10000?>", "trained": False, "role": "user", "expected": False}


def test_reports_in_files_replace_them_whole(run_cli: Run, broken: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    done = run_cli("doctor", broken, *CHATML, "--out", target)
    assert done.returncode == 1
    assert "error   mask-all-zero  " in target.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.txt"]


def test_every_rule_can_be_explained(run_cli: Run) -> None:
    done = run_cli("rules", "--json")
    rules = json.loads(done.stdout)
    assert [rule["id"] for rule in rules] == list(RULES)
    shown = run_cli("rules", "double-bos").stdout
    for thread in RULES["double-bos"].threads:
        assert thread.replace("#", "/issues/") in shown
    listed = run_cli("rules").stdout
    assert all(rule in listed for rule in RULES)


def test_rules_have_ids_words_and_threads_that_can_be_opened() -> None:
    for name, rule in RULES.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert all((rule.title, rule.meaning, rule.cause, rule.fix, rule.applies))
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in rule.threads)


def test_two_directories_are_compared_and_a_tokenizer_alone_is_judged(run_cli: Run, tmp_path: Path) -> None:
    one = model(tmp_path / "one", "qwen2.5", template=template_of("qwen2.5"))
    loose = template_of("qwen2.5").replace("'\n' + m.content", "'\n\n' + m.content")
    two = model(tmp_path / "two", "qwen2.5", template=loose)
    assert run_cli("doctor", one, one).returncode == 0
    done = run_cli("doctor", one, two)
    assert done.returncode == 1
    assert "template-drift" in done.stdout
    assert "from token" in done.stdout
    file = two / "chat_template.jinja"
    assert run_cli("doctor", one, file, "--tokenizer", one).returncode == 1
    own = run_cli("doctor", one, two, "--chats", as_jsonl(as_rows(chats(4)), tmp_path), "--json")
    assert (own.returncode, json.loads(own.stdout)["source"]["conversations"]) == (1, 4)
    assert run_cli("doctor", one, "--chats", "x.jsonl").returncode == 2
    alone = run_cli("doctor", one)
    assert alone.returncode == 0
    assert "no-generation-markers" in alone.stdout
