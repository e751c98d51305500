"""The probes: small conversations that show how a renderer writes turns, reasoning, tools and other scripts.

Contents begin and end without white space (but for the last probe), so that white space next to them in a rendering is
known to be the template's.
"""

from __future__ import annotations

from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.renderers.types import RenderedTokens

AnyRenderer = Family | DefaultRenderer
Probe = tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "the weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    """An assistant message."""
    return {"role": "assistant", "content": text, **more}


def call(arguments: Any, name: str = "weather", *, id: str = "") -> dict[str, Any]:
    """An assistant message that calls the tool; by default with an id as Kimi's format wants it."""
    function = {"name": name, "arguments": arguments}
    return assistant("", tool_calls=[{"id": id or f"functions.{name}:0", "type": "function", "function": function}])


def result(text: str, name: str = "weather", *, id: str = "") -> dict[str, Any]:
    """A tool message with the result of a call."""
    return {"role": "tool", "content": text, "tool_call_id": id or f"functions.{name}:0", "name": name}


_SYSTEM: Final = {"role": "system", "content": "Answer like a lighthouse."}
_TWO_TURNS: Final = [user("Where is it?"), assistant("In the north"), user("And now"), assistant("There it stays.")]

# Name, messages, tools. Names are stable because reports of drift name the probe.
PROBES: Final[tuple[Probe, ...]] = (
    ("two turns", _TWO_TURNS, None),
    ("a system message", [_SYSTEM, user("Hello"), assistant("Good evening")], None),
    ("a system message and two turns", [_SYSTEM, *_TWO_TURNS], None),
    (
        "reasoning",
        [
            user("Count"),
            assistant("Three", reasoning_content="One, two and one more"),
            user("Again"),
            assistant("Four", reasoning_content="Three and one"),
        ],
        None,
    ),
    (
        "a tool call",
        [user("Rain?"), call({"city": "Oslo"}), result("4 degrees"), assistant("Cold."), *_TWO_TURNS],
        TOOLS,
    ),
    (
        # Another name and result: what all tool turns share is the header, and what differs is content.
        "another tool call",
        [user("Time?"), call({"city": "Rome"}, "clock"), result("noon", "clock"), assistant("Twelve.")],
        TOOLS,
    ),
    (
        # Mistral's templates accept only ids of nine letters and digits.
        "a tool call with a short id",
        [user("Rain?"), call({"city": "Oslo"}, id="aBcDeF123"), result("4", id="aBcDeF123"), assistant("Cold.")],
        TOOLS,
    ),
    (
        # With another id: where a header holds the id, it is not the same in both.
        "another tool call with a short id",
        [user("Time?"), call({"city": "Rome"}, "clock", id="Zy9876543"), result("noon", "clock", id="Zy9876543")],
        TOOLS,
    ),
    ("two turns of one word", [user("a"), assistant("b"), user("c"), assistant("d")], None),
    ("other scripts", [user("你好"), assistant("Größe, мир 🤖"), user("1 + 1\n"), assistant("2\n\n= 2")], None),
)


def render_probes(renderer: AnyRenderer) -> dict[str, RenderedTokens | MessageError]:
    """Every probe as the renderer writes it, or the error with which it refuses it, by name."""
    rendered: dict[str, RenderedTokens | MessageError] = {}
    for name, messages, tools in PROBES:
        try:
            rendered[name] = renderer.render(normalise(messages), tools=tools)
        except MessageError as error:
            rendered[name] = error
    return rendered
