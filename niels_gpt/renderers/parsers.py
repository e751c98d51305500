"""Parsers by name, for the completions of models that are rendered through their chat template.

A template shows how tool calls are written, but not how they are read, so the user names a parser. Each tool parser is
one of the dialects that the families use (`renderers/dialects/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

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


class ToolParser(Protocol):
    """Separates the tool calls of a completion from its content."""

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        """The ids of the content, and the calls in order, each with its span in `token_ids`."""


class ReasoningParser(Protocol):
    """Separates the reasoning of a completion from the rest of its text."""

    def extract(self, text: str) -> tuple[str | None, str]:
        """`(reasoning, rest)`; reasoning is `None` if there is none."""


class DialectParser:
    """A tool parser for one dialect; subclasses set `form`."""

    form: ClassVar[CallReader]

    def __init__(self, tokenizer: Any) -> None:
        self._encoder = open_encoder(tokenizer)

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        """See `ToolParser`."""
        completion = Completion(self._encoder, token_ids, ())
        blocks = list(self.form.read(completion, 0, schemas_of(tools_of(tools))))
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

    form = HermesJSON()


class Qwen35ToolParser(DialectParser):
    """Function tags between `<tool_call>` tags, as Qwen3.5, Qwen3.6 and Nemotron 3 write them."""

    form = FunctionTags(python=True)


class GlmToolParser(DialectParser):
    """Pairs of key and value tags between `<tool_call>` tags."""

    form = Pairs()


class KimiK2ToolParser(DialectParser):
    """Kimi's section of calls with ids."""

    form = KimiSection()


class MiniMaxToolParser(DialectParser):
    """MiniMax's section of invocations."""

    form = MiniMaxSection()


class DeepSeekV3ToolParser(DialectParser):
    """DeepSeek's section of fenced JSON."""

    form = FencedJSON()


class DeepSeekV31ToolParser(DialectParser):
    """DeepSeek's section of names and JSON, since V3.1."""

    form = SeparatedJSON()


class DeepSeekV4ToolParser(DialectParser):
    """DeepSeek V4's DSML."""

    form = DSML()


class DeepSeekV41ToolParser(DialectParser):
    """DeepSeek V4.1's DSML."""

    form = SpacedDSML()


class Llama3ToolParser(DialectParser):
    """Llama's bare JSON."""

    form = LlamaJSON()


class Llama4ToolParser(DialectParser):
    """Llama 4's bare JSON, after a text between two tags."""

    form = Llama4JSON()


class MistralToolParser(DialectParser):
    """Mistral's list after `[TOOL_CALLS]`."""

    form = MistralList()


class MistralNamedToolParser(DialectParser):
    """Mistral's calls since Tekken v11: a name, then `[ARGS]`."""

    form = NamedCalls()


class SeedToolParser(DialectParser):
    """Function tags between Seed-OSS's own tags."""

    form = FunctionTags("<seed:tool_call>", "</seed:tool_call>", python=True, newlines=False)


class HunyuanToolParser(DialectParser):
    """A JSON list between `<tool_calls>` tags."""

    form = JSONCalls("<tool_calls>", "</tool_calls>")


class CommandAToolParser(DialectParser):
    """A JSON list of actions, as Cohere's Command A and R7B write them."""

    form = JSONCalls("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters", "tool_call_id")


class ApertusToolParser(DialectParser):
    """A JSON list of objects with one key, the function's name."""

    form = JSONCalls("<|tools_prefix|>", "<|tools_suffix|>", name="")


class Gemma4ToolParser(DialectParser):
    """Gemma 4's own notation."""

    form = GemmaCalls()


class LFM2ToolParser(DialectParser):
    """A list of Python calls."""

    form = PythonCalls("<|tool_call_start|>", "<|tool_call_end|>")


class OLMo3ToolParser(DialectParser):
    """Python calls, one a line."""

    form = PythonCalls("<function_calls>", "</function_calls>")


class ThinkTextReasoningParser:
    """`<think>...</think>`; the opening tag may be missing, since prompts often supply it. Subclasses have other tags.

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


class MistralReasoningParser(ThinkTextReasoningParser):
    """`[THINK]...[/THINK]`."""

    tags = ("[THINK]", "[/THINK]")


class SeedReasoningParser(ThinkTextReasoningParser):
    """Seed-OSS's tags."""

    tags = ("<seed:think>", "</seed:think>")


class CommandAReasoningParser(ThinkTextReasoningParser):
    """Command A's tags."""

    tags = ("<|START_THINKING|>", "<|END_THINKING|>")


class Gemma4ReasoningParser(ThinkTextReasoningParser):
    """Gemma 4's channel of thoughts."""

    tags = ("<|channel>thought", "<channel|>")


class ApertusReasoningParser(ThinkTextReasoningParser):
    """Apertus' tags."""

    tags = ("<|inner_prefix|>", "<|inner_suffix|>")


# Several model families share a dialect, so one parser has several names.
TOOL_PARSERS: dict[str, type[DialectParser]] = {
    "hermes": Qwen3ToolParser,
    "qwen2.5": Qwen3ToolParser,
    "qwen3": Qwen3ToolParser,
    "qwen3-coder": Qwen35ToolParser,
    "qwen3.5": Qwen35ToolParser,
    "nemotron-3": Qwen35ToolParser,
    "glm": GlmToolParser,
    "laguna-xs.2": GlmToolParser,
    "kimi-k2": KimiK2ToolParser,
    "minimax-m2": MiniMaxToolParser,
    "deepseek-v3": DeepSeekV3ToolParser,
    "deepseek-v3.1": DeepSeekV31ToolParser,
    "deepseek-v4": DeepSeekV4ToolParser,
    "deepseek-v4.1": DeepSeekV41ToolParser,
    "llama-3": Llama3ToolParser,
    "llama-4": Llama4ToolParser,
    "mistral": MistralToolParser,
    "mistral-v7": MistralToolParser,
    "mistral-v11": MistralNamedToolParser,
    "mistral-v13": MistralNamedToolParser,
    "seed-oss": SeedToolParser,
    "hunyuan": HunyuanToolParser,
    "command-a": CommandAToolParser,
    "apertus": ApertusToolParser,
    "lfm2": LFM2ToolParser,
    "gemma-4": Gemma4ToolParser,
    "olmo-3": OLMo3ToolParser,
}
REASONING_PARSERS: dict[str, type[ThinkTextReasoningParser]] = {
    "think": ThinkTextReasoningParser,
    "mistral-v13": MistralReasoningParser,
    "seed-oss": SeedReasoningParser,
    "command-a": CommandAReasoningParser,
    "apertus": ApertusReasoningParser,
    "gemma-4": Gemma4ReasoningParser,
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
