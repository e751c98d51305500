"""Templates in a process of their own: the same texts, and limits that hold whatever the template does."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template import isolation
from niels_gpt.renderers.template.environment import compile_template, run_template
from niels_gpt.renderers.template.isolation import Isolation, IsolationError, TemplateProcess
from niels_gpt.renderers.template.renderer import no_clock
from tests.assets import TEMPLATES, needs_assets
from tests.conftest import run_cli
from tests.renderers.chats import conversation
from tests.renderers.small import CHATML
from tests.renderers.sweeps import wanted
from tests.renderers.tiny_families import folder_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such limits")
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
GIVEN: dict[str, Any] = {"messages": CHAT, "tools": None, "add_generation_prompt": False}
TEXT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nhi<|im_end|>\n"
DAYS = "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}{% endfor %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def day(form: str) -> str:
    return "26" if form == "%d" else "?"


def process(source: str = CHATML, limits: Isolation | None = None, clock: Any = day) -> TemplateProcess:
    return TemplateProcess(source, clock, limits or Isolation())


# ---- the same texts


@needs_assets
@pytest.mark.parametrize("path", TEMPLATES[::6], ids=lambda path: path.stem)
def test_texts_are_those_of_a_rendering_here(path: Path) -> None:
    source, rng = path.read_text(encoding="utf-8"), random.Random(path.stem)
    here, apart = compile_template(source, day), process(source)
    for number in range(20):
        messages, tools = conversation(rng, wanted("qwen3", parts=False))
        given = {"messages": messages, "tools": tools, "add_generation_prompt": number % 2 == 0, "bos_token": "<s>"}
        assert outcome(apart.render, given) == outcome(partial(run_template, here), given)


def outcome(render: Callable[[dict[str, Any]], str], given: dict[str, Any]) -> str:
    """The text, or the error."""
    try:
        return render(given)
    except (MessageError, TemplateError) as error:
        return f"{type(error).__name__} {getattr(error, 'reason', '')} {error}"


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no') }}", "{{ 1 // n }}", "{{ ''.__class__ }}", "{{ x }}{{ [x] | tojson }}", DAYS]
)
def test_errors_and_odd_texts_are_the_same(source: str) -> None:
    here, given = compile_template(source, no_clock), {**GIVEN, "n": 0, "x": "é\ud800\U0001f991"}
    assert outcome(process(source, clock=no_clock).render, given) == outcome(partial(run_template, here), given)


# ---- limits


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        ENDLESS.replace("{% endfor %}", "{{ strftime_now('%d') }}{% endfor %}", 1),
        "{{ 10 ** 10000000000 }}",  # a constant, which is computed by the compiler
    ],
)
def test_time_is_bounded(source: str) -> None:
    with pytest.raises(IsolationError, match=r"^the chat template took more than 0\.5 seconds and was stopped; use an"):
        process(source, Isolation(seconds=0.5)).render(GIVEN)


def test_memory_is_bounded() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    doubled = "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    source = "{% set ns = namespace(x=messages[0].content) %}{% if big %}" + doubled + "{% endif %}ok"
    apart = process(source, Isolation(memory=1 << 28))
    with pytest.raises(TemplateError, match="needs more memory than there is"):
        apart.render({**GIVEN, "big": True})
    assert apart.render(GIVEN) == "ok"
    del apart
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 1 << 18)  # KiB


def in_the_child(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """A child that does something else than to run the template, as one that broke out of the sandbox could."""
    code = isolation._CHILD.replace("serve(int", f"{statement}; serve(int")
    monkeypatch.setattr(isolation, "_CHILD", code)


TAKEN_OVER = "import niels_gpt.renderers.template.isolation as i; i.run_template = lambda t, v: "


def test_a_process_that_stops_or_ends_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        in_the_child(patch, "import time; " + TAKEN_OVER + "time.sleep(60)")
        stuck = process(limits=Isolation(seconds=0.5))
        with pytest.raises(IsolationError, match=r"more than 0\.5 seconds and was stopped"):
            stuck.render(GIVEN)
        in_the_child(patch, "import os; " + TAKEN_OVER + "os._exit(0)")
        ended = process()
        with pytest.raises(
            IsolationError, match=r"^the chat template ended its process, which may have 2048 MiB of mem"
        ):
            ended.render(GIVEN)
    assert stuck.render(GIVEN) == ended.render(GIVEN) == TEXT


def test_the_child_has_nothing_to_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No secret of the environment, and no file can be written."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    with monkeypatch.context() as patch:
        in_the_child(patch, "import os; " + TAKEN_OVER + "str(sorted(os.environ))")
        assert "HF_TOKEN" not in process().render(GIVEN)
    target = tmp_path / "file"
    in_the_child(monkeypatch, TAKEN_OVER + f"str(open({str(target)!r}, 'w').write('x' * 9999))")
    with pytest.raises(MessageError, match="File too large"):
        process().render(GIVEN)
    assert not target.exists() or target.stat().st_size == 0


@pytest.mark.parametrize("reply", [{}, {"text": 3}, {"text": None}, {"error": "no"}, {"error": ["", 1]}, {"more": "x"}])
def test_a_malformed_reply_is_refused(monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any]) -> None:
    in_the_child(monkeypatch, f"import niels_gpt.renderers.template.isolation as i; i._reply = lambda f, a: {reply}")
    with pytest.raises(IsolationError, match="sent a malformed reply"):
        process().render(GIVEN)


DOUBLED = "{% set ns = namespace(x='x', l=[1], n=3) %}{% for i in range(60) %}WHAT{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        DOUBLED.replace("WHAT", "{% set ns.x = ns.x | replace('x', 'xx') %}"),
        DOUBLED.replace("WHAT", "{% set ns.l = ns.l + ns.l %}"),
        DOUBLED.replace("WHAT", "{% set ns.n = ns.n * ns.n %}"),
        "{{ messages[0].content | center(20000000000) }}",
        "{{ '%20000000000s' % messages[0].content }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(300) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{{ " + "1 + " * 30000 + "1 }}",
    ],
)
def test_bombs_end_in_an_error(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((TemplateError, MessageError)) as caught:
        process(source, Isolation(memory=1 << 29, seconds=0.5)).render(GIVEN)
    assert len(str(caught.value)) < 3000
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < isolation.LONGEST_REPLY


# ---- the life of a process


def test_a_fork_has_a_child_of_its_own() -> None:
    apart = process()
    out, into = os.pipe()
    if not (forked := os.fork()):
        with os.fdopen(into, "w") as file:
            file.write(apart.render(GIVEN))
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as file:
        assert file.read() == TEXT
    os.waitpid(forked, 0)
    assert apart.render(GIVEN) == TEXT


# ---- renderers and commands


def test_on_the_command_line(tmp_path: Path) -> None:
    chats, template = tmp_path / "chats.jsonl", tmp_path / "template.jinja"
    chats.write_text(json.dumps({"messages": CHAT}) + "\n")
    template.write_text(CHATML)
    line = ("show", chats, 0, "--tokenizer", folder_of("qwen3"), "--json")
    assert run_cli(*line, "--template", template, "--isolate").stdout == run_cli(*line, "--template", template).stdout
    template.write_text("{{ 'x' * 20000000000 }}")
    refused = run_cli(*line, "--template", template, "--isolate")
    assert (refused.returncode, "Traceback" in refused.stderr) == (3, False)
    refused = run_cli(*line, "--renderer", "qwen3", "--isolate")
    assert (refused.returncode, "writes by its own grammar" in refused.stderr) == (2, True)
