"""The conversations whose renderings are kept as golden texts: few, small, the same for every family."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, get_args

from niels_gpt.renderers.family import Family
from niels_gpt.renderers.image_family import TakesImages

Message = dict[str, Any]


@dataclass(frozen=True)
class Chat:
    """A conversation.

    Attributes:
        tools: tools are declared.
        prompt: the generation prompt follows.
        samples: its training samples are shown, and not its rendering.
        produced: the last message is written as the model produced it (`Family.as_produced`).
        options: of the family, where they are not the defaults.
    """

    messages: list[Message]
    tools: bool = False
    prompt: bool = False
    produced: bool = False
    samples: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def has_calls(self) -> bool:
        """Tools are declared or called."""
        return self.tools or any("tool_calls" in message for message in self.messages)


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool(
        "depth",
        "How deep <b>it</b> is.",
        ["at"],
        at={"type": "string", "description": "A place.", "enum": ["here", "Zürich"]},
        feet={"type": "boolean", "default": False},
    ),
    _tool("now", "The time.", []),
]


def _said(role: str, text: Any, **more: Any) -> Message:
    return {"role": role, "content": text, **more}


def _call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
    # Nine letters and digits, as Mistral's ids are.
    return {"id": f"{name:a<8}{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _calling(text: str, *calls: dict[str, Any], **more: Any) -> Message:
    return _said("assistant", text, tool_calls=list(calls), **more)


def _result(call: dict[str, Any], text: Any) -> Message:
    return _said("tool", text, name=call["function"]["name"], tool_call_id=call["id"])


def _parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


_SYSTEM, _USER, _MORE = _said("system", "Be brief."), _said("user", "How deep is it?"), _said("user", "And now?")
_ANSWER, _LATER = _said("assistant", "Twelve feet."), _said("assistant", "Ten.")
_DEPTH, _NOW = _call("depth", 1, at="Zürich", feet=True), _call("now", 2)
_NESTED = _call("depth", 3, at="a\nb", feet=None, more={"list": [1, 2.5, "x"], "empty": {}})
_AS_TEXT = _call("depth", 4) | {"function": {"name": "depth", "arguments": '{"at":"\\u00e9",\n "feet": 1.0}'}}
_RESULT, _TIME = _result(_DEPTH, "12"), _result(_NOW, '{"hour": 9}')
_THOUGHT, _INLINE = {"reasoning_content": "They ask."}, "<think>\nThey ask.\n</think>\n\nTwelve."
_CALL = [_USER, _calling("", _DEPTH), _RESULT, _ANSWER]
_REASONED = [
    _USER,
    _calling("", _DEPTH, reasoning_content="I must measure."),
    _RESULT,
    _said("assistant", "Twelve.", reasoning_content="It is twelve."),
]
_RAW = ("b", "</think>b", "b\n</assistant>", "b</assistant>\n", "b\n", "", "<think>r</think>b", "r</think>b")
_TWICE = _said("assistant", f"Hm. {_INLINE}", reasoning_content="So.")
_PICTURE = {"type": "image_url", "image_url": {"url": "depth.png"}}

CHATS = {
    "plain": Chat([_USER, _ANSWER]),
    "turns": Chat([_SYSTEM, _USER, _ANSWER, _MORE, _LATER]),
    "prompt": Chat([_SYSTEM, _USER], prompt=True),
    "late system": Chat([_USER, _ANSWER, _SYSTEM, _MORE, _LATER]),
    "two system messages": Chat([_SYSTEM, _said("system", "Be kind."), _USER, _ANSWER]),
    "parts": Chat([_said("system", _parts("Be ", "brief.")), _said("user", _parts("How", " deep?")), _ANSWER]),
    "white space": Chat(
        [_said("user", " a \n"), _said("assistant", "\n b "), _said("user", ""), _said("assistant", "")]
    ),
    "reasoning": Chat([_USER, _ANSWER | _THOUGHT, _MORE, _LATER | _THOUGHT]),
    "reasoning in the content": Chat(
        [_USER, _said("assistant", _INLINE), _MORE, _said("assistant", "<think>Again.</think>Ten.")]
    ),
    "reasoning in a field and in the content": Chat([_USER, _TWICE, _MORE, _ANSWER, _MORE, _TWICE]),
    # Some generation prompts end in such a text, and what the model writes is sampled all the same.
    "answers like a tag": Chat(
        [message for text in ("<", "</thi", "<think>", "\n<", " ") for message in (_MORE, _said("assistant", text))]
    ),
    "tools": Chat([_USER, _ANSWER], tools=True),
    "tools and a system message": Chat([_SYSTEM, _USER], tools=True, prompt=True),
    "one call": Chat([*_CALL, _MORE, _LATER]),
    "text beside a call": Chat([_USER, _calling("I look.", _NESTED)]),
    "text and reasoning beside a call": Chat([_USER, _calling("I look.", _DEPTH, **_THOUGHT), _RESULT, _ANSWER]),
    "arguments as text": Chat([_USER, _calling("", _AS_TEXT)]),
    "parallel calls": Chat([_USER, _calling("", _DEPTH, _NOW), _RESULT, _TIME, _ANSWER]),
    "results in another order": Chat([_USER, _calling("", _DEPTH, _NOW), _TIME, _RESULT], prompt=True),
    "reasoning before a call": Chat(_REASONED[:3], prompt=True),
    "reasoning around a call": Chat(_REASONED),
    "reasoning around a call, as produced": Chat(_REASONED, produced=True),
    "reasoning of earlier turns": Chat([*_REASONED, _MORE, _LATER | _THOUGHT]),
    "samples": Chat([_USER, _ANSWER | _THOUGHT, _MORE, _LATER | {"train": False}, _MORE, _LATER, _MORE], samples=True),
    "samples with a call": Chat([*_REASONED, _MORE, _LATER | _THOUGHT, _MORE], samples=True),
}
IMAGES = {
    "images": Chat([_said("user", [*_parts("Look: "), _PICTURE, *_parts(" and "), _PICTURE]), _ANSWER]),
    "images in results": Chat([_USER, _calling("", _DEPTH), _result(_DEPTH, [_PICTURE])]),
    "add_vision_id=True": Chat(
        [_said("user", [_PICTURE, *_parts("How deep?")]), _ANSWER, _said("user", [_PICTURE])],
        options={"add_vision_id": True},
    ),
}
# What one family alone reads.
PARTICULAR: dict[str, dict[str, Chat]] = {
    "deepseek-v4": {"tools keep reasoning": Chat([*_REASONED, _MORE, _LATER], tools=True)},
    "deepseek-v4.1": {"reasoning_effort=33": Chat([_USER], prompt=True, options={"reasoning_effort": 33})},
    "deepseek-v3": {
        "two cycles": Chat([_USER, _calling("So.", _DEPTH), _RESULT, _calling("", _DEPTH, _NOW), _RESULT, _TIME, _MORE])
    },
    "glm-5": {
        "sampled_openers=True, other openers": Chat(
            [_USER, _ANSWER, _SYSTEM, _USER, _ANSWER, _ANSWER], options={"sampled_openers": True}
        )
    },
    "inkling": {
        "names of results": Chat([*_CALL[:2], _said("tool", "12", tool_call_id="depthaaa1"), _said("tool", "13")])
    },
    "gpt-oss": {"developer": Chat([_said("developer", "Be brief."), _USER, _ANSWER])},
    "kimi-k2": {
        "names": Chat([_said("user", "Hi.", name="Ann"), _said("assistant", "Hi.", name="Bo")]),
        "tool_declare": Chat([_said("tool_declare", "[]"), _USER, _ANSWER]),
    },
    "minimax-m2": {
        "day and place": Chat([_SYSTEM | {"current_date": "2026-01-31", "current_location": "Oslo"}, _USER, _ANSWER])
    },
    "laguna-xs.2": {
        "no system block": Chat([_said("system", ""), _USER, _ANSWER]),
        "raw answers": Chat(
            [message for text in _RAW for message in (_USER, _said("assistant", text))]
            + [_USER, _said("assistant", "b", reasoning_content="not written", tool_calls=[_NOW]), _TIME],
            options={"render_assistant_messages_raw": True},
        ),
        "raw answers that think": Chat(
            [message for text in _RAW for message in (_USER, _said("assistant", text))],
            options={"render_assistant_messages_raw": True, "enable_thinking": True},
        ),
    },
}
# Options that change what is written of tools or around them.
OF_TOOLS = ("enable_thinking", "reasoning_effort", "tools_in_user_message")
# Values of options that are neither switches nor lists of words; none of those that are shown elsewhere.
VALUES: dict[str, tuple[Any, ...]] = {
    "conversation_start_date": ("2026-01-31",),
    "date_string": ("31 Jan 2026",),
    "default_system_text": ("Be kind.",),
    "knowledge_cutoff": ("2025-01",),
    "model_identity": ("You are a buoy.",),
    "separator": ("\n\n", "\n ", ""),
    "thinking_effort": (0, 0.123, 0.25, 0.99, None),
    "name": (),
    "special_tokens_in_content": (),
    "add_vision_id": (),
    "on_unwritten": (),
    "render_assistant_messages_raw": (),
}


def chats_of(family: type[Family]) -> dict[str, Chat]:
    """The conversations of one family: those of all, and one for each value of each of its options."""
    chats, options = CHATS | PARTICULAR.get(family.name, {}), family.config_class.model_fields
    if issubclass(family, TakesImages):
        chats |= {name: chat for name, chat in IMAGES.items() if chat.options.keys() <= options.keys()}
    for on in (("sampled_openers",), ("final_stop",), ("sampled_openers", "final_stop")):  # what ends GLM's turns
        if set(on) <= options.keys():
            for name in ("samples", "samples with a call"):
                chats[f"{name}, {', '.join(on)}"] = replace(CHATS[name], options=dict.fromkeys(on, True))
    has_tools = "tool" in family.roles
    if not has_tools:  # all conversations with calls are refused alike: two show it
        shown = ("tools", "one call")
        chats = {name: chat for name, chat in chats.items() if name in shown or not chat.has_calls}
    asked = [_SYSTEM, *_REASONED, _MORE] if has_tools else [_SYSTEM, _USER, _ANSWER, _MORE]
    for option, field_of in options.items():
        for value in VALUES.get(option, _values(field_of.annotation)):
            if value != field_of.default:
                prompt = option != "final_stop"  # which is written where no prompt follows
                chat = Chat(
                    asked if prompt else asked[:-1], has_tools and option in OF_TOOLS, prompt, options={option: value}
                )
                chats[f"{option}={value if str(value).strip() else repr(value)}"] = chat
    return chats


def _values(annotation: Any) -> tuple[Any, ...]:
    """The values of a switch, or of a list of words."""
    if annotation in (bool, bool | None):
        return True, False
    parts = [(part,) if isinstance(part, str) else _values(part) for part in get_args(annotation)]
    return tuple(value for values in parts for value in values)
