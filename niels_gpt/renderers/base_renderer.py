"""`BaseRenderer`: what all renderers of this package do alike. `Family` and `TemplateRenderer` derive from it.

A subclass writes a conversation on an emitter (`emit`), which becomes ids in one place (`encode.py`). What a model
samples is read by a `Reader` (`completions/reading.py`) with the format's dialect: at once (`parse_response`), or as it
comes (`stream`), where nothing is reported before it is certain.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message, Messages
from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.completions.blocks import CallReader
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.completions.reading import BLANK_LINES, NOTHING, Reader, Trim
from niels_gpt.renderers.completions.reasoning import PromptEnd
from niels_gpt.renderers.completions.stream import ResponseParser
from niels_gpt.renderers.completions.text import Completion, text_at_end
from niels_gpt.renderers.conversation import tools_of
from niels_gpt.renderers.dialects.base import schemas_of
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.encode import encode, encode_one, render_conversations
from niels_gpt.renderers.kinds import CONTROL, Piece
from niels_gpt.renderers.notes import OnUnwritten, check_written
from niels_gpt.renderers.round_trip import RoundTrip, round_trips
from niels_gpt.renderers.types import RenderedBatch, RenderedTokens
from niels_gpt.tokenizer.pieces import PieceEncoder

# Renderers with the options of single conversations: of each renderer by the options as JSON. Not on the renderer: its
# pickle must not depend on what it has rendered.
_WITH_KWARGS: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
_MOST_KWARGS: Final = 64

# What `show` renders.
EXAMPLE: Final[list[Message]] = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4."},
]


class BaseRenderer(ABC):
    """Renders conversations that a subclass writes on an emitter, and reads completions.

    Attributes:
        encoder: text to ids.
        calls: the dialect of tool calls; `None`: the format has none.
        before_first_call: the text between a content and the first call.
        content_trim: the white space around a content that the format adds; a completion's content is without it.
        has_reasoning: the format has a place for reasoning; where it does not, think tags in completions are text.
        reasoning_tags: what reasoning is between.
        reasoning_trim: as `content_trim`, for reasoning.
        part_separator: what is between two parts of the reasoning, or of the content.
        block_may_be_missing: a finished completion without think tags has no reasoning, although the generation prompt
            opens a think block.
        on_unwritten: which conversations are refused for a text that the format has no place for (`notes.py`). `text`,
            `emit` and `pieces` refuse none.
    """

    encoder: PieceEncoder
    _stop_ids: list[int]
    calls: CallReader | None = None
    before_first_call: str = ""
    content_trim: Trim = NOTHING
    has_reasoning: bool = True
    reasoning_tags: tuple[str, str] = ("<think>", "</think>")
    reasoning_trim: Trim = BLANK_LINES
    part_separator: str = ""
    block_may_be_missing: bool = False
    on_unwritten: OnUnwritten = "content"

    def __repr__(self) -> str:
        """The class, the tokenizer's name and its engine."""
        return f"<{type(self).__name__} for {self.encoder.name}, encoded by {self.encoder.engine}>"

    def show(self) -> None:
        """Print the renderer, and how it writes a short conversation: trained, sampled, context and scaffold in colour.

        Raises:
            MessageError, UsageError: its format cannot express the conversation.
        """
        print(repr(self))
        self.render(EXAMPLE).show()

    def _repr_html_(self) -> str:
        """The same as coloured tokens, for notebooks."""
        try:
            return f"<div>{escape(repr(self))}</div>{self.render(EXAMPLE)._repr_html_()}"
        except (MessageError, UsageError) as error:  # a template may refuse any conversation; a notebook needs no error
            return f"<div>{escape(repr(self))}</div><div>no example: {escape(str(error))}</div>"

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary; all ids are below it."""
        return self.encoder.vocab_size

    # ---- rendering

    def lists_unwritten(self) -> Self:
        """The same renderer with `on_unwritten="drop"`: it refuses nothing, and lists what it cannot write."""
        if self.on_unwritten == "drop":
            return self
        lists = copy.copy(self)  # shallow, so that both share the encoder
        lists.on_unwritten = "drop"
        return lists

    @abstractmethod
    def emit(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> Emitter:
        """The rendering as pieces with their facts, before it is encoded; the arguments are those of `render`."""

    def pieces(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> list[Piece]:
        """The rendering as pieces, before it is encoded."""
        return self.emit(messages, tools=tools, add_generation_prompt=add_generation_prompt).pieces()

    def text(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> str:
        """The rendered text."""
        return "".join(self.emit(messages, tools=tools, add_generation_prompt=add_generation_prompt).texts)

    def render(
        self,
        messages: Messages,
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedTokens:
        """Ids with attribution.

        Args:
            chat_template_kwargs: options of the family or variables of the template for this conversation alone.

        `RenderedTokens.attribution` is "full"; of a template also "partial: ..." with what could not be attributed.

        Raises:
            MessageError: naming message and field. Of a template that refuses or fails on the messages:
                `template_raised`, `template_failed`. `unwritten`, see `on_unwritten`.
            UsageError: `tools` are not in the shape of the OpenAI chat format.
            TemplateError: the template is unusable: a forbidden operation, endless work.
        """
        renderer = self.with_kwargs(chat_template_kwargs)
        out = renderer._emit(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return encode_one(self.encoder, out)

    def with_kwargs(self, kwargs: Mapping[str, Any] | None) -> Self:
        """The same renderer with the `chat_template_kwargs` of a conversation.

        Raises:
            MessageError: `unknown_option`: one of them is not known, or has a value that it does not take.
        """
        if not kwargs:
            return self
        others = _WITH_KWARGS.setdefault(self, {})
        key = to_json(dict(kwargs), "chat_template_kwargs")
        if key not in others:
            if len(others) >= _MOST_KWARGS:
                others.clear()
            others[key] = self._with_kwargs(kwargs)
        other: Self = others[key]
        return other

    @abstractmethod
    def _with_kwargs(self, kwargs: Mapping[str, Any]) -> Self: ...

    def _emit(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> Emitter:
        """What `emit` writes, if nothing is left out that must not be."""
        out = self.emit(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        if out.notes.unwritten:
            check_written(out.notes.unwritten, self.on_unwritten)
        return out

    def render_ids(
        self,
        messages: Messages,
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids without their facts; the arguments are those of `render`."""
        renderer = self.with_kwargs(chat_template_kwargs)
        out = renderer._emit(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        if out.images:  # only `encode` repeats an image's placeholder
            return encode_one(self.encoder, out).token_ids
        recognised = [bool(fact & CONTROL) for fact in out.tokenizer_facts()]
        ids: list[int] = self.encoder.encode_pieces(out.texts, recognised)[0].tolist()
        return ids

    def render_many(
        self,
        conversations: Sequence[Messages],
        *,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> RenderedBatch:
        """Many conversations at once, with the results of `render`.

        Args:
            tools, chat_template_kwargs: one entry per conversation; default none.

        Raises:
            MessageError: for the first conversation that cannot be rendered, with its index.
        """
        if chat_template_kwargs is None:
            return render_conversations(self.encoder, self._emit, conversations, tools)

        def emit(messages: Messages, *, tools: Any = None) -> Emitter:
            own, kwargs = tools
            return self.with_kwargs(kwargs)._emit(messages, tools=own)

        offered = [None] * len(conversations) if tools is None else tools
        return render_conversations(
            self.encoder, emit, conversations, list(zip(offered, chat_template_kwargs, strict=True))
        )

    def round_trip(
        self, messages: Messages, *, tools: Any = None, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> RoundTrip:
        """Whether the rendering gives the messages again: answers as `parse_response` reads them, other texts decoded.

        Raises:
            MessageError: as `render`.
        """
        renderer = self.with_kwargs(chat_template_kwargs)
        return round_trips([renderer], encode(self.encoder, [renderer._emit(messages, tools=tools)]), [tools])[0]

    # ---- completions

    def prefill(self) -> str:
        """The text that the generation prompt puts after the assistant's header: an opened think block, for example.

        The model continues from there, so an assistant's turn that begins with this text has it as scaffold.
        """
        return ""

    def get_stop_token_ids(self) -> list[int]:
        """The ids at which sampling stops."""
        return list(self._stop_ids)

    @property
    def supports_tools(self) -> bool:
        """Whether completions are searched for tool calls."""
        return self.calls is not None

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """A completion as content, reasoning and tool calls; see `Renderer`.

        Args:
            prompt_ids: the prompt, whose end decides whether the completion begins within a think block. By default the
                renderer's generation prompt decides, and a closing tag ends reasoning even if that opens no block.
        """
        completion = Completion(self.encoder, token_ids, self._stop_ids)
        return self.read(completion, tools, self._prompt_end(prompt_ids))

    def read(self, completion: Completion, tools: Any, prompt: PromptEnd) -> ParsedResponse:
        """The same of a completion as text; `prompt` says whether it begins within reasoning."""
        return self.reader.read(completion, schemas_of(tools_of(tools)), prompt)

    def stream(self, prompt_ids: Sequence[int] | None = None, *, tools: Any = None) -> ResponseParser:
        """A parser for a completion that is being sampled; its result is that of `parse_response`.

        Args:
            prompt_ids: as in `parse_response`. With them, text is held back less often (`docs/renderers.md`).
        """
        schemas, prompt = schemas_of(tools_of(tools)), self._prompt_end(prompt_ids)
        return ResponseParser(self.encoder, self._stop_ids, self.reader, schemas, prompt)

    @property
    def reader(self) -> Reader:
        """How completions are read."""
        return Reader(
            self.calls,
            self.reasoning_tags if self.has_reasoning else None,
            self.content_trim,
            self.reasoning_trim,
            self.before_first_call,
            self.part_separator,
        )

    def _prompt_end(self, prompt_ids: Sequence[int] | None) -> PromptEnd:
        return self.prompt_end(None if prompt_ids is None else text_at_end(self.encoder, prompt_ids))

    def prompt_end(self, prompt: str | None) -> PromptEnd:
        """Whether a completion begins within reasoning, by the text at the end of its prompt; `None`: not known."""
        opening = self.reasoning_tags[0]
        if prompt is not None:
            # By the text, and not by the renderer's own prompt: a server may have used another option or template.
            return PromptEnd.OPEN if prompt.rstrip().endswith(opening) else PromptEnd.CLOSED
        # `UNKNOWN` and not `CLOSED`: the prompt may have been rendered with another option.
        if not self.prefill().rstrip().endswith(opening):
            return PromptEnd.UNKNOWN
        return PromptEnd.LIKELY_OPEN if self.block_may_be_missing else PromptEnd.OPEN
