"""Templates in a process of their own: the same renderings, and limits that hold whatever the template does."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError, UsageError
from niels_gpt.renderers.template import isolation
from niels_gpt.renderers.template.execution.provenance import MessageDict, TrackedDict, TrackedList, track, tracked_text
from niels_gpt.renderers.template.isolation import Isolation, TemplateProcess, from_json_value, to_json_value
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.conftest import run_cli
from tests.renderers.chats import conversation
from tests.renderers.sweeps import wanted
from tests.renderers.test_template import CHATML
from tests.renderers.tiny_families import folder_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such limits")
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
WITH_CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson }}{% endfor %}{{ m.reasoning_content }}{{ '<|im_end|>\n' }}{% endfor %}{{ tools | tojson }}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DAYS = "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}{% endfor %}"


def isolated(source: str = CHATML, limits: Isolation | None = None, **more: Any) -> TemplateRenderer:
    return TemplateRenderer(folder_of("qwen3"), template=source, isolate=limits or Isolation(), **more)


def test_renderings_are_the_same() -> None:
    here, apart, rng = TemplateRenderer(folder_of("qwen3"), template=WITH_CALLS), isolated(WITH_CALLS), random.Random(3)
    for _ in range(30):
        messages, tools = conversation(rng, wanted("qwen3", parts=False, nones=False))
        for gen in (False, True):
            assert apart.render(messages, tools=tools, add_generation_prompt=gen) == here.render(
                messages, tools=tools, add_generation_prompt=gen
            )
    again = pickle.loads(pickle.dumps(apart))
    assert again.render(CHAT) == here.render(CHAT)


def test_errors_are_the_same() -> None:
    for source in ("{{ raise_exception('no') }}", "{{ 1 // 0 }}", "{{ 'x' * 2000000000 }}", DAYS):
        with pytest.raises((MessageError, TemplateError)) as here:
            TemplateRenderer(folder_of("qwen3"), template=source).render(CHAT)
        with pytest.raises(type(here.value)) as apart:
            isolated(source).render(CHAT)
        assert str(apart.value) == str(here.value)
        assert getattr(apart.value, "reason", "") == getattr(here.value, "reason", "")
    with pytest.raises(TemplateError, match="line 1: "):
        isolated("{% for %}")


def test_the_clock_is_asked() -> None:
    assert isolated(DAYS, clock=lambda form: "26" if form == "%d" else "?").text(CHAT) == "26hellohi"


def _unbound(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """A child that does something else than to run the template."""
    code = isolation._CHILD.replace("serve(int", f"{statement}; serve(int")
    monkeypatch.setattr(isolation, "_CHILD", code)


RUN = "import niels_gpt.renderers.template.isolation as i; i.run_template = lambda t, v, reads: "


def test_time_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the budget lets through: here a child without any."""
    with monkeypatch.context() as patch:
        _unbound(patch, "import time; " + RUN + "iter(lambda: time.sleep(60), 1)")
        stuck = isolated(limits=Isolation(seconds=0.5))
        with pytest.raises(TemplateError, match=r"more than 0\.5 seconds and was stopped"):
            stuck.render(CHAT)
    assert stuck.render(CHAT) == TemplateRenderer(folder_of("qwen3"), template=CHATML).render(CHAT)
    _unbound(monkeypatch, RUN + "[b'x' * (1 << 40)]")
    with pytest.raises(TemplateError, match="may have 2048 MiB"):
        isolated().render(CHAT)


@pytest.mark.parametrize(
    "reply",
    [
        '{"chunks": [["a", null, 7]]}',
        '{"chunks": [["a", [[5, 0]], 0]]}',
        '{"chunks": [["a", [[1, 99]], 0]]}',
        '{"chunks": [["a", [[2, 0], [-1, 0]], 0]]}',
        '{"chunks": [[1, null, 0]]}',
        '{"chunks": [1]}',
        '{"chunks": 1}',
        '{"chunks": [["a", null]]}',
        '{"error": 1}',
        '{"error": ["a"]}',
        "{}",
        "[]",
        "7",
        "nonsense",
        "[" * 100_000,
    ],
)
def test_what_a_child_says_is_checked(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = isolated()
    child = renderer._compiled._child  # type: ignore[union-attr]
    monkeypatch.setattr(child, "_exchange", lambda request, deadline: reply.encode())
    with pytest.raises(TemplateError, match="process of the chat template"):
        renderer.render(CHAT)


def test_a_child_that_was_killed_is_started_again() -> None:
    renderer = isolated()
    os.kill(renderer._compiled._child.process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    renderer._compiled._child.process.wait()  # type: ignore[union-attr]
    assert renderer.text(CHAT) == TemplateRenderer(folder_of("qwen3"), template=CHATML).text(CHAT)


def test_a_fork_has_a_child_of_its_own() -> None:
    renderer = isolated()
    expected = renderer.render_ids(CHAT)
    out, into = os.pipe()
    if not (forked := os.fork()):
        with os.fdopen(into, "w") as file:
            json.dump(renderer.render_ids(CHAT), file)
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as file:
        assert json.load(file) == expected
    os.waitpid(forked, 0)
    assert renderer.render_ids(CHAT) == expected


def test_threads_share_a_child() -> None:
    renderer, got = isolated(), []
    expected = renderer.render_ids(CHAT)
    threads = [threading.Thread(target=lambda: got.append(renderer.render_ids(CHAT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [expected] * 4


def test_the_child_has_nothing_to_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No secret of the environment, and no file can be written."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    _unbound(monkeypatch, "import os; " + RUN + "[i.Chunk(str(sorted(os.environ)), -1)]")
    assert "HF_TOKEN" not in isolated().text(CHAT)
    target = str(tmp_path / "file")
    _unbound(monkeypatch, RUN + f"[i.Chunk(str(open({target!r}, 'w').write('x' * 9999)), -1)]")
    with pytest.raises((TemplateError, MessageError)):
        isolated().text(CHAT)


def test_values_travel_with_their_origins() -> None:
    values: list[Any] = [
        None,
        True,
        -3,
        1.5,
        "é\ud800",
        tracked_text("<s>", -1),
        track({"a": ["b", {"c": None}], 1: 2}, 4),
        MessageDict({"role": tracked_text("user", -1), "content": track("hello", 0)}, 0),
        [1, (2, "x")],
    ]
    for value in values:
        again = from_json_value(json.loads(json.dumps(to_json_value(value))))
        assert again == (list(map(_lists, value)) if isinstance(value, list) else value)
        assert to_json_value(again) == to_json_value(value)
        if isinstance(value, MessageDict | TrackedDict | TrackedList):
            assert type(again) is type(value)
    with pytest.raises(UsageError, match="a variable of the chat template is a function"):
        to_json_value(lambda: 0)


def _lists(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("limits", [{"memory": 1}, {"seconds": 0}, {"seconds": float("nan")}])
def test_limits_have_a_range(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Isolation(**limits)


def test_on_the_command_line(tmp_path: Path) -> None:
    chats, template = tmp_path / "chats.jsonl", tmp_path / "template.jinja"
    chats.write_text(json.dumps({"messages": CHAT}) + "\n")
    template.write_text(CHATML)
    line = ("render", chats, 0, "--tokenizer", folder_of("qwen3"), "--json")
    assert run_cli(*line, "--template", template, "--isolate").stdout == run_cli(*line, "--template", template).stdout
    template.write_text("{{ 'x' * 2000000000 }}")
    refused = run_cli(*line, "--template", template, "--isolate")
    assert (refused.returncode, "Traceback" in refused.stderr) == (3, False)
    refused = run_cli(*line, "--renderer", "qwen3", "--isolate")
    assert (refused.returncode, "writes by its own grammar" in refused.stderr) == (2, True)


def test_a_process_ends_with_its_renderer() -> None:
    process = TemplateProcess(CHATML, str, Isolation())
    child = process._child
    assert child is not None
    popen = child.process
    del process, child
    assert popen.poll() is not None
