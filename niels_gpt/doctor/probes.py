"""Small conversations that show how a format writes: two turns, a system message, tools, reasoning."""

from __future__ import annotations

from typing import Any, Final

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
    """What the tool returned."""
    return {"role": "tool", "content": text, "tool_call_id": id or f"functions.{name}:0", "name": name}


_SYSTEM: Final = {"role": "system", "content": "Answer like a lighthouse."}
_TWO: Final = [user("Where is it?"), assistant("In the north"), user("And now"), assistant("There it stays.")]

# Name, messages, tools. Names are stable: drift reports carry them.
PROBES: Final[tuple[Probe, ...]] = (
    ("two turns", _TWO, None),
    ("a system message", [_SYSTEM, user("Hello"), assistant("Good evening")], None),
    ("a system message and two turns", [_SYSTEM, *_TWO], None),
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
        [user("Rain?"), call({"city": "Oslo"}), result("4 degrees"), assistant("Cold."), *_TWO],
        TOOLS,
    ),
    (
        "another tool call",
        [user("Time?"), call({"city": "Rome"}, "clock"), result("noon", "clock"), assistant("Twelve.")],
        TOOLS,
    ),
    (
        "a tool call with a short id",
        [user("Rain?"), call({"city": "Oslo"}, id="aBcDeF123"), result("4", id="aBcDeF123"), assistant("Cold.")],
        TOOLS,
    ),
    ("two turns of one word", [user("a"), assistant("b"), user("c"), assistant("d")], None),
    ("other scripts", [user("你好"), assistant("Größe, мир 🤖"), user("1 + 1\n"), assistant("2\n\n= 2")], None),
)
