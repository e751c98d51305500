"""Parsers by name, for the completions of models that are rendered through their chat template.

A template shows how tool calls are written, but not how they are read, so the user names a parser. Each tool parser is
one of the dialects that the families use (`renderers/dialects/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.conversation import tools_of
from niels_gpt.renderers.dialects.base import BlockRecorder, CallReader, schemas_of
from niels_gpt.renderers.dialects.dsml import DSML, SpacedDSML
from niels_gpt.renderers.dialects.json_calls import HermesJSON, Llama4JSON, LlamaJSON, MistralList
from niels_gpt.renderers.dialects.lists import JSONCalls, PythonCalls
from niels_gpt.renderers.dialects.named_calls import GemmaCalls, NamedCalls
from niels_gpt.renderers.dialects.sections import FencedJSON, KimiSection, MiniMaxSection, SeparatedJSON
from niels_gpt.renderers.dialects.xml_tags import FunctionTags, Pairs
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.reading import Completion, strip_think_tags
from niels_gpt.renderers.windows import run
from niels_gpt.tokenizer.load import open_encoder


class ToolParser(Protocol):
    """Separates the tool calls of a completion from its content."""

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        """The ids of the content, and the calls in order, each with its span in `token_ids`."""


class ReasoningParser(Protocol):
    """Separates the reasoning of a completion from the rest of its text."""

    def extract(self, text: str) -> tuple[str | None, str]:
        """`(reasoning, rest)`; reasoning is `None` if there is none."""


class DialectParser:
    """A tool parser for one dialect; `_parser_of` makes the class of each."""

    form: ClassVar[CallReader]

    def __init__(self, tokenizer: Any) -> None:
        self._encoder = open_encoder(tokenizer)

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        """See `ToolParser`."""
        completion = Completion(self._encoder, token_ids, ())
        out = BlockRecorder(completion)
        run(self.form.scan(completion, 0, schemas_of(tools_of(tools)), out))
        spans = [completion.span(block.start, block.stop) for block in out.blocks]
        # Nine ids with calls at 3..5 and 6..9 have content at 0..3, 5..6 and 9..9.
        starts, stops = [0, *(stop for _, stop in spans)], [*(start for start, _ in spans), len(completion.ids)]
        parts = [*zip(starts, stops, strict=True)]
        # White space between and after calls belongs to the format, as in the families' parsers.
        content_parts = [part for at, part in enumerate(parts) if not at or completion.has_text(*part)]
        content = [token for lo, hi in content_parts for token in completion.ids[lo:hi]]
        return content, out.result().tool_calls


def _parser_of(dialect: CallReader) -> type[DialectParser]:
    """The parser class of a dialect: a class, because the parsers of the `renderers` package are classes."""

    class Parser(DialectParser):
        form = dialect

    return Parser


# Those that the `renderers` package has under these names.
Qwen3ToolParser = _parser_of(HermesJSON())
Qwen35ToolParser = _parser_of(FunctionTags(python=True))
GlmToolParser = _parser_of(Pairs())
DeepSeekV3ToolParser = _parser_of(FencedJSON())
_MistralToolParser = _parser_of(MistralList())
_MistralNamedToolParser = _parser_of(NamedCalls())


class ThinkTextReasoningParser:
    """`<think>...</think>`; the opening tag may be missing, since prompts often supply it.

    The text after the closing tag is returned unchanged, newlines included: how many of them the template writes
    there is not known here.
    """

    tags: ClassVar[tuple[str, str]] = ("<think>", "</think>")

    def __init__(self, tokenizer: Any = None) -> None:
        """The tokenizer is not used; it is accepted so that all parsers are constructed alike."""

    def extract(self, text: str) -> tuple[str | None, str]:
        """See `ReasoningParser`."""
        opening, closing = self.tags
        before, closed, after = text.partition(closing)
        if closed:
            return strip_think_tags(before, opening) or None, after
        if text.lstrip().startswith(opening):  # truncated before the closing tag: all of it is reasoning
            return strip_think_tags(text, opening) or None, ""
        return None, text


def _reasoning_between(opening: str, closing: str) -> type[ThinkTextReasoningParser]:
    class Parser(ThinkTextReasoningParser):
        tags = (opening, closing)

    return Parser


# Several model families share a dialect, so one parser has several names. "llama-4" reads bare JSON after a text
# between two tags; "apertus" objects with one key, the name of the function.
TOOL_PARSERS: dict[str, type[DialectParser]] = {
    "hermes": Qwen3ToolParser,
    "qwen2.5": Qwen3ToolParser,
    "qwen3": Qwen3ToolParser,
    "qwen3-coder": Qwen35ToolParser,
    "qwen3.5": Qwen35ToolParser,
    "nemotron-3": Qwen35ToolParser,
    "glm": GlmToolParser,
    "laguna-xs.2": GlmToolParser,
    "kimi-k2": _parser_of(KimiSection()),
    "minimax-m2": _parser_of(MiniMaxSection()),
    "deepseek-v3": DeepSeekV3ToolParser,
    "deepseek-v3.1": _parser_of(SeparatedJSON()),
    "deepseek-v4": _parser_of(DSML()),
    "deepseek-v4.1": _parser_of(SpacedDSML()),
    "llama-3": _parser_of(LlamaJSON()),
    "llama-4": _parser_of(Llama4JSON()),
    "mistral": _MistralToolParser,
    "mistral-v7": _MistralToolParser,
    "mistral-v11": _MistralNamedToolParser,
    "mistral-v13": _MistralNamedToolParser,
    "seed-oss": _parser_of(FunctionTags("<seed:tool_call>", "</seed:tool_call>")),
    "hunyuan": _parser_of(JSONCalls("<tool_calls>", "</tool_calls>")),
    "command-a": _parser_of(JSONCalls("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters", "tool_call_id")),
    "apertus": _parser_of(JSONCalls("<|tools_prefix|>", "<|tools_suffix|>", name="")),
    "lfm2": _parser_of(PythonCalls("<|tool_call_start|>", "<|tool_call_end|>")),
    "gemma-4": _parser_of(GemmaCalls()),
    "olmo-3": _parser_of(PythonCalls("<function_calls>", "</function_calls>")),
}
REASONING_PARSERS: dict[str, type[ThinkTextReasoningParser]] = {
    "think": ThinkTextReasoningParser,
    "mistral-v13": _reasoning_between("[THINK]", "[/THINK]"),
    "seed-oss": _reasoning_between("<seed:think>", "</seed:think>"),
    "command-a": _reasoning_between("<|START_THINKING|>", "<|END_THINKING|>"),
    "apertus": _reasoning_between("<|inner_prefix|>", "<|inner_suffix|>"),
    "gemma-4": _reasoning_between("<|channel>thought", "<channel|>"),
}


def dialect_of(name: str) -> CallReader:
    """The dialect that a tool parser reads.

    Raises:
        UsageError: no such parser.
    """
    return _tool_parser_class(name).form


def get_tool_parser(name: str, tokenizer: Any) -> ToolParser:
    """A tool parser by name.

    Raises:
        UsageError: no such parser.
    """
    return _tool_parser_class(name)(tokenizer)


def _tool_parser_class(name: str) -> type[DialectParser]:
    if name not in TOOL_PARSERS:
        raise UsageError(
            f"no tool parser {name!r}; expected one of {', '.join(TOOL_PARSERS)}{did_you_mean(name, TOOL_PARSERS)}"
        )
    return TOOL_PARSERS[name]


def get_reasoning_parser(name: str, tokenizer: Any) -> ReasoningParser:
    """A reasoning parser by name.

    Raises:
        UsageError: no such parser.
    """
    return _reasoning_parser_class(name)(tokenizer)


def reasoning_tags_of(name: str) -> tuple[str, str]:
    """The tags that a reasoning parser looks for.

    Raises:
        UsageError: no such parser.
    """
    return _reasoning_parser_class(name).tags


def _reasoning_parser_class(name: str) -> type[ThinkTextReasoningParser]:
    if name not in REASONING_PARSERS:
        names = ", ".join(REASONING_PARSERS)
        raise UsageError(
            f"no reasoning parser {name!r}; expected one of {names}{did_you_mean(name, REASONING_PARSERS)}"
        )
    return REASONING_PARSERS[name]
