"""TemplateRenderer: any Jinja chat template, unmodified, with the origin of every token (DESIGN 2.2)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.inputs import read_text
from niels_gpt.messages import REASONING_FIELDS, Message, NoContent, normalise, reasoning_of
from niels_gpt.renderers.bridge import bridge_by_rendering
from niels_gpt.renderers.completion import Completion, shown
from niels_gpt.renderers.control_text import KNOWN_ROLES, UNKNOWN_ROLE, check_controls
from niels_gpt.renderers.encode import encode_one, render_conversations
from niels_gpt.renderers.images import refuse_images
from niels_gpt.renderers.isolation import Isolation, TemplateProcess
from niels_gpt.renderers.jinja import Chunk
from niels_gpt.renderers.ownership import disowned, invented_turn, owned, run_of_none, turns, untraced
from niels_gpt.renderers.parsers import get_reasoning_parser, get_tool_parser
from niels_gpt.renderers.parsing import ParsedResponse
from niels_gpt.renderers.rendered import BODY, SAMPLED, SCAFFOLD, Piece, RenderedBatch, RenderedTokens
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.serving_prompt import fixed_prompt, opening_of
from niels_gpt.renderers.template_run import compile_template, run_template
from niels_gpt.renderers.traced import LABEL, NOWHERE, MessageDict, trace, wholly
from niels_gpt.renderers.turns import Controls, Run, added_by, sampled_span
from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.opening import open_encoder

# What of a message is its body; the rest (role, name, ids) is what templates write headers from.
BODY_FIELDS = frozenset({"content", "tool_calls", *REASONING_FIELDS})
_MESSAGE_FIELDS = BODY_FIELDS | {"role", "name", "tool_call_id", "train", "weight"}

_NO_IMAGES = (
    "a template says where it stands, and not how many tokens it takes. Name a family with images, or use text(), "
    "which shows what the template writes"
)


def no_clock(form: str) -> str:
    """The clock of a renderer that was given none.

    Raises:
        MessageError: always; a rendering must not depend on when it is made.
    """
    raise MessageError(
        "no_clock",
        f"the chat template asks for the date ({form!r}); pass clock=, for example lambda form: '01 Jan 2026'",
    )


class TemplateRenderer:
    """Renders conversations through a chat template, exactly as serving does, and says of every token where it is from.

    Args:
        tokenizer: whatever `open_encoder` takes: a hub name, a directory, a tokenizer object, an encoder.
        template: the template's text; default the tokenizer's own.
        clock: what `strftime_now(format)` returns; a renderer never reads the real clock.
        stops: spellings that end a turn beside the tokenizer's eos, for formats whose stop is ordinary text.
        tool_parser, reasoning_parser: names of `TOOL_PARSERS` and `REASONING_PARSERS`; default: completions are text.
        roles: more roles that the template may write into its control tokens, beside those of `KNOWN_ROLES`.
        isolate: run the template in a process of its own, which the system stops at these limits; for a template from
            a stranger.
        variables: more variables of the template, such as `enable_thinking=False`. Those named `..._token` are
            control tokens where the template writes them, as the tokenizer's own (`bos_token`) are; texts of others
            are not.

    Raises:
        TemplateError: no template, or a syntax error. TokenizerError: the tokenizer cannot be used.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        clock: Callable[[str], str] = no_clock,
        stops: Sequence[str] = (),
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        roles: Sequence[str] = (),
        isolate: Isolation | None = None,
        **variables: Any,
    ) -> None:
        self.encoder = open_encoder(tokenizer)
        if isinstance(self.encoder, Encoder):  # no content can forge a stop
            self.encoder = self.encoder.with_controls(stops)
        source = self.encoder.template if template is None else template
        if source is None:
            name = self.encoder.name
            raise TemplateError(f"{name}: no chat template; pass template=, the text of a Jinja chat template")
        self.source, self._clock = source, clock
        self._variables = {**self.encoder.special_tokens, **variables}
        self._seen = {name: _variable(name, value) for name, value in self._variables.items()}
        self._roles = {role: wholly(role, NOWHERE) for role in KNOWN_ROLES.union(roles)}
        self._isolate = isolate
        self._compiled = self._compile()
        self._fixed_prompt = (
            self._compiled.fixed_prompt(self._seen)
            if isinstance(self._compiled, TemplateProcess)
            else fixed_prompt(source, clock, self._seen)
        )
        told = [self.encoder.added_ids[stop] for stop in stops if stop in self.encoder.added_ids]
        self._stop_ids = list(dict.fromkeys([*told, *self.encoder.stop_ids]))
        eos = [text for text, token in self.encoder.control_ids.items() if token in self.encoder.stop_ids]
        self._controls = Controls([*self.encoder.control_ids, *stops], [*eos, *stops])
        self._tool_parser = None if tool_parser is None else get_tool_parser(tool_parser, self.encoder)
        self._reasoning_parser = (
            None if reasoning_parser is None else get_reasoning_parser(reasoning_parser, self.encoder)
        )

    @property
    def supports_tools(self) -> bool:
        """Tool calls are read from completions: there is a tool parser."""
        return self._tool_parser is not None

    @property
    def vocab_size(self) -> int:
        """All ids are below it."""
        return self.encoder.vocab_size

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of the tokenizer's bytes and of the template's text, as datasets record them."""
        told = json.dumps(self._variables, sort_keys=True, default=repr)
        return {
            "tokenizer_sha256": self.encoder.fingerprints["tokenizer"],
            "template_sha256": hashlib.sha256(self.source.encode()).hexdigest(),
            "template_variables_sha256": hashlib.sha256(told.encode()).hexdigest(),
        }

    def get_stop_token_ids(self) -> list[int]:
        """The ids at which serving stops: the stops given, eos, and what the generation config adds."""
        return list(self._stop_ids)

    def render_ids(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The ids alone."""
        return self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids

    def render(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """Ids with attribution.

        Raises:
            MessageError: the messages are malformed, or the template refuses or fails on them (`template_raised`,
                `template_failed`, with the index of the message it was on).
            TemplateError: the template misbehaves.
        """
        given = normalise(messages)
        out, told = self._written(given, tools, add_generation_prompt)
        return encode_one(self.encoder, out, given, told)

    def rendered_pieces(self, pieces: Sequence[Piece], messages: Sequence[Message]) -> RenderedTokens:
        """Pieces as ids, with the facts that they have."""
        return encode_one(self.encoder, Script.of(pieces), messages)

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
        given = normalise(messages)
        out, told = self._written(given, tools)
        return out, given, told

    def text(self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False) -> str:
        """What the template writes."""
        chunks = self._chunks(normalise(messages), tools, add_generation_prompt)
        return "".join(chunk.text for chunk in chunks)

    def pieces(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[Piece]:
        """The rendering before it becomes ids."""
        return self._written(normalise(messages), tools, add_generation_prompt)[0].pieces()

    def parse_response(self, token_ids: Sequence[int], *, tools: Any = None) -> ParsedResponse:
        """What the model said, as far as the parsers given know its format; see `Renderer`."""
        said = Completion(self.encoder, token_ids, self._stop_ids)
        thought, rest = None, said.text
        if self._reasoning_parser is not None:
            thought, rest = self._reasoning_parser.extract(rest)
        reasoning, content = None if thought is None else shown(thought), shown(rest)
        if self._tool_parser is None:
            return ParsedResponse(content, reasoning)
        # Calls are read behind the reasoning: 9 characters in 5 tokens, 4 of content, which begin in token 3.
        start = len(said.text) - len(rest)
        first = said.span(start, len(said.text))[0] if rest else len(said.ids)
        content_ids, calls = self._tool_parser.extract(said.ids[first:], tools=tools)
        text = Completion(self.encoder, content_ids, ()).told()
        return ParsedResponse(text if calls else content, reasoning, [call.moved(first) for call in calls])

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """The next prompt, where rendering proves that the template only adds to what it wrote; see `bridge.py`."""
        return bridge_by_rendering(self, previous_prompt_ids, previous_completion_ids, new_messages, tools=tools)

    def _written(self, messages: list[Message], tools: Any, gen: bool = False) -> tuple[Script, str]:
        """The rendering before it becomes ids, and "full", or what of the messages' content was not traced."""
        refuse_images(messages, "unsupported_content", _NO_IMAGES)
        runs = owned(list(self._chunks(messages, tools, gen)), [message["role"] for message in messages])
        check_controls(runs, messages, (tools, self._variables), self._controls)
        lost = untraced(messages, runs)
        out = Script()
        before = ""  # all text in front of the turn
        for index, turn in self._apart(runs, messages, tools, gen):
            text = "".join([run.text for run in turn])
            if index >= 0 and messages[index]["role"] == "assistant":
                found = self._assistant(out, turn, index, self._prompt(messages, index, tools, before, turn))
                lost = lost or ("" if found else f"message {index} does not begin as the generation prompt")
            else:
                for run in turn:
                    out.put(run.text, index, BODY if run.origin >= 0 else SCAFFOLD if run.origin == NOWHERE else 0)
            before += text
        return out, f"partial: {lost}" if lost else "full"

    def _chunks(self, messages: Sequence[Message], tools: Any, gen: bool) -> Iterator[Chunk]:
        if tools is not None and (not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools)):
            raise MessageError("wrong_tools", f"tools is {str(tools)[:40]!r}; expected a list of objects, or None")
        seen = [self._as_seen(message, index) for index, message in enumerate(messages)]
        offered = trace(tools, LABEL)
        variables = {"messages": seen, "tools": offered, "documents": None, "add_generation_prompt": gen}
        given = variables | self._seen
        if isinstance(self._compiled, TemplateProcess):
            return self._compiled.run(given)
        return run_template(self._compiled, given)

    def _compile(self) -> jinja2.Template | TemplateProcess:
        """The template, here or in a process of its own."""
        if self._isolate is not None:
            return TemplateProcess(self.source, self._clock, self._isolate)
        return compile_template(self.source, self._clock)

    def _as_seen(self, message: Message, index: int) -> MessageDict:
        """A message as Transformers hands it to templates, its body traced; nothing but known roles is trusted."""
        held: Mapping[str, Any] = message
        reasoning = reasoning_of(message)
        if reasoning is not None:
            held = {"thinking": reasoning, **held, "reasoning_content": reasoning}
        seen = {
            key if key in _MESSAGE_FIELDS else trace(key, LABEL): trace(value, index if key in BODY_FIELDS else LABEL)
            for key, value in held.items()
            if type(value) is not NoContent
        }
        role = message["role"]
        seen["role"] = self._roles.get(role) or wholly(role, UNKNOWN_ROLE)
        return MessageDict(seen, index)

    def _apart(
        self, runs: list[Run], messages: list[Message], tools: Any, gen: bool
    ) -> Iterator[tuple[int, list[Run]]]:
        """The turns, without what only stands beside them: an invented system turn, the generation prompt."""
        if gen and runs and runs[-1].owner >= 0:  # written where the last message is: what is it without?
            without = "".join(chunk.text for chunk in self._chunks(messages, tools, False))
            runs = disowned(runs, len(without)) if "".join(run.text for run in runs).startswith(without) else runs
        first = True
        for index, turn in turns(runs):
            invented = invented_turn(turn, self._controls) if first and index >= 0 else 0
            first = first and index < 0
            if invented:
                yield NOWHERE, [run_of_none(run) for run in turn[:invented]]
            yield index, turn[invented:]

    def _assistant(self, out: Script, turn: list[Run], index: int, prompt: str) -> bool:
        """Write an assistant's turn; whether it begins as the generation prompt does."""
        start, stop, found = sampled_span(turn, prompt, self._controls)
        at = 0
        for run in turn:
            end = at + len(run.text)
            bits = SCAFFOLD if run.origin == NOWHERE else 0
            for lo, hi in _cut(at, end, start, stop):
                sampled = start <= lo and hi <= stop
                out.put(run.text[lo - at : hi - at], index, bits | SAMPLED | BODY if sampled else bits)
            at = end
        return found

    def _prompt(self, messages: list[Message], index: int, tools: Any, before: str, turn: list[Run]) -> str:
        """What serving would have put behind the turns before message `index`, whose runs are `turn`.

        It may depend on all that was said before, so the past is rendered, unless the turn begins as a prompt that is
        the same behind any past, or with the message's own text where the template writes no prompt.
        """
        fixed = self._fixed_prompt
        if fixed == "" and turn[0].origin == index:
            return ""
        if fixed and "".join(run.text for run in turn).startswith(opening_of(fixed, self._controls)):
            return fixed
        try:
            return self._prompt_after(messages[:index], tools, before)
        except MessageError:  # the template wants a whole conversation; or somebody, where nobody has spoken
            past = messages if index else normalise([{"role": "user", "content": "probe"}])
            return self._prompt_after(past, tools, None)

    def _prompt_after(self, messages: list[Message], tools: Any, before: str | None) -> str:
        """The generation prompt behind these messages; `before` is their text as history, `None` if that is not it."""
        served = "".join(chunk.text for chunk in self._chunks(messages, tools, True))
        # Where history renders as it was served, the prompt is simply what follows; it may hold more than
        # add_generation_prompt adds (DeepSeek closes its tool outputs there).
        if before is not None and served.startswith(before):
            return served[len(before) :]
        without = "".join(chunk.text for chunk in self._chunks(messages, tools, False))
        return added_by(served, without, self._controls)

    def __getstate__(self) -> dict[str, Any]:
        """Templates are compiled again where they arrive."""
        return {key: value for key, value in self.__dict__.items() if key != "_compiled"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._compiled = self._compile()


def load_template(path: str | Path) -> str:
    """The text of a template file.

    Raises:
        TemplateError: there is none, or it is empty. InputError: it is no text.
    """
    file = Path(path)
    if not file.is_file():
        raise TemplateError(f"{file}: no such file; expected a Jinja chat template")
    text = read_text(file)
    if not text.strip():
        raise TemplateError(f"{file}: the file is empty; expected a Jinja chat template")
    return text


def _variable(name: str, value: Any) -> Any:
    """A variable as templates see it: named special tokens are as good as literals, other texts are not."""
    return trace(value, NOWHERE if isinstance(value, str) and name.endswith("_token") else LABEL)


def _cut(start: int, stop: int, *places: int) -> list[tuple[int, int]]:
    """`start` to `stop`, cut at the places inside, which ascend: 0 to 6 at 2 and 9 gives 0-2, 2-6."""
    inside = [place for place in places if start < place < stop]
    if not inside:
        return [(start, stop)] if start < stop else []
    return [(lo, hi) for lo, hi in pairwise([start, *inside, stop]) if lo < hi]
