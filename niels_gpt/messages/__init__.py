"""Conversations: the one door through which messages, calls and tools enter the package.

::

    reading.py      `normalise` and `read_conversation`: messages in the one form of the package
    reasoning.py    reasoning under any name           loss.py     flags and weights
    calls.py        calls and their arguments          tools.py    declarations and their schemas
    keys.py         what the keys in use mean          notes.py    what reading notes
    types.py        the types, and what reading found (`Normalised`)
"""

from niels_gpt.messages.calls import check_text
from niels_gpt.messages.loss import MOST_WEIGHT, is_untrained, weight_of
from niels_gpt.messages.notes import Notes
from niels_gpt.messages.reading import normalise, read_conversation, read_messages
from niels_gpt.messages.reasoning import reasoning_of
from niels_gpt.messages.tools import read_tools
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
    ReadMessages,
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
    "Notes",
    "ReadMessages",
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
    "read_messages",
    "read_tools",
    "reasoning_of",
    "weight_of",
]
