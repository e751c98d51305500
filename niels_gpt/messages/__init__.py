"""Conversations: the one door through which messages, calls and tools enter the package.

::

    types.py      the types, and what reading found (`Normalised`)
    reading.py    `normalise` and `read_conversation`: messages in the one form of the package
"""

from niels_gpt.messages.reading import (
    MOST_WEIGHT,
    REASONING_FIELDS,
    check_text,
    is_untrained,
    normalise,
    read_conversation,
    reasoning_of,
    weight_of,
    with_reasoning_field,
)
from niels_gpt.messages.types import (
    NO_CONTENT,
    NOTHING_TRAINED,
    ChatExample,
    ChatMsg,
    Content,
    ContentPart,
    Conversation,
    ImagePart,
    Message,
    Messages,
    NoContent,
    Normalised,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallFunction,
    ToolSpec,
    VideoPart,
)

__all__ = [
    "MOST_WEIGHT",
    "NOTHING_TRAINED",
    "NO_CONTENT",
    "REASONING_FIELDS",
    "ChatExample",
    "ChatMsg",
    "Content",
    "ContentPart",
    "Conversation",
    "ImagePart",
    "Message",
    "Messages",
    "NoContent",
    "Normalised",
    "TextPart",
    "ThinkingPart",
    "ToolCall",
    "ToolCallFunction",
    "ToolSpec",
    "VideoPart",
    "check_text",
    "is_untrained",
    "normalise",
    "read_conversation",
    "reasoning_of",
    "weight_of",
    "with_reasoning_field",
]
