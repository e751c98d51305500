"""The types of conversations: messages and their parts, calls, tools, and what reading them found.

A message is a plain dict in the OpenAI chat format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, NotRequired, Required, TypedDict


class ChatMsg(TypedDict):
    """One message of an SFT example (`format/sft.py`): a role and its text."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatExample(TypedDict):
    """One SFT example (`format/sft.py`)."""

    messages: list[ChatMsg]


class TextPart(TypedDict):
    """A text, in a content that is a list of parts."""

    type: Literal["text"]
    text: str


class ThinkingPart(TypedDict):
    """Reasoning of an assistant, in a content that is a list of parts; families read it as the message's reasoning."""

    type: Literal["thinking"]
    thinking: str


class ImagePart(TypedDict, total=False):
    """An image, in a content that is a list of parts; one of the fields besides `type` is the image."""

    type: Literal["image", "image_url"]
    image: Any
    url: str
    path: str
    image_url: dict[str, Any]


class VideoPart(TypedDict, total=False):
    """A video, in a content that is a list of parts; `normalise` refuses it, as it refuses audio."""

    type: Literal["video", "video_url"]
    video: Any
    url: str
    path: str
    video_url: dict[str, Any]


ContentPart = TextPart | ThinkingPart | ImagePart | VideoPart
Content = str | list[ContentPart]


class ToolCallFunction(TypedDict):
    """The function of a tool call; `arguments` may be JSON text, and are an object after `normalise`."""

    name: str
    arguments: dict[str, Any]


class ToolCall(TypedDict):
    """A tool call of an assistant message."""

    function: ToolCallFunction
    id: NotRequired[str]
    type: NotRequired[str]


class ToolSpec(TypedDict):
    """A tool that a conversation offers; `function` has its name, description and JSON schema."""

    function: dict[str, Any]
    type: NotRequired[str]


class Message(TypedDict, total=False):
    """One message after `normalise`.

    `train` and `weight` determine whether, and how much, an assistant message counts in the loss.
    """

    role: Required[str]
    content: Required[str | list[dict[str, Any]]]
    reasoning_content: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    train: bool
    weight: float


# A conversation as an argument: `Message`s, or plain dictionaries, which `normalise` checks.
Messages = Sequence[Mapping[str, object]]


class ReadMessages(list[Message]):
    """Messages in the one form of the package, which a source has read: renderers do not read them a second time."""


class Normalised(NamedTuple):
    """A conversation in the one form of the package, and what became of what the caller wrote.

    Attributes:
        messages: see `normalise`.
        tools: in the shape of the OpenAI chat format; `None` if there are none.
        changes: code -> how many times something was read as something else, such as `arguments_decoded`.
        unread: key -> how many times nothing read it: `message.KEY`, `call.KEY`, `tool.KEY` or `row.KEY`.
    """

    messages: list[Message]
    tools: list[ToolSpec] | None
    changes: Mapping[str, int]
    unread: Mapping[str, int]


@dataclass(frozen=True)
class Conversation:
    """A normalised conversation with its source.

    Attributes:
        messages: after `normalise`.
        where: the place that errors name, such as `chats.jsonl:17`.
        group: successive conversations with the same group are put into the same split.
        tools: the tools that the conversation offers.
        chat_template_kwargs: options of the renderer for this conversation alone.
        metadata: other fields of the row.
        changes, unread: see `Normalised`; builds count the rows that have each of them.
    """

    messages: list[Message]
    where: str = ""
    group: str | None = None
    tools: list[ToolSpec] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)


class NoContent(str):
    """The content of a message without content (`None`, or no key). It equals `""`.

    Only chat templates see the difference: transformers does not pass them such a key, and some templates treat a
    missing content differently from an empty text.
    """

    __slots__ = ()


NO_CONTENT: Final = NoContent()
NOTHING_TRAINED: Final = "nothing_trained"  # the rejection reason of rows without any trained token
