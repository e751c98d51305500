"""Parsers by name, for completions of models that are rendered by their template (document 003)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.bare_json import LlamaJSON, MistralList
from niels_gpt.renderers.calls import CallForm, calls_in, schemas_of
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.deepseek_v3 import FencedJSON
from niels_gpt.renderers.hermes import HermesJSON
from niels_gpt.renderers.kimi_k2 import KimiSection
from niels_gpt.renderers.minimax_m2 import MiniMaxSection
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.tags import FunctionTags, Pairs
from niels_gpt.renderers.thinking import thought
from niels_gpt.renderers.tools import tools_of
from niels_gpt.tokenizer.opening import open_encoder


class ToolParser(Protocol):
    """Takes the tool calls out of a completion."""

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        """The ids that are content, and every call in order, each with its place in `token_ids`."""


class ReasoningParser(Protocol):
    """Takes the reasoning out of a completion's text."""

    def extract(self, text: str) -> tuple[str | None, str]:
        """`(reasoning, rest)`; `None` if there is no reasoning."""


class CallFormParser:
    """A tool parser for any dialect of `calls`."""

    form: ClassVar[CallForm]

    def __init__(self, tokenizer: Any) -> None:
        self._encoder = open_encoder(tokenizer)

    def extract(self, token_ids: Sequence[int], *, tools: Any = None) -> tuple[list[int], list[ParsedToolCall]]:
        """See `ToolParser`."""
        said = Completion(self._encoder, token_ids, ())
        blocks = list(self.form.read(said, 0, schemas_of(tools_of(tools))))
        spans = [said.span(block.start, block.stop) for block in blocks]
        # Ids 0..9 with blocks 3..5 and 6..9 leave 0..3, 5..6 and 9..9.
        starts, stops = [0, *(stop for _, stop in spans)], [*(start for start, _ in spans), len(said.ids)]
        parts = [*zip(starts, stops, strict=True)]
        # What is nothing but white space between calls or behind them is the format's, as families read it.
        kept = [part for at, part in enumerate(parts) if not at or said.says(*part)]
        content = [token for lo, hi in kept for token in said.ids[lo:hi]]
        return content, calls_in(blocks)


class Qwen3ToolParser(CallFormParser):
    """Hermes JSON between `<tool_call>` tags."""

    form = HermesJSON()


class Qwen35ToolParser(CallFormParser):
    """Function tags between `<tool_call>` tags, as Qwen3.5, Qwen3.6 and Nemotron 3 write them."""

    form = FunctionTags(python=True)


class GlmToolParser(CallFormParser):
    """Pairs of key and value tags between `<tool_call>` tags."""

    form = Pairs()


class KimiK2ToolParser(CallFormParser):
    """Kimi's section of calls with ids."""

    form = KimiSection()


class MiniMaxToolParser(CallFormParser):
    """MiniMax's section of invocations."""

    form = MiniMaxSection()


class DeepSeekV3ToolParser(CallFormParser):
    """DeepSeek's section of fenced JSON."""

    form = FencedJSON()


class Llama3ToolParser(CallFormParser):
    """Llama's bare JSON."""

    form = LlamaJSON()


class MistralToolParser(CallFormParser):
    """Mistral's list behind `[TOOL_CALLS]`."""

    form = MistralList()


class ThinkTextReasoningParser:
    """`<think>...</think>`, the opening tag there or supplied by the prompt.

    What stands behind the closing tag stays as it is, newlines included, as in the known package: how many a template
    writes there is not known here.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        """The tokenizer is not needed; all parsers are made alike."""

    def extract(self, text: str) -> tuple[str | None, str]:
        """See `ReasoningParser`."""
        before, closed, after = text.partition("</think>")
        if closed:
            return thought(before) or None, after
        if text.lstrip().startswith("<think>"):  # cut before it had thought to the end
            return thought(text) or None, ""
        return None, text


# A dialect goes by the names of all who write it.
TOOL_PARSERS: dict[str, type[CallFormParser]] = {
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
    "llama-3": Llama3ToolParser,
    "mistral": MistralToolParser,
}
REASONING_PARSERS: dict[str, type[ThinkTextReasoningParser]] = {"think": ThinkTextReasoningParser}


def get_tool_parser(name: str, tokenizer: Any) -> ToolParser:
    """A tool parser by name.

    Raises:
        UsageError: no such parser.
    """
    if name not in TOOL_PARSERS:
        raise UsageError(
            f"no tool parser {name!r}; expected one of {', '.join(TOOL_PARSERS)}{did_you_mean(name, TOOL_PARSERS)}"
        )
    return TOOL_PARSERS[name](tokenizer)


def get_reasoning_parser(name: str, tokenizer: Any) -> ReasoningParser:
    """A reasoning parser by name.

    Raises:
        UsageError: no such parser.
    """
    if name not in REASONING_PARSERS:
        known = ", ".join(REASONING_PARSERS)
        raise UsageError(
            f"no reasoning parser {name!r}; expected one of {known}{did_you_mean(name, REASONING_PARSERS)}"
        )
    return REASONING_PARSERS[name](tokenizer)
