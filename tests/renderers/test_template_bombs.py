"""Templates that ask for more memory or time than there is end in one clear error, long before either runs out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.chats import TOOLS
from tests.renderers.template_bombs import BOMBS, LONG_ONES, SLOWEST
from tests.renderers.tiny_families import folder_of

ROOT = Path(__file__).parents[2]
MEMORY = 3  # GiB of address space
ASKED = {"role": "user", "content": "hello there"}


def explode(names: list[str]) -> list[dict[str, Any]]:
    """Run bombs in a process of their own, which may have 3 GiB; a line for each that ended."""
    command = [sys.executable, "-m", "tests.renderers.template_bombs", str(MEMORY), *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{told[-1] if told else 'nothing'} {done.stderr[-2000:]}"
    return [one for one in told if "ended" in one]


def test_bombs_end_in_an_error() -> None:
    names = [name for name in BOMBS if name not in LONG_ONES]
    ended = explode(names)
    assert [one["bomb"] for one in ended] == names
    assert len(names) >= 74
    assert [one for one in ended if not one["ended"].startswith(("TemplateError: ", "MessageError: "))] == []
    assert max(one["peak"] for one in ended) < 1024  # MiB


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_ONES)
def test_bombs_of_much_work_end_in_an_error(name: str) -> None:
    (ended,) = explode([name])
    assert ended["ended"].startswith(("TemplateError: ", "MessageError: "))
    assert ended["peak"] < 1024
    assert ended["seconds"] < SLOWEST


def long_chat(turns: int) -> list[dict[str, Any]]:
    text = "alpha **beta** x < y\n" * 20
    return [{"role": role, "content": f"{at} {text}"} for at in range(turns) for role in ("user", "assistant")]


@pytest.mark.parametrize(
    "source",
    [
        # all written so far is copied for each message
        "{% set ns = namespace(out='') %}{% for m in messages %}"
        "{% set ns.out = ns.out + m.role + m.content + '<|im_end|>' %}{% endfor %}{{ ns.out }}",
        # each message looks at all others
        "{% for m in messages %}{% for other in messages %}{% if other is sameas(m) %}{% endif %}{% endfor %}"
        "{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ tools | tojson(indent=4) }}{{ m.content }}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}"
        "{{ ns.l | map(attribute='content') | join('\\n') }}",
    ],
)
def test_long_conversations_are_not_refused(source: str) -> None:
    chat = long_chat(200)
    text = TemplateRenderer(folder_of("qwen3"), template=source).text(chat, tools=TOOLS)
    assert all(message["content"] in text for message in chat)


def test_limits_grow_with_the_conversation() -> None:
    """The same work is refused for a short conversation."""
    source = "{% set x = messages[0].content[:5] * 1000000 %}{{ x | length }}"
    renderer = TemplateRenderer(folder_of("qwen3"), template=source)
    with pytest.raises(TemplateError, match="larger than"):
        renderer.text([ASKED])
    assert renderer.text([{"role": "user", "content": "12345" * 1_000_000}]) == "5000000"


@pytest.mark.parametrize("call", ["enter(0, messages[0])", "leave(0)", "charge(-1)", "note(1)", "report_to(messages)"])
def test_templates_cannot_call_what_compiled_loops_call(call: str) -> None:
    renderer = TemplateRenderer(folder_of("qwen3"), template=f"{{{{ context.{call} }}}}")
    with pytest.raises(MessageError, match="'context' is undefined"):
        renderer.text([ASKED])


@pytest.mark.parametrize("name", ["context", "environment", "niels_message", "niels_0", "resolve", "LoopContext"])
def test_variables_with_names_of_compiled_templates_change_nothing(name: str) -> None:
    source = "{% for m in messages %}<u>{{ m.role + m.content }}{{ loop.first }}{% endfor %}"
    expected = TemplateRenderer(folder_of("qwen3"), template=source).pieces([ASKED, ASKED])
    setting = f"{{% set {name} = messages %}}"
    inside = source.replace("<u>", setting + "<u>")
    for changed in (setting + source, inside):
        assert TemplateRenderer(folder_of("qwen3"), template=changed).pieces([ASKED, ASKED]) == expected
