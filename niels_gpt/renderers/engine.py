"""What all families share: pieces to ids, parsing, bridging. A family says only how its format differs (STYLE 6).

::

    messages --normalise--> Chat --the family's grammar--> Script (pieces) --encoder--> RenderedTokens
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from niels_gpt.errors import MessageError, TokenizerError, UsageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.bridge import behind, has_nothing_to_bridge, reject_assistant_in_extension, trim_to_turn_close
from niels_gpt.renderers.calls import CallForm, calls_in, outside, schemas_of
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import FamilyConfig, with_options
from niels_gpt.renderers.encode import encode_one, render_conversations
from niels_gpt.renderers.parsing import ParsedResponse
from niels_gpt.renderers.refusals import refuse_controls
from niels_gpt.renderers.rendered import RenderedBatch, RenderedTokens
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.thinking import should_preserve_past_thinking, thought
from niels_gpt.renderers.tools import tools_of
from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.opening import open_encoder
from niels_gpt.tokenizer.protocol import PieceEncoder


class Family(ABC):
    """A renderer by grammar. Subclasses give the words of a format as class attributes, and its sentences as methods.

    Args:
        tokenizer: whatever `open_encoder` takes: a hub name, a directory, a tokenizer object, an encoder.
        config: the family's options; default all defaults.
        options: single options, in place of the config's: `Qwen3Renderer(tokenizer, enable_thinking=False)`.

    Class attributes:
        name: the renderer's name, as in `MODEL_RENDERER_MAP`.
        roles: those that the format has a place for.
        controls: what a tokenizer of the family must have; optional_controls: what it may have.
        stops: spellings that end a turn.
        cut_end: closes a turn that was cut; "": the first stop does.
        tail: what the template writes behind an assistant's stop.
        calls: the dialect of tool calls; `None`: the format has none.
        call_glue: what stands between a content and the first call.
        ends_turns: an assistant's turn ends in a stop of its own. Where it does not, the next turn's opener ends it.
        version: counts up when a grammar's ids or facts change.

    Raises:
        TokenizerError: the tokenizer lacks one of the format's control tokens. UsageError: another family's config, or
            an option that the family does not have.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[FamilyConfig]]
    roles: ClassVar[tuple[str, ...]] = ("system", "user", "assistant", "tool")
    stops: ClassVar[tuple[str, ...]]
    cut_end: ClassVar[str] = ""
    controls: ClassVar[tuple[str, ...]] = ()
    optional_controls: ClassVar[tuple[str, ...]] = ()
    tail: ClassVar[str] = ""
    calls: ClassVar[CallForm | None] = None
    call_glue: ClassVar[str] = ""
    ends_turns: ClassVar[bool] = True
    version: ClassVar[int] = 1

    def __init__(self, tokenizer: Any, config: FamilyConfig | None = None, **options: Any) -> None:
        self.encoder: PieceEncoder = open_encoder(tokenizer)
        given = self.config_class.model_validate({}) if config is None else config
        if not isinstance(given, self.config_class):
            raise UsageError(
                f"{type(self).__name__} was given a {type(given).__name__}; expected {self.config_class.__name__}"
            )
        self.config: Any = with_options(given, options) if options else given
        if isinstance(self.encoder, Encoder):  # some tokenizers do not mark all of their turn tokens as special
            self.encoder = self.encoder.with_controls([*self.controls, *self.stops, *self.optional_controls])
        self._check_controls()
        self._stop_ids = [self.encoder.added_ids[stop] for stop in self.stops if stop in self.encoder.added_ids]

    # ---- the grammar: what a family writes

    def begin(self, chat: Chat, out: Script) -> int:
        """Write what comes before the turns, tools included, and return the index of the first message to write."""
        return 0

    @abstractmethod
    def system(self, chat: Chat, index: int, out: Script) -> None:
        """Write a system message."""

    @abstractmethod
    def user(self, chat: Chat, index: int, out: Script) -> None:
        """Write a user message."""

    @abstractmethod
    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """Write an assistant message."""

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Write a tool result. Formats without tools leave the role out of `roles`, and this as it is.

        Raises:
            MessageError: `unknown_role`, always.
        """
        raise MessageError("unknown_role", f"message {index}: a tool result has no place in the {self.name} format")

    @abstractmethod
    def prompt(self, chat: Chat, out: Script) -> None:
        """Write the generation prompt."""

    def prefill(self) -> str:
        """What the generation prompt supplies behind the assistant's header: the model continues from there."""
        return ""

    def tidy(self, content: str) -> str:
        """The content of a completion as a message holds it: without the white space that the format puts there."""
        return content

    # ---- rendering

    @property
    def supports_tools(self) -> bool:
        """The format has tool calls, which are read from completions."""
        return self.calls is not None

    @property
    def vocab_size(self) -> int:
        """All ids are below it."""
        return self.encoder.vocab_size

    @property
    def fingerprints(self) -> dict[str, str]:
        """What decides the ids, as datasets record it: the tokenizer's bytes, and grammar with options."""
        told = json.dumps([self.name, self.version, self.config.model_dump(mode="json")], sort_keys=True)
        return {
            "tokenizer_sha256": self.encoder.fingerprints["tokenizer"],
            "template_sha256": hashlib.sha256(told.encode()).hexdigest(),
        }

    def script(self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False) -> Script:
        """The rendering before it becomes ids; `.pieces()` shows it.

        Raises:
            MessageError: naming message and field.
        """
        return self._written(self._chat(messages, tools), add_generation_prompt)

    def text(self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False) -> str:
        """What the grammar writes."""
        return "".join(self.script(messages, tools=tools, add_generation_prompt=add_generation_prompt).texts)

    def render_ids(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The ids alone."""
        chat = self._chat(messages, tools)
        out = self._written(chat, add_generation_prompt)
        if out.images:
            return encode_one(self.encoder, out, chat.given).token_ids
        ids: list[int] = self.encoder.encode_pieces(out.texts, out.scaffold)[0].tolist()
        return ids

    def render(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """Ids with attribution.

        Raises:
            MessageError: naming message and field. UsageError: `tools` are not in the shape of the OpenAI chat format.
        """
        chat = self._chat(messages, tools)
        return encode_one(self.encoder, self._written(chat, add_generation_prompt), chat.given)

    def render_many(
        self, conversations: Sequence[Sequence[Message]], *, tools: Sequence[Any] | None = None
    ) -> RenderedBatch:
        """Many conversations at once, each exactly as `render` gives it.

        Args:
            tools: of each conversation; default none.

        Raises:
            MessageError: of the first conversation that cannot be rendered, with its index in front.
        """
        return render_conversations(self.encoder, self._script, conversations, tools)

    def _script(self, messages: Sequence[Message], tools: Any) -> tuple[Script, Sequence[Message], str]:
        chat = self._chat(messages, tools)
        return self._written(chat, False), chat.given, "full"

    def _chat(self, messages: Sequence[Message], tools: Any) -> Chat:
        chat = Chat(messages, self.roles, self.name)
        chat.tools = tools_of(tools)
        return chat

    def _written(self, chat: Chat, add_generation_prompt: bool) -> Script:
        out = Script(parses_bodies=self.config.special_tokens_in_content == "parse")
        chat.prompted = add_generation_prompt
        self._turns(chat, self.begin(chat, out), out)
        if add_generation_prompt:
            self.prompt(chat, out)
        return self._checked(out)

    def _turns(self, chat: Chat, first: int, out: Script) -> None:
        prefill = self.prefill()
        for index in range(first, len(chat.roles)):
            role = chat.roles[index]
            if role == "user":
                self.user(chat, index, out)
            elif role == "assistant":
                out.supplied = prefill
                self.assistant(chat, index, out)
                out.supplied = ""
            elif role == "tool":
                self.tool(chat, index, out)
            else:
                self.system(chat, index, out)

    def _checked(self, out: Script) -> Script:
        if self.config.special_tokens_in_content == "error":
            refuse_controls(out, self.encoder.control_ids)
        return out

    # ---- reading

    def get_stop_token_ids(self) -> list[int]:
        """The ids at which sampling stops."""
        return list(self._stop_ids)

    def parse_response(self, token_ids: Sequence[int], *, tools: Any = None) -> ParsedResponse:
        """What the model said; see `Renderer`."""
        said = Completion(self.encoder, token_ids, self._stop_ids)
        reasoning, start = self.read_thinking(said)
        schemas = schemas_of(tools_of(tools))
        blocks = list(self.calls.read(said, start, schemas)) if self.calls else []
        content = outside(said, start, blocks)
        return ParsedResponse(
            content=self.tidy(content.removesuffix(self.call_glue) if blocks else content),
            reasoning_content=reasoning or None,
            tool_calls=calls_in(blocks),
        )

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The reasoning of a completion, and where its content starts."""
        close = said.find("</think>")
        if said.text.lstrip().startswith("<think>") or self.prefill().rstrip().endswith("<think>"):
            if close < 0:
                end = self._unclosed_end(said)
                return thought(said.told(0, end)), end
        elif self.calls is not None and 0 <= said.find(self.calls.opening) < close:
            return "", 0  # a tag in the arguments of a call closes nothing
        return (thought(said.told(0, close)), close + len("</think>")) if close >= 0 else ("", 0)

    def _unclosed_end(self, said: Completion) -> int:
        """Where reasoning without a closing tag ends: where the calls begin, else where the completion does.

        Models call tools without closing the block first. An opener of calls that is one token ends the reasoning, as
        inference servers read it; one that is merely spelled may be a draft, unless the turn came to its end.
        """
        opening = self.calls.opening if self.calls is not None else ""
        if opening and (said.stopped or self.encoder.added_ids.get(opening) in said.ids):
            at = said.find(opening)
            if at >= 0:
                return at
        return len(said.text)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """The next prompt without rendering anything again; see `Renderer`.

        A completion that was cut is closed with `cut_end`. `None`: prompt or new messages are empty, an assistant is
        among the new messages, the completion goes on behind its last stop, or that opens another turn than the one
        that comes.
        """
        return self._bridged(previous_prompt_ids, previous_completion_ids, new_messages, tools)

    def _bridged(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Any,
        pictures: int = 0,
    ) -> RenderedTokens | None:
        """A bridge behind a prompt with so many images."""
        if has_nothing_to_bridge(previous_prompt_ids, new_messages):
            return None
        given = normalise(new_messages)
        if reject_assistant_in_extension(given):
            return None
        before = trim_to_turn_close(
            previous_prompt_ids, previous_completion_ids, set(self._stop_ids), synthesize_close=self._cut_end_id
        )
        if before is None or len(before) < len(previous_prompt_ids) + len(previous_completion_ids):
            return None
        chat = Chat(given, self.roles, self.name, after_call=True)
        chat.tools = tools_of(tools)
        out = Script(parses_bodies=self.config.special_tokens_in_content == "parse")
        out.pictures = pictures
        out.frame(self.tail)
        self._turns(chat, 0, out)
        self.prompt(chat, out)
        added = encode_one(self.encoder, self._checked(out), given)
        if self.ends_turns or before[-1] == self._cut_end_id:
            return behind(before, added)
        # The next turn's opener was the stop: it is there already, or it opens another turn than the one that comes.
        return behind(before, added, skip=1) if before[-1] == added.token_ids[0] else None

    @property
    def _cut_end_id(self) -> int | None:
        """What closes a turn that was cut."""
        return self.encoder.added_ids.get(self.cut_end, next(iter(self._stop_ids), None))

    # ---- for the families

    def keeps_thinking(self, chat: Chat, index: int) -> bool:
        """An option keeps this message's reasoning although the template would drop it."""
        return should_preserve_past_thinking(
            chat.messages,
            index,
            preserve_all_thinking=self.config.preserve_all_thinking,
            preserve_thinking_between_tool_calls=self.config.preserve_thinking_between_tool_calls,
        )

    def _check_controls(self) -> None:
        missing = [text for text in (*self.controls, *self.stops[:1]) if text not in self.encoder.added_ids]
        if missing:
            raise TokenizerError(
                f"{self.encoder.name}: the tokenizer has no {missing[0]!r}, which {self.name} writes; expected a "
                "tokenizer of that family. Name another renderer, or 'template' for the tokenizer's own chat template"
            )
