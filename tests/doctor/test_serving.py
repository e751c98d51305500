"""`doctor serving`: what is trained beside what a running server makes of the same conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("transformers")

import niels_gpt as ng
from niels_gpt.doctor.serving.check import check_serving
from niels_gpt.errors import DataError, UsageError
from niels_gpt.messages import Conversation, read_conversation
from tests.assets import ASSETS, needs_assets
from tests.conftest import cli_here
from tests.doctor.served import KINDS, Served, running

pytestmark = needs_assets
QWEN = ASSETS / "qwen3-8b"
STOPS = (151645, 151643)


@pytest.fixture(scope="module")
def renderer() -> Any:
    return ng.renderer(QWEN)


def _template() -> str:
    return str(json.loads((QWEN / "tokenizer_config.json").read_text())["chat_template"])


def _row(*messages: dict[str, Any], where: str = "chats.jsonl:1") -> Conversation:
    return Conversation(read_conversation(messages).messages, where=where)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_set_ups_are_silent(kind: str, renderer: Any) -> None:
    with running(Served(QWEN, kind, stops=STOPS)) as url:
        report = check_serving(url, renderer)
    assert report.passed, [result for result in report.results if result.status != "equal"]
    assert report.server == kind
    assert report.by == ("number of tokens" if kind == "OpenAI-compatible" else "token ids")
    assert report.causes == {}


def _default_system(template: str) -> str:
    text = "{{- '<|im_start|>system\\nYou are kind.<|im_end|>\\n' }}"
    return "{%- if messages[0].role != 'system' and not tools %}" + text + "{%- endif %}" + template


# What is done to the server's template, and what the report must name.
PLANTED: dict[str, Callable[[str], str]] = {
    "white-space": lambda text: text.replace(
        "'<|im_start|>' + message.role + '\\n'", "'<|im_start|>' + message.role + '\\n\\n'"
    ),
    "default-system": _default_system,
    "tools": lambda text: text.replace("tool | tojson", "tool | tojson(indent=1)"),
    "arguments": lambda text: text.replace("tool_call.arguments | tojson", "tool_call.arguments | tojson(indent=1)"),
    "reasoning": lambda text: text.replace("loop.index0 > ns.last_query_index", "true"),
    "generation-prompt": lambda text: text.replace("enable_thinking is defined and enable_thinking is false", "true"),
    "template": lambda text: text.replace("<|im_start|>", "<|start|>"),
}


@pytest.mark.parametrize("cause", PLANTED)
@pytest.mark.parametrize("kind", ["vLLM", "SGLang", "llama.cpp", "TGI"])
def test_what_another_template_writes_is_named(cause: str, kind: str, renderer: Any) -> None:
    template = PLANTED[cause](_template())
    assert template != _template()
    with running(Served(QWEN, kind, template=template, stops=STOPS)) as url:
        report = check_serving(url, renderer)
    assert not report.passed
    assert list(report.causes) == [cause], [result.difference for result in report.results if result.difference]


def test_a_bos_token_that_the_server_adds_is_named(renderer: Any) -> None:
    llama = ASSETS / "llama-3.1-8b-instruct"
    with running(Served(llama, before=(128000,), stops=(128001, 128008, 128009))) as url:
        report = check_serving(url, ng.renderer(llama))
    assert list(report.causes) == ["bos"]


def test_a_date_of_another_day_is_named() -> None:
    llama = ASSETS / "llama-3.1-8b-instruct"
    with running(Served(llama, stops=(128001, 128008, 128009))) as url:
        report = check_serving(url, ng.renderer(llama, date_string="03 Feb 2001"))
    assert "date" in report.causes, report.causes


def test_reasoning_that_the_server_does_not_read_is_named(tmp_path: Path) -> None:
    keeps = PLANTED["reasoning"](_template())
    (tmp_path / "tokenizer.json").symlink_to(QWEN / "tokenizer.json")
    config = json.loads((QWEN / "tokenizer_config.json").read_text()) | {"chat_template": keeps}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with running(Served(QWEN, template=keeps, drop_reasoning=True, stops=STOPS)) as url:
        report = check_serving(url, ng.renderer(tmp_path, "template"))
    assert list(report.causes) == ["reasoning"]


def test_a_server_that_does_not_end_at_a_stop_fails(renderer: Any) -> None:
    with running(Served(QWEN, stops=(151643,))) as url:
        report = check_serving(url, renderer)
    assert report.stops == {151645: False, 151643: True}
    assert not report.passed


def test_rows_are_compared_up_to_their_last_answer_and_named(renderer: Any) -> None:
    user = {"role": "user", "content": "Hi"}
    row = _row(user, {"role": "assistant", "content": "Yes"}, user)
    alone = _row(user, where="chats.jsonl:2")
    with running(Served(QWEN, template=PLANTED["template"](_template()), stops=STOPS)) as url:
        report = check_serving(url, renderer, [row, alone])
    own = [result for result in report.results if result.own]
    assert [(result.name, result.status) for result in own] == [("chats.jsonl:1", "differs")]
    assert own[0].difference is not None
    assert own[0].difference.trained.startswith("»<|im_start|>«user\nHi")


def test_a_control_token_in_a_message_is_named(renderer: Any) -> None:
    row = _row({"role": "user", "content": "Say <|im_end|>"}, {"role": "assistant", "content": "Yes"})
    with running(Served(QWEN, stops=STOPS)) as url:
        assert list(check_serving(url, renderer, [row]).causes) == ["control-tokens"]


def test_a_row_that_the_server_refuses_is_a_finding(renderer: Any) -> None:
    row = _row({"role": "user", "content": "a secret"}, {"role": "assistant", "content": "Yes"})
    with running(Served(QWEN, refuses="a secret", stops=STOPS)) as url:
        report = check_serving(url, renderer, [row])
    assert [result.detail for result in report.results if result.status == "refused"]
    assert not report.passed
    assert report.causes == {}


def test_options_of_requests_reach_the_server(renderer: Any) -> None:
    off = ng.renderer(QWEN, enable_thinking=False)
    with running(Served(QWEN, stops=STOPS)) as url:
        assert list(check_serving(url, off).causes) == ["generation-prompt"]
        assert check_serving(url, off, chat_template_kwargs={"enable_thinking": False}).passed


def test_the_bridge_is_told_where_the_server_tells_sampled_ids(renderer: Any) -> None:
    with running(Served(QWEN, stops=STOPS)) as url:
        plain = check_serving(url, renderer).results[-1]
    with running(Served(QWEN, sampled="<think>\nwhy\n</think>\n\nBlue", stops=STOPS)) as url:
        thought = check_serving(url, renderer).results[-1]
    assert (plain.status, thought.status) == ("equal", "equal")
    assert "is the bridge" in plain.detail
    assert "is not the bridge" in thought.detail


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("localhost:8000", UsageError),
        ("ftp://localhost", UsageError),
        ("http://127.0.0.1:9", DataError),
    ],
)
def test_a_server_that_cannot_be_asked_is_an_error(url: str, error: type[Exception], renderer: Any) -> None:
    with pytest.raises(error):
        check_serving(url, renderer)


# What a route of an incompatible version may answer, and the field that the error names.
ODD = [
    ("vLLM", {"ids": [1]}, "tokens"),
    ("SGLang", {"choices": []}, "choices"),
    ("llama.cpp", {"text": "a"}, "prompt"),
    ("TGI", {"tokenize_response": [{"text": "a"}]}, "tokenize_response.0.id"),
    ("OpenAI-compatible", {"choices": [{"message": {}}]}, "usage.prompt_tokens"),
]


@pytest.mark.parametrize(("kind", "answer", "field"), ODD)
def test_an_answer_of_another_shape_is_an_error(
    kind: str, answer: Any, field: str, renderer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Served, "post", lambda *asked: answer)
    with running(Served(QWEN, kind)) as url, pytest.raises(DataError, match=rf"{url}.*{field}"):
        check_serving(url, renderer)


def test_chats_that_cannot_be_read_are_named(tmp_path: Path, renderer: Any) -> None:
    chats = tmp_path / "chats.jsonl"
    with running(Served(QWEN, stops=STOPS)) as url:
        with pytest.raises(DataError, match=r"chats\.jsonl: no such file"):
            ng.check_serving(url, renderer, chats)
        chats.write_text("")
        with pytest.raises(DataError, match=r"chats\.jsonl: the file is empty"):
            ng.check_serving(url, renderer, chats)
        chats.write_text('{"messages": [{"role": "user", "content": "Hi"}, {"ro')
        cut = [result for result in ng.check_serving(url, renderer, chats).results if result.own]
    assert [result.status for result in cut] == ["not compared"]
    assert "not valid JSON" in cut[0].detail


def test_the_command_shows_the_first_difference_of_each_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cli_here(capsys, monkeypatch)
    chats = tmp_path / "chats.jsonl"
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}
    chats.write_text(json.dumps(row) + "\n" + json.dumps({"messages": []}) + "\n")
    template = PLANTED["white-space"](_template())
    with running(Served(QWEN, template=template, stops=STOPS)) as url:
        found = run("doctor", "serving", url, chats, "--tokenizer", QWEN)
        assert found.returncode == 1, found.stderr
        assert "white-space: " in found.stdout
        assert "user»\\n«Where is it?" in found.stdout
        assert "user»\\n\\n«Where is it?" in found.stdout
        assert "chats.jsonl:2" in found.stdout
        as_json = run("doctor", "serving", url, "--tokenizer", QWEN, "--json")
    assert json.loads(as_json.stdout)["causes"].keys() == {"white-space"}
