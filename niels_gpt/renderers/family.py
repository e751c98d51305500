"""`Family`: what renderers by grammar share. Subclasses in `families/` write one model family's format.

`docs/architecture.md` follows a conversation through these files. Completions are read by `BaseRenderer`, with the
family's dialect of tool calls (`dialects/`); `bridge_to_next_turn` continues them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from niels_gpt.errors import MessageError, TokenizerError, UsageError
from niels_gpt.messages import Message, Messages
from niels_gpt.messages.tools import Tools, to_json
from niels_gpt.renderers.base_renderer import BaseRenderer
from niels_gpt.renderers.bridges import append_rendering, messages_to_bridge, trim_to_turn_close
from niels_gpt.renderers.conversation import Call, ConversationView, should_preserve_past_thinking
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.encode import encode_one
from niels_gpt.renderers.options import FamilyConfig, PlainConfig, with_options
from niels_gpt.renderers.refusals import note_left_out, refuse_control_tokens, refuse_late_system, writes_reasoning
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder, token_id_list

# What a grammar is written with: the files in `families/` import it from here.
__all__ = ["Call", "ConversationView", "Emitter", "Family", "FamilyConfig", "PlainConfig", "Tools", "to_json"]

# Whether a family with its options writes the reasoning of a last answer, with calls and without.
_HAS_PLACE: dict[tuple[type, FamilyConfig, bool], bool] = {}
_MOST_PLACES = 1024
_OF_THE_CALLER = {  # options that no `chat_template_kwargs` of a row may have -> why
    "name": "chooses the renderer",
    "special_tokens_in_content": "would let a row make control tokens of contents; set it where the renderer is made",
    "on_unwritten": "decides which rows are refused; set it where the renderer is made",
}
_CALL = {"id": "functions.look:0", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}


class Family(BaseRenderer):
    """A renderer by grammar: the subclass writes the format, this class does everything else.

    Args:
        tokenizer: whatever `open_encoder` takes: a hub name, a directory, a tokenizer object, an encoder.
        config: the family's options; default all defaults.
        options: single options that replace the config's: `Qwen3Renderer(tokenizer, enable_thinking=False)`.

    Class attributes, beside those of `BaseRenderer`:
        name: the renderer's name, as in `MODEL_RENDERER_MAP`.
        roles: the roles that the format can express. Without `tool` among them, no tools and calls are written.
        declares_tools: the format declares tools.
        parts: the roles whose text parts the vendor's template writes one after the other, with nothing between them.
            Text parts of other roles are joined by newlines, as servers do.
        names_in_ids: calls and results are headed by ids, which name the function (Kimi).
        system_turn, user_turn, tool_turn: what is before and after the content of a turn, where it has nothing else.
            Without `system_turn`, system messages that `begin` has not written are refused.
        calls_section: what is before the first call, whatever the content, and after the last one. Without the former
            `before_first_call` is written after a content. between_calls: what is between two calls.
        assistant_header: what an assistant's turn begins with. The generation prompt is this, and `prefill`.
        controls: control tokens that a tokenizer of the family must have; optional_controls: those it may have.
        end_turn: what an assistant's turn ends in: its stop, and the text that the template writes after it. Where the
            stop is "" (GLM), a turn has none of its own: the opener of the next turn is its stop.
        stops: the texts of the tokens that end an assistant's turn; the stop of `end_turn` is the first.
        truncation_stop: the token that closes a truncated turn in a bridge; "": the first stop.
        results_section, between_results: what is before the first of adjacent tool results and after the last one, and
            between two of them; for `tool`.
        thinking_prompt: what the generation prompt puts after the header (`prefill`) where the model is to think, and
            where it is not; thinking_option: the option that says so.
        names_results: a tool result is headed by the name of its function. In a bridge, results without a name get
            those of the sampled calls, in order.
        version: increases whenever a grammar's ids or facts change; part of the fingerprint of built datasets.

    Raises:
        TokenizerError: the tokenizer lacks one of the format's control tokens.
        UsageError: another family's config, or an option that the family does not have.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[FamilyConfig]] = PlainConfig
    roles: ClassVar[tuple[str, ...]] = ("system", "user", "assistant", "tool")
    system_turn: ClassVar[tuple[str, str] | None] = None
    user_turn: ClassVar[tuple[str, str]]
    tool_turn: ClassVar[tuple[str, str]]
    results_section: ClassVar[tuple[str, str]] = ("", "")
    between_results: ClassVar[str] = ""
    assistant_header: ClassVar[str] = ""
    thinking_prompt: ClassVar[tuple[str, str]] = ("", "")
    thinking_option: ClassVar[str] = ""
    calls_section: ClassVar[tuple[str, str]] = ("", "")
    between_calls: ClassVar[str] = "\n"
    calls: CallDialect | None = None
    end_turn: tuple[str, str] = ("", "")
    stops: ClassVar[tuple[str, ...]]
    truncation_stop: ClassVar[str] = ""
    controls: ClassVar[tuple[str, ...]] = ()
    optional_controls: ClassVar[tuple[str, ...]] = ()
    names_results: ClassVar[bool] = False
    declares_tools: ClassVar[bool] = True
    parts: ClassVar[frozenset[str]] = frozenset()
    names_in_ids: ClassVar[bool] = False
    version: ClassVar[int] = 1

    def __init__(self, tokenizer: Any, config: FamilyConfig | None = None, **options: Any) -> None:
        self.encoder: PieceEncoder = open_encoder(tokenizer)
        base = self.config_class.model_validate({"name": self.name}) if config is None else config
        if not isinstance(base, self.config_class) or base.name != self.name:
            raise UsageError(
                f"{type(self).__name__} was given a config of {base.name!r}; expected one of {self.name!r}"
            )
        self.config: Any = with_options(base, options) if options else base
        # Some tokenizers do not mark all of their turn tokens as special; the format says which are control tokens.
        if isinstance(self.encoder, TokenizerAdapter):
            self.encoder = self.encoder.with_controls([*self.controls, *self.stops, *self.optional_controls])
        self._is_producing = False
        self._configure()
        # Now, because a tokenizer of another family would encode the missing control tokens as ordinary text. Stops
        # after the first may be missing: tokenizers of one family differ in them.
        missing = [text for text in (*self.controls, *self.stops[:1]) if text not in self.encoder.added_ids]
        if missing:
            raise TokenizerError(
                f"{self.encoder.name}: the tokenizer has no {missing[0]!r}, which {self.name} writes; expected a "
                "tokenizer of that family. Name another renderer, or 'template' for the tokenizer's own chat template"
            )
        self._stop_ids = [self.encoder.added_ids[stop] for stop in self.stops if stop in self.encoder.added_ids]

    def _configure(self) -> None:
        """Set what follows from the config."""
        # Here, so that the fingerprint of datasets holds what is rendered.
        if found := self.found_options():
            self.config = with_options(self.config, found)
        self.thinks = not self.thinking_option or bool(getattr(self.config, self.thinking_option))
        self.on_unwritten = self.config.on_unwritten

    def _with_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        other, on_unwritten = copy.copy(self), self.on_unwritten  # shallow, so that both share the encoder
        try:
            for name, why in _OF_THE_CALLER.items():
                if name in kwargs:
                    raise UsageError(f"cannot have {name!r}: it {why}. Drop it")
            other.config = with_options(self.config, kwargs)
            other._configure()
        except UsageError as error:
            raise MessageError("unknown_option", f"chat_template_kwargs: {error}") from error
        other.on_unwritten = on_unwritten
        return other

    def found_options(self) -> Mapping[str, Any]:
        """The options that depend on the tokenizer, where the caller has left them open (`None`)."""
        return {}

    # ---- the grammar: hooks that a family overrides. They are called in this order.

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write what comes before the turns, tools included.

        Returns:
            The index of the first message that the hooks below write: 1 if this hook wrote a system message.
        """
        return 0

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message that `begin` has not written, or one of a role without a hook (gpt-oss' developer).

        Raises:
            MessageError: `late_system`: the format has no place for it.
        """
        if self.system_turn is None:
            refuse_late_system(index, self.name)
        self.content_turn(self.system_turn, view, index, out)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message."""
        self.content_turn(self.user_turn, view, index, out)

    @abstractmethod
    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write an assistant message."""

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result, in the section of the results that are adjacent to it."""
        opening, closing = self.results_section
        header, footer = self.tool_turn
        header = (opening if view.is_first_of_run(index) else self.between_results) + header
        self.content_turn((header, footer + closing if view.is_last_of_run(index) else footer), view, index, out)

    def prefill(self) -> str:
        """The part of `thinking_prompt` that holds."""
        return self.thinking_prompt[not self.thinks]

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the generation prompt."""
        out.scaffold(self.assistant_header + self.prefill())

    def end(self, view: ConversationView, out: Emitter) -> None:  # most formats have nothing there
        """Write what comes after the last turn where no generation prompt follows."""

    # ---- for the hooks

    def content(self, view: ConversationView, index: int) -> str:
        """A message's text as its turn holds it."""
        return view.text(index)

    def content_turn(self, around: tuple[str, str], view: ConversationView, index: int, out: Emitter) -> None:
        """Write a turn that the model reads: a content between two texts."""
        header, footer = around
        out.turn(header, self.content(view, index), footer, index)

    def finish_turn(
        self,
        content: str,
        view: ConversationView,
        index: int,
        out: Emitter,
        *,
        has_content: bool | None = None,
    ) -> None:
        """Write the rest of an assistant's turn: the content, the calls, the stop.

        Args:
            has_content: write `before_first_call`; default: if there is a content.
        """
        calls = view.calls(index)
        if not calls or self.calls is None:  # most turns: three pieces in one call
            out.model_reply(content, *self.end_turn, index)
            return
        before, closing = self.calls_section
        if not before and (content if has_content is None else has_content):
            before = self.before_first_call
        out.model_text(content, index)
        for call in calls:
            if before:
                out.model_markup(before, index)
            self.calls.write(call, out, index)
            before = self.between_calls
        if closing:
            out.model_markup(closing, index)
        out.model_reply("", *self.end_turn, index)

    def preserves_thinking(self, view: ConversationView, index: int) -> bool:
        """Whether an option keeps this message's reasoning although the template would drop it."""
        everywhere, between_calls = (
            self.config.preserve_all_thinking,
            self.config.preserve_thinking_between_tool_calls,
        )
        # That function goes over all roles, so it is called only where one of these options is set.
        return (everywhere or between_calls) and should_preserve_past_thinking(
            view.messages,
            index,
            preserve_all_thinking=everywhere,
            preserve_thinking_between_tool_calls=between_calls,
        )

    # ---- rendering

    def emit(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> Emitter:
        """The rendering before it becomes ids; `.pieces()` shows it, and `.notes` what it leaves out.

        Raises:
            MessageError: naming message and field.
        """
        view, out = self._written(messages, tools, add_generation_prompt)
        takes_tools = self.declares_tools and "tool" in self.roles
        if view.changes:
            out.notes = out.notes._replace(changes=view.changes)
        note_left_out(view, out, declares_tools=takes_tools, has_place=self._has_place_for_reasoning)
        return out

    def _view(self, messages: Messages, tools: Any, *, after_call: bool = False) -> ConversationView:
        parts, names_in_ids = self.parts, self.names_in_ids
        return ConversationView(
            messages, self.roles, self.name, tools, after_call=after_call, parts=parts, names_in_ids=names_in_ids
        )

    def _written(self, messages: Messages, tools: Any, add_generation_prompt: bool) -> tuple[ConversationView, Emitter]:
        view = self._view(messages, tools)
        view.has_generation_prompt = add_generation_prompt
        view.as_produced = self._is_producing and not add_generation_prompt
        special_tokens = self.config.special_tokens_in_content
        out = Emitter(view.normalised, parse_content=special_tokens == "parse")
        # The order of the hooks is the order of the text; nothing is moved afterwards.
        self._emit_turns(view, self.begin(view, out), out)
        if add_generation_prompt:
            self.generation_prompt(view, out)
        else:
            self.end(view, out)
        if special_tokens == "error":
            refuse_control_tokens(out, self.encoder.control_ids)
        return view, out

    def _has_place_for_reasoning(self, beside_calls: bool) -> bool:
        """Whether the reasoning of a last answer is written, in a message with calls or in one without."""
        if not self.has_reasoning:
            return False
        # Not on the renderer, whose pickle must not depend on what it has rendered.
        key = type(self), self.config, beside_calls
        if key not in _HAS_PLACE:
            if len(_HAS_PLACE) >= _MOST_PLACES:
                _HAS_PLACE.clear()
            calls = {"tool_calls": [_CALL]} if beside_calls else {}
            answer = {"role": "assistant", "content": "", "reasoning_content": "why", **calls}
            try:
                _, out = self._written([{"role": "user", "content": "question"}, answer], None, False)
            except MessageError:  # the format refuses such an answer by itself; it may have a place elsewhere
                return True
            _HAS_PLACE[key] = writes_reasoning(out)
        return _HAS_PLACE[key]

    def _emit_turns(self, view: ConversationView, first: int, out: Emitter) -> None:
        # One loop over the roles, without a table of hooks: this runs for every message of every dataset.
        prefill, takes_calls = self.prefill(), "tool" in self.roles
        for index in range(first, len(view.roles)):
            role = view.roles[index]
            if role == "user":
                self.user(view, index, out)
            elif role == "assistant":
                if not takes_calls:
                    for call in view.calls(index):
                        out.lose(index, "tool_calls", call.name)
                # In training data too, what serving puts before a reply is scaffold and is not trained.
                out.prefill = prefill
                self.assistant(view, index, out)
                out.prefill = ""
            elif role == "tool":
                self.tool(view, index, out)
            else:
                self.system(view, index, out)

    def as_produced(self) -> Self:
        """The same renderer for conversations that end with a turn as the model produces it.

        Some formats rewrite the tool cycle before an answer once the answer is there (gpt-oss), or the answer's own
        reasoning (Kimi K2.5). `render` does so too, as their templates do; this renderer leaves both as they were when
        the last message was produced. Training samples of turns are made with it.
        """
        producer = copy.copy(self)  # shallow, so that both share the encoder
        producer._is_producing = True
        return producer

    def __repr__(self) -> str:
        """The family, its tokenizer, and the options that are not the defaults."""
        options = self.config.model_dump(exclude_defaults=True, exclude={"name"})
        changed = "".join(f", {name}={value!r}" for name, value in options.items())
        return f"<{type(self).__name__} for {self.encoder.name}{changed}, encoded by {self.encoder.engine}>"

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the tokenizer, and of the grammar with its options, as datasets record them."""
        # Not a hash of the code, which a comment would change: a change of ids increases `version`.
        options = self.config.model_dump(mode="json", exclude={"on_unwritten"})  # which changes no ids
        grammar = json.dumps([self.name, self.version, options], sort_keys=True)
        return {
            "tokenizer_sha256": self.encoder.fingerprints["tokenizer"],
            "template_sha256": hashlib.sha256(grammar.encode()).hexdigest(),
        }

    # ---- the next turn

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Messages,
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """The next prompt without rendering the past again; see `Renderer`.

        A truncated completion is closed with `truncation_stop`. Returns `None` if the prompt or the new messages are
        empty, if an assistant is among the new messages, if the completion continues after its last stop, or if that
        stop opens another turn than the one that follows.
        """
        prompt = token_id_list(previous_prompt_ids, "previous_prompt_ids")
        completion = token_id_list(previous_completion_ids, "previous_completion_ids")
        return self._bridge(prompt, completion, new_messages, tools)

    def _bridge(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Messages,
        tools: Any,
        image_count: int = 0,
    ) -> RenderedTokens | None:
        """A bridge from a prompt that holds `image_count` images."""
        messages = messages_to_bridge(previous_prompt_ids, new_messages)
        if messages is None:
            return None
        before = trim_to_turn_close(
            previous_prompt_ids, previous_completion_ids, set(self._stop_ids), synthesize_close=self._truncation_stop_id
        )
        # Shorter: ids follow the last stop, which a rendering of the turn would not have.
        if before is None or len(before) < len(previous_prompt_ids) + len(previous_completion_ids):
            return None
        if self.names_results:
            # The calls are in the completion and not among the messages, so their names are read from it.
            names = (call.name for call in self.parse_response(previous_completion_ids).tool_calls)
            results = (message for message in messages if message["role"] == "tool")
            for result, name in zip(results, names, strict=False):
                if name and not result.get("name"):
                    result["name"] = name
        added = encode_one(self.encoder, self._emit_extension(messages, tools, image_count))
        if self.end_turn[0] or before[-1] == self._truncation_stop_id:
            return append_rendering(before, added)
        # The stop was the opener of the next turn. Either it is the first token of what is added, or the model opened
        # another kind of turn than the one that follows.
        return append_rendering(before, added, skip=1) if before[-1] == added.token_ids[0] else None

    def _emit_extension(self, messages: Sequence[Message], tools: Any, image_count: int) -> Emitter:
        """New messages and the generation prompt, without what `begin` writes."""
        view = self._view(messages, tools, after_call=True)
        special_tokens = self.config.special_tokens_in_content
        out = Emitter(messages, parse_content=special_tokens == "parse")
        out.image_count = image_count
        # The model stops at its stop, so what the template writes after it (ChatML's newline) is not among the ids yet.
        out.scaffold(self.end_turn[1])
        self._emit_turns(view, 0, out)
        self.generation_prompt(view, out)
        if special_tokens == "error":
            refuse_control_tokens(out, self.encoder.control_ids)
        return out

    @property
    def _truncation_stop_id(self) -> int | None:
        return self.encoder.added_ids.get(self.truncation_stop, next(iter(self._stop_ids), None))
