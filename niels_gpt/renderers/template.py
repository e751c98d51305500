"""TemplateRenderer: any Jinja chat template, unmodified, with the origin of every token (DESIGN 2.2)."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, TemplateError, UsageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.base import Piece, RenderedTokens
from niels_gpt.renderers.jinja import Chunk, compile_template, run_template
from niels_gpt.renderers.traced import NOWHERE, MessageDict, runs_of, trace
from niels_gpt.renderers.turns import Controls, Run, added_by, sampled_span
from niels_gpt.tokenizer.encoder import Encoder

# What of a message is its body; the rest (role, name, ids) is what templates write headers from.
BODY_FIELDS = ("content", "reasoning_content", "thinking", "reasoning", "tool_calls")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


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
        tokenizer: a Hugging Face tokenizer directory or file, a tokenizer object, or an `Encoder`.
        template: the template's text; default the tokenizer's own.
        clock: what `strftime_now(format)` returns; a renderer never reads the real clock.
        stops: spellings that end a turn beside the tokenizer's eos, for formats whose stop is ordinary text.
        variables: more variables of the template, such as `enable_thinking=False`.

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
        **variables: Any,
    ) -> None:
        self.encoder = tokenizer if isinstance(tokenizer, Encoder) else Encoder.load(tokenizer)
        parts = self.encoder.parts
        source = parts.template if template is None else template
        if source is None:
            raise TemplateError(f"{parts.name}: no chat template; pass template=, the text of a Jinja chat template")
        self.source, self._clock = source, clock
        self._variables = {**parts.special_tokens, **variables}
        self._template = compile_template(source, clock)
        eos = [text for text, token in self.encoder.control_ids.items() if token in parts.stop_ids]
        self._controls = Controls([*self.encoder.control_ids, *stops], [*eos, *stops])
        self._prompts: dict[tuple[str | None, bool], str] = {}

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
        """The ids at which serving stops: eos, and what the generation config adds."""
        return list(self.encoder.parts.stop_ids)

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
        pieces, lost = self._pieces(given, tools, add_generation_prompt)
        ids, owner = self.encoder.encode_pieces([piece.text for piece in pieces], [piece.scaffold for piece in pieces])
        facts = np.array([piece[1:4] for piece in pieces], dtype=np.int64).reshape(-1, 3)
        of_token = facts[owner]
        return RenderedTokens(
            token_ids=ids.tolist(),
            message_indices=of_token[:, 0].tolist(),
            sampled_mask=of_token[:, 1].astype(np.bool_).tolist(),
            is_content=of_token[:, 2].astype(np.bool_).tolist(),
            message_roles=[message["role"] for message in given],
            attribution=f"partial: {lost}" if lost else "full",
        )

    def text(self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False) -> str:
        """What the template writes."""
        chunks = self._chunks(normalise(messages), tools, add_generation_prompt)
        return "".join(chunk.text for chunk in chunks)

    def pieces(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[Piece]:
        """The rendering before it becomes ids."""
        return self._pieces(normalise(messages), tools, add_generation_prompt)[0]

    def _chunks(self, messages: Sequence[Message], tools: Any, gen: bool) -> Iterator[Chunk]:
        seen = [_as_seen(message, index) for index, message in enumerate(messages)]
        variables = {"messages": seen, "tools": tools, "documents": None, "add_generation_prompt": gen}
        return run_template(self._template, variables | self._variables)

    def _pieces(self, messages: list[Message], tools: Any, gen: bool) -> tuple[list[Piece], str]:
        """The pieces, and what of the messages' content was not traced (empty if all was)."""
        runs = _owned(list(self._chunks(messages, tools, gen)))
        lost = _untraced(messages, runs)
        pieces: list[Piece] = []
        before = ""  # all text in front of the turn
        for index, turn in _turns(runs):
            if index >= 0 and messages[index]["role"] == "assistant":
                prompt = self._prompt(messages, index, tools, before)
                made, found = self._assistant(turn, index, prompt)
                pieces += made
                lost = lost or ("" if found else f"message {index} does not begin as the generation prompt")
            else:
                pieces += [Piece(run.text, index, False, run.origin >= 0, run.origin < 0) for run in turn]
            before += "".join(run.text for run in turn)
        return pieces, lost

    def _assistant(self, turn: list[Run], index: int, prompt: str) -> tuple[list[Piece], bool]:
        start, stop, found = sampled_span(turn, prompt, self._controls)
        pieces, at = [], 0
        for run in turn:
            for lo, hi in _cut(at, at + len(run.text), (start, stop)):
                sampled = start <= lo and hi <= stop
                pieces.append(Piece(run.text[lo - at : hi - at], index, sampled, sampled, run.origin < 0))
            at += len(run.text)
        return pieces, found

    def _prompt(self, messages: list[Message], index: int, tools: Any, before: str) -> str:
        """What serving would have put behind the turns before message `index`.

        It depends on who spoke last, not on what was said, so each case is rendered once.
        """
        key = (messages[index - 1]["role"] if index else None, bool(tools))
        if key not in self._prompts:
            try:
                self._prompts[key] = self._prompt_after(messages[:index], tools, before)
            except MessageError:  # the template wants a whole conversation, or one that nobody has begun
                self._prompts[key] = self._prompt_after(messages, tools, None)
        return self._prompts[key]

    def _prompt_after(self, messages: list[Message], tools: Any, before: str | None) -> str:
        """The generation prompt behind these messages; `before` is their text as history, `None` if that is not it."""
        served, without = ("".join(chunk.text for chunk in self._chunks(messages, tools, gen)) for gen in (True, False))
        # Where history renders as it was served, the prompt is simply what follows; it may hold more than
        # add_generation_prompt adds (DeepSeek closes its tool outputs there).
        if before is not None and served.startswith(before):
            return served[len(before) :]
        return added_by(served, without, self._controls)

    def __getstate__(self) -> dict[str, Any]:
        """Templates are compiled again where they arrive."""
        return {key: value for key, value in self.__dict__.items() if key != "_template"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._template = compile_template(self.source, self._clock)


def open_renderer(tokenizer: Path, *, template: Path | None = None, date: str | None = None) -> TemplateRenderer:
    """A renderer from what a command line says.

    Args:
        date: the day that `strftime_now` tells, as 2026-01-31.

    Raises:
        UsageError: not a date. TemplateError, TokenizerError: as `TemplateRenderer`.
    """
    try:
        clock = no_clock if date is None else datetime.date.fromisoformat(date).strftime
    except ValueError as error:
        raise UsageError(f"the date is {date!r}; expected a day like 2026-01-31") from error
    source = None if template is None else load_template(template)
    return TemplateRenderer(tokenizer, template=source, clock=clock)


def load_template(path: str | Path) -> str:
    """The text of a template file.

    Raises:
        TemplateError: there is none.
    """
    file = Path(path)
    if not file.is_file():
        raise TemplateError(f"{file}: no such file; expected a Jinja chat template")
    return file.read_text(encoding="utf-8")


def _as_seen(message: Message, index: int) -> MessageDict:
    """A message as Transformers hands it to templates, its body traced."""
    held: dict[str, Any] = dict(message)
    reasoning = next((held[name] for name in REASONING_FIELDS if held.get(name) is not None), None)
    if reasoning is not None:
        held = {"thinking": reasoning, **held, "reasoning_content": reasoning}
    return MessageDict(
        {key: trace(value, index) if key in BODY_FIELDS else value for key, value in held.items()}, index
    )


def _owned(chunks: list[Chunk]) -> list[Run]:
    """Every run with its message.

    Inside a loop over messages scaffold belongs to the message of that turn. Outside, a stretch that carries the text
    of a message belongs to it (a system block written before the loop); a stretch without any belongs to none.
    """
    runs: list[Run] = []
    outside: list[Run] = []
    for chunk in chunks:
        made = [Run(text, origin if origin != NOWHERE else chunk.owner, origin) for text, origin in _split(chunk.text)]
        if chunk.owner == NOWHERE:
            outside += made
            continue
        runs += _adopted(outside)
        runs += made
        outside = []
    return runs + _adopted(outside)


def _split(text: str) -> Iterator[tuple[str, int]]:
    at = 0
    for length, origin in runs_of(text):
        if length:
            yield str.__getitem__(text, slice(at, at + length)), origin
        at += length


def _adopted(outside: list[Run]) -> list[Run]:
    """Scaffold outside of loops goes to the message before it in the stretch, else to the one behind it."""
    origins = [run.origin for run in outside if run.origin != NOWHERE]
    if not origins:
        return outside
    owner, adopted = origins[0], []
    for run in outside:
        owner = run.origin if run.origin != NOWHERE else owner
        adopted.append(Run(run.text, owner, run.origin))
    return adopted


def _turns(runs: list[Run]) -> list[tuple[int, list[Run]]]:
    """Neighbouring runs of one message."""
    turns: list[tuple[int, list[Run]]] = []
    for run in runs:
        if not turns or turns[-1][0] != run.owner:
            turns.append((run.owner, []))
        turns[-1][1].append(run)
    return turns


def _cut(start: int, stop: int, places: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """`start` to `stop`, cut at the places inside: 0 to 6 at 2 and 9 gives 0-2, 2-6."""
    edges = [start, *sorted({place for place in places if start < place < stop}), stop]
    return ((lo, hi) for lo, hi in pairwise(edges) if lo < hi)


def _untraced(messages: Sequence[Message], runs: list[Run]) -> str:
    """The first message whose content is in the output without being known as its own; empty if there is none."""
    traced = [0] * len(messages)
    for run in runs:
        if run.origin >= 0:
            traced[run.origin] += len(run.text)
    for index, message in enumerate(messages):
        for text in _texts(message["content"]):
            if len(text) > traced[index] and any(text in run.text for run in runs if run.origin < 0):
                return f"the content of message {index} lost its origin in the template"
    return ""


def _texts(content: str | list[dict[str, Any]]) -> list[str]:
    """The texts of a content, in parts or not."""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    return [part.strip() for part in parts if isinstance(part, str)]
