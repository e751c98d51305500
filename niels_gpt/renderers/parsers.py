"""Parsers by name, for the completions of models that are rendered through their chat template.

A template shows how tool calls are written, but not how they are read, so the user names a parser. Each tool parser is
one of the dialects that the families use (`renderers/dialects/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.completions.blocks import CallReader
from niels_gpt.renderers.completions.parsed import ParsedToolCall
from niels_gpt.renderers.completions.reading import calls_of
from niels_gpt.renderers.completions.reasoning import strip_think_tags
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import tools_of
from niels_gpt.renderers.dialects.base import schemas_of
from niels_gpt.renderers.dialects.dsml import DSML, SpacedDSML
from niels_gpt.renderers.dialects.json_calls import HermesJSON, Llama4JSON, LlamaJSON, MistralList
from niels_gpt.renderers.dialects.lists import JSONCalls, PythonCalls
from niels_gpt.renderers.dialects.named_calls import GemmaCalls, NamedCalls
from niels_gpt.renderers.dialects.sections import FencedJSON, KimiSection, MiniMaxSection, SeparatedJSON
from niels_gpt.renderers.dialects.xml_tags import FunctionTags, Pairs
from niels_gpt.tokenizer.load import open_encoder

T = TypeVar("T")


class ToolParser(Protocol):
    """Separates the tool calls of a completion from its content."""

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        """The ids of the content, and the calls in order, each with its span in `token_ids`."""


class ReasoningParser(Protocol):
    """Separates the reasoning of a completion from the rest of its text."""

    def extract(self, text: str) -> tuple[str | None, str]:
        """`(reasoning, rest)`; reasoning is `None` if there is none."""


# Several model families share a dialect, so one has several names.
_DIALECTS: dict[str, CallReader] = {
    **dict.fromkeys(("hermes", "qwen2.5", "qwen3"), HermesJSON()),
    **dict.fromkeys(("qwen3-coder", "qwen3.5", "nemotron-3"), FunctionTags(python=True)),
    **dict.fromkeys(("glm", "laguna-xs.2"), Pairs()),
    "kimi-k2": KimiSection(),
    "minimax-m2": MiniMaxSection(),
    "deepseek-v3": FencedJSON(),
    "deepseek-v3.1": SeparatedJSON(),
    "deepseek-v4": DSML(),
    "deepseek-v4.1": SpacedDSML(),
    "llama-3": LlamaJSON(),
    "llama-4": Llama4JSON(),
    **dict.fromkeys(("mistral", "mistral-v7"), MistralList()),
    **dict.fromkeys(("mistral-v11", "mistral-v13"), NamedCalls()),
    "seed-oss": FunctionTags("<seed:tool_call>", "</seed:tool_call>", python=True, newlines=False),
    "hunyuan": JSONCalls("<tool_calls>", "</tool_calls>"),
    "command-a": JSONCalls("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters", "tool_call_id"),
    "apertus": JSONCalls("<|tools_prefix|>", "<|tools_suffix|>", name=""),  # an object's only key is the name
    "lfm2": PythonCalls("<|tool_call_start|>", "<|tool_call_end|>"),
    "gemma-4": GemmaCalls(),
    "olmo-3": PythonCalls("<function_calls>", "</function_calls>"),
}
_TAGS: dict[str, tuple[str, str]] = {
    "think": ("<think>", "</think>"),
    "mistral-v13": ("[THINK]", "[/THINK]"),
    "seed-oss": ("<seed:think>", "</seed:think>"),
    "command-a": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "gemma-4": ("<|channel>thought", "<channel|>"),
}


class DialectParser:
    """A tool parser for one dialect.

    Args:
        name: of the dialect; subclasses have their own.
    """

    name = ""

    def __init__(self, tokenizer: Any, name: str = "") -> None:
        self._encoder, self._form = open_encoder(tokenizer), _DIALECTS[name or self.name]

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        completion = Completion(self._encoder, token_ids, ())
        blocks = list(self._form.read(completion, 0, schemas_of(tools_of(tools))))
        spans = [completion.span(block.start, block.stop) for block in blocks]
        # Nine ids with calls at 3..5 and 6..9 have content at 0..3, 5..6 and 9..9.
        starts, stops = [0, *(stop for _, stop in spans)], [*(start for start, _ in spans), len(completion.ids)]
        parts = [*zip(starts, stops, strict=True)]
        # White space between and after calls belongs to the format, as in the families' parsers.
        content_parts = [part for at, part in enumerate(parts) if not at or completion.has_text(*part)]
        content = [token for lo, hi in content_parts for token in completion.ids[lo:hi]]
        return content, calls_of(blocks)


class Qwen3ToolParser(DialectParser):
    """Hermes JSON between `<tool_call>` tags."""

    name = "qwen3"


class Qwen35ToolParser(DialectParser):
    """Function tags between `<tool_call>` tags, as Qwen3.5, Qwen3.6 and Nemotron 3 write them."""

    name = "qwen3.5"


class GlmToolParser(DialectParser):
    """Pairs of key and value tags between `<tool_call>` tags."""

    name = "glm"


class DeepSeekV3ToolParser(DialectParser):
    """DeepSeek's section of fenced JSON."""

    name = "deepseek-v3"


class ThinkTextReasoningParser:
    """`<think>...</think>`; the opening tag may be missing, since prompts often supply it. `tags` are others.

    The text after the closing tag is returned unchanged, newlines included: how many of them the template writes
    there is not known here.
    """

    def __init__(self, tokenizer: Any = None, tags: tuple[str, str] = _TAGS["think"]) -> None:
        """The tokenizer is not used; it is accepted so that all parsers are constructed alike."""
        self.tags = tags

    def extract(self, text: str) -> tuple[str | None, str]:
        opening, closing = self.tags
        before, closed, after = text.partition(closing)
        if closed:
            return strip_think_tags(before, opening) or None, after
        if text.lstrip().startswith(opening):  # truncated before the closing tag: all of it is reasoning
            return strip_think_tags(text, opening) or None, ""
        return None, text


_CLASSES = (Qwen3ToolParser, Qwen35ToolParser, GlmToolParser, DeepSeekV3ToolParser)
TOOL_PARSERS: dict[str, Callable[[Any], DialectParser]] = {
    **{name: partial(DialectParser, name=name) for name in _DIALECTS},
    **{name: kind for kind in _CLASSES for name, form in _DIALECTS.items() if form is _DIALECTS[kind.name]},
}
REASONING_PARSERS: dict[str, Callable[[Any], ThinkTextReasoningParser]] = {
    name: partial(ThinkTextReasoningParser, tags=tags) for name, tags in _TAGS.items()
}


def dialect_of(name: str) -> CallReader:
    """The dialect that a tool parser reads.

    Raises:
        UsageError: no such parser.
    """
    return _named(name, _DIALECTS, "tool parser")


def get_tool_parser(name: str, tokenizer: Any) -> ToolParser:
    """A tool parser by name.

    Raises:
        UsageError: no such parser.
    """
    return _named(name, TOOL_PARSERS, "tool parser")(tokenizer)


def get_reasoning_parser(name: str, tokenizer: Any) -> ReasoningParser:
    """A reasoning parser by name.

    Raises:
        UsageError: no such parser.
    """
    return _named(name, REASONING_PARSERS, "reasoning parser")(tokenizer)


def reasoning_tags_of(name: str) -> tuple[str, str]:
    """The tags that a reasoning parser looks for.

    Raises:
        UsageError: no such parser.
    """
    return _named(name, _TAGS, "reasoning parser")


def _named(name: str, table: Mapping[str, T], kind: str) -> T:
    if name not in table:
        raise UsageError(f"no {kind} {name!r}; expected one of {', '.join(table)}{did_you_mean(name, table)}")
    return table[name]
