"""The layout of a renderer's format, inferred from renderings of small conversations (the probes).

The renderer attributes every token of a probe to its message and marks what the model samples. From that follow what
begins a turn, what the generation prompt prefills, and what ends a turn::

    probe      <|im_start|> user newline In      <|im_start|> assistant newline In the north <|im_end|>
    message    1            1    1       1       2            2         2       2  2   2     2
    sampled    .            .    .       .       .            .         .       #  #   #     #
    layout     opener of users: <|im_start|> user; of assistants: <|im_start|> assistant; stop: <|im_end|>

Then the layout is tried on the ids of the probes alone. Only if it finds every turn where the renderer wrote it is it
trusted, and rules that need turns are judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.layout import Ids, Layout, rows_of
from niels_gpt.doctor.rows import ASSISTANT, ROLES, TOOL, Bools, covered
from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.pieces import PieceEncoder

Probe = tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "the weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    """An assistant message."""
    return {"role": "assistant", "content": text, **more}


def call(arguments: Any, name: str = "weather", *, id: str = "") -> dict[str, Any]:
    """An assistant message that calls the tool; by default with an id as Kimi's format wants it."""
    function = {"name": name, "arguments": arguments}
    return assistant("", tool_calls=[{"id": id or f"functions.{name}:0", "type": "function", "function": function}])


def result(text: str, name: str = "weather", *, id: str = "") -> dict[str, Any]:
    """A tool message with the result of a call."""
    return {"role": "tool", "content": text, "tool_call_id": id or f"functions.{name}:0", "name": name}


_SYSTEM: Final = {"role": "system", "content": "Answer like a lighthouse."}
_TWO_TURNS: Final = [user("Where is it?"), assistant("In the north"), user("And now"), assistant("There it stays.")]
_WITHOUT_SYSTEM: Final = "two turns"
_WITH_SYSTEM: Final = "a system message and two turns"

# Name, messages, tools. Names are stable because reports of drift name the probe.
PROBES: Final[tuple[Probe, ...]] = (
    # Contents begin and end without white space (but for the last probe), so that white space next to them in a
    # rendering is known to be the template's.
    (_WITHOUT_SYSTEM, _TWO_TURNS, None),
    ("a system message", [_SYSTEM, user("Hello"), assistant("Good evening")], None),
    (_WITH_SYSTEM, [_SYSTEM, *_TWO_TURNS], None),
    (
        "reasoning",
        [
            user("Count"),
            assistant("Three", reasoning_content="One, two and one more"),
            user("Again"),
            assistant("Four", reasoning_content="Three and one"),
        ],
        None,
    ),
    (
        "a tool call",
        [user("Rain?"), call({"city": "Oslo"}), result("4 degrees"), assistant("Cold."), *_TWO_TURNS],
        TOOLS,
    ),
    (
        # Another name and result: what all tool turns share is the header, and what differs is content.
        "another tool call",
        [user("Time?"), call({"city": "Rome"}, "clock"), result("noon", "clock"), assistant("Twelve.")],
        TOOLS,
    ),
    (
        # Mistral's templates accept only ids of nine letters and digits.
        "a tool call with a short id",
        [user("Rain?"), call({"city": "Oslo"}, id="aBcDeF123"), result("4", id="aBcDeF123"), assistant("Cold.")],
        TOOLS,
    ),
    (
        # With another id: where a header holds the id, it is not the same in both.
        "another tool call with a short id",
        [user("Time?"), call({"city": "Rome"}, "clock", id="Zy9876543"), result("noon", "clock", id="Zy9876543")],
        TOOLS,
    ),
    ("two turns of one word", [user("a"), assistant("b"), user("c"), assistant("d")], None),
    ("other scripts", [user("你好"), assistant("Größe, мир 🤖"), user("1 + 1\n"), assistant("2\n\n= 2")], None),
)


AnyRenderer = Family | DefaultRenderer
NO_TEMPLATE = "the tokenizer has no chat template, and no renderer was named"
_TAGS = ("", "<think>", "</think>")
# Control tokens that models sample inside an answer and that no probe needs to show.
_SAMPLED_CONTROLS = ("<|constrain|>",)


# The header of one message in a probe: its role, and the ids before its content.
_Header = tuple[int, Ids]


def render_probes(renderer: AnyRenderer) -> dict[str, RenderedTokens | MessageError]:
    """Every probe as the renderer writes it, or the error with which it refuses it, by name."""
    rendered: dict[str, RenderedTokens | MessageError] = {}
    for name, messages, tools in PROBES:
        try:
            rendered[name] = renderer.render(normalise(messages), tools=tools)
        except MessageError as error:
            rendered[name] = error
    return rendered


def infer_layout(renderer: AnyRenderer) -> Layout:
    """The layout of a renderer's format.

    A layout that does not find the turns of the probes is not `trusted`; then rules that need turns are not judged.
    """
    encoder = renderer.encoder
    probes = render_probes(renderer)
    shown = [rendered for rendered in probes.values() if isinstance(rendered, RenderedTokens)]
    preamble = _preamble(shown, encoder)
    stops, has_own_stop = _stops(renderer, shown)
    headers = [
        # Without an end of turn the stops are openers, which must not be cut off a header.
        header
        for rendered in shown
        for header in _headers(rendered, encoder, len(preamble), stops if has_own_stop else ())
    ]
    openers = _openers(headers, encoder)
    # What follows the opener in the headers of assistants is what a generation prompt may write.
    supplied = {
        which: tuple(sorted({ids[len(opener) :] for of, ids in headers if of == role and ids[: len(opener)] == opener}))
        for which, (role, opener) in enumerate(openers)
        if role == ASSISTANT
    }
    first_ids = frozenset(rendered.token_ids[0] for rendered in shown)
    if not first_ids <= {*encoder.control_ids.values(), *encoder.added_ids.values()}:
        first_ids = frozenset()  # a rendering that begins with ordinary text can begin anywhere
    layout = replace(
        layout_without_template(encoder),
        openers=openers,
        supplied=supplied,
        stops=stops,
        has_own_stop=has_own_stop,
        preamble=preamble,
        template_ids=frozenset(token for rendered in shown for token in rendered.token_ids)
        | {encoder.added_ids[text] for text in _SAMPLED_CONTROLS if text in encoder.added_ids},
        first_ids=first_ids,
        serving_stops=frozenset((*encoder.stop_ids, *renderer.get_stop_token_ids())),
        headerless=bool(supplied) and has_own_stop and _is_headerless(renderer, stops),
    )
    layout = _with_facts_of_turns(layout, shown, [probes[name] for name in (_WITHOUT_SYSTEM, _WITH_SYSTEM)])
    if _untrusted_because(layout, shown):  # try the other reading: only the last part of an answer has the stop
        joined = replace(layout, joins_parts=True)
        layout = layout if _untrusted_because(joined, shown) else joined
    refusal = next((str(error) for error in probes.values() if isinstance(error, MessageError)), "")
    untrusted_because = _untrusted_because(layout, shown) if shown else f"the template refuses every probe: {refusal}"
    return replace(layout, trusted=not untrusted_because, untrusted_because=untrusted_because)


def layout_without_template(encoder: PieceEncoder) -> Layout:
    """The layout for a tokenizer without a chat template: its vocabulary and its control tokens, no turns."""
    bos, pad = (encoder.added_ids.get(encoder.special_tokens.get(name, "")) for name in ("bos_token", "pad_token"))
    think, end_of_think = (encoder.added_ids.get(tag) for tag in ("<think>", "</think>"))
    spelt = encoder.token_bytes(range(encoder.vocab_size))
    return Layout(
        openers=(),
        supplied={},
        stops=(),
        has_own_stop=True,
        preamble=(),
        bos=bos,
        template_ids=frozenset(),
        pad=pad,
        controls=frozenset(encoder.control_ids.values()),
        serving_stops=frozenset(encoder.stop_ids),
        think=None if think is None or end_of_think is None else (think, end_of_think),
        white_bytes=np.array([0 if token.strip() else len(token) for token in spelt], dtype=np.int64),
        vocab_size=encoder.vocab_size,
        trusted=False,
        untrusted_because=NO_TEMPLATE,
        names={token: text for text, token in encoder.added_ids.items()},
    )


def _preamble(shown: Sequence[RenderedTokens], encoder: PieceEncoder) -> Ids:
    """The control tokens that all probes begin with and that occur nowhere else in them."""
    if encoder.engine == "sentencepiece":  # the sentinel format has none: its system sentinel opens a turn
        return ()
    controls = set(encoder.control_ids.values())
    runs: list[Ids] = []
    for rendered in shown:
        n = 0
        # Control tokens of one probe, up to the first that is none or that occurs again.
        while (
            # A control token that occurs again opens turns, so it is not a preamble.
            n < len(rendered.token_ids)
            and rendered.token_ids[n] in controls
            and rendered.token_ids.count(rendered.token_ids[n]) == 1
        ):
            n += 1
        runs.append(tuple(rendered.token_ids[:n]))
    return _common(runs)


def _common(runs: Sequence[Ids]) -> Ids:
    """The longest run that all runs begin with: (1, 2) of (1, 2, 3) and (1, 2, 4)."""
    shared = runs[0] if runs else ()
    for run in runs:
        n = next((at for at, (a, b) in enumerate(zip(shared, run, strict=False)) if a != b), min(len(shared), len(run)))
        shared = shared[:n]
    return shared


def _headers(rendered: RenderedTokens, encoder: PieceEncoder, after: int, stops: Ids) -> Iterator[_Header]:
    """The header of each message: from its first token to its first content token.

    Args:
        after: tokens of the preamble, which belong to no header.
        stops: ids that end turns, where assistant turns have a stop of their own.
    """
    ids, owners = rendered.token_ids, rendered.message_indices
    # Tags and control tokens; added tokens of white space only are not part of a header.
    marks = {token for text, token in encoder.added_ids.items() if text.strip()}
    for index, role in enumerate(rendered.message_roles):
        positions = [at for at, owner in enumerate(owners) if owner == index]
        # Content of an answer that is not sampled is written by the generation prompt, so it belongs to the header.
        is_body = rendered.sampled_mask if role == "assistant" else rendered.is_content
        body = [at for at in positions if rendered.is_content[at] and is_body[at]]
        if not body or role not in ROLES:
            continue
        first, stop = max(positions[0], after), body[0]
        if first >= stop:  # no header of its own: the tag that ends the turn before it serves as its header
            first = next((at for at in range(stop - 1, after - 1, -1) if ids[at] in marks), stop)
        if role != "assistant":  # a turn that the template inserts before the message is not part of its header
            first = next((at + 1 for at in range(stop - 1, first - 1, -1) if ids[at] in stops), first)
        # White space before the header belongs to the turn before.
        while first < stop and not encoder.decode(ids[first : first + 1]).strip():
            first += 1
        if first < stop:
            yield ROLES.index(role), tuple(ids[first:stop])


def _openers(headers: Iterable[_Header], encoder: PieceEncoder) -> tuple[tuple[int, Ids], ...]:
    """The opener of each role: what its headers have in common, without trailing white space and think tags.

    Headers of one role that begin with different ids give one opener each.
    """
    groups: dict[tuple[int, int], list[Ids]] = {}
    for role, ids in headers:
        groups.setdefault((role, ids[0]), []).append(ids)
    controls = set(encoder.control_ids.values())
    found: dict[Ids, int] = {}
    # The assistant first, so that an opener shared with another role is the assistant's.
    for (role, _), runs in sorted(groups.items(), key=lambda group: group[0][0] != ASSISTANT):
        opener = _common(runs)
        last = max((at + 1 for at, token in enumerate(opener) if token in controls), default=0)
        if last > 1:  # `<|start|>system<|message|>`, then text that all probes share, for example a date
            opener = opener[:last]
        # A prompt may or may not write them, and white space may share a token with the text after it.
        while len(opener) > 1 and encoder.decode(opener[-1:]).strip() in _TAGS:
            opener = opener[:-1]
        # A system message that is written into the user's turn has the user's header.
        if opener not in found or (role == ROLES.index("user") and found[opener] != ASSISTANT):
            found[opener] = role
    return tuple(sorted((role, opener) for opener, role in found.items()))


def _stops(renderer: AnyRenderer, shown: Sequence[RenderedTokens]) -> tuple[Ids, bool]:
    """The ids that end assistant turns, and whether these turns have a stop of their own.

    The candidates are the last sampled tokens of all assistant turns.
    """
    last = set()
    for rendered in shown:
        for index, role in enumerate(rendered.message_roles):
            facts = enumerate(zip(rendered.message_indices, rendered.sampled_mask, strict=True))
            positions = [at for at, (owner, sampled) in facts if owner == index and sampled]
            if role == "assistant" and positions:
                last.add(rendered.token_ids[positions[-1]])
    # If the last token may be ordinary text, turns end with the next opener, or not at all.
    ends = {*renderer.encoder.control_ids.values(), *renderer.get_stop_token_ids()}
    if len(last) == 1:  # every turn ends in it, so it is a stop even if the tokenizer does not mark it as special
        ends |= set(renderer.encoder.added_ids.values())
    if last and last <= ends:
        return tuple(sorted(last)), True
    return tuple(renderer.get_stop_token_ids()), False


def _is_headerless(renderer: AnyRenderer, stops: Ids) -> bool:
    """Whether an assistant turn at the beginning has no header, while the header of users is not a stop."""
    chat: list[Any] = [assistant("In the north."), user("Rain?"), assistant("Yes.")]
    try:
        rendered = renderer.render(normalise(chat))
    except MessageError:
        return False
    positions = [at for at, owner in enumerate(rendered.message_indices) if owner == 0]
    ends = [at for at in positions if rendered.token_ids[at] in stops]
    first = positions[0] if positions else None
    return first is not None and rendered.is_content[first] and rendered.sampled_mask[first] and len(ends) == 1


def _with_facts_of_turns(
    layout: Layout, shown: Sequence[RenderedTokens], two_turns: Sequence[RenderedTokens | MessageError]
) -> Layout:
    """The layout with the facts that need the turns which it finds in the probes so far.

    Args:
        two_turns: the same two turns without and with a system message before them.
    """
    rows = rows_of([rendered.token_ids for rendered in shown])
    answers = layout.turns(rows).assistants
    # gpt-oss samples the opener between two parts of one answer, in all probes that have several parts.
    between = answers.start[answers.resumed]
    repeats_opener = len(between) > 0 and bool(_sampled(shown)[between].all())
    # Contents of the probes begin with no white space, so all of it is the format's. Results of tools are not judged.
    _, which, after, sizes = layout.white_space_after(rows)
    min_white_space = tuple(
        int(sizes[which == at].min()) if role != TOOL and (which == at).any() else 0
        for at, (role, _) in enumerate(layout.openers)
    )
    most_white_space: dict[tuple[int, int], int] = {}
    followers = layout.followers(rows, after).tolist()
    for opener, follower, size in zip(which.tolist(), followers, sizes.tolist(), strict=True):
        if layout.openers[opener][0] == ASSISTANT:
            most_white_space[opener, follower] = max(size, most_white_space.get((opener, follower), 0))
    # Which ids follow the first token of a header, where that is a control token and the header has more than it.
    openers = [ids for role, ids in layout.openers if role == ASSISTANT and len(ids) > 1]
    first_ids = {ids[0] for ids in openers if ids[0] in layout.controls}
    pairs = (pair for rendered in shown for pair in zip(rendered.token_ids, rendered.token_ids[1:], strict=False))
    header_pairs = frozenset(pair for pair in pairs if pair[0] in first_ids)
    return replace(
        layout,
        repeats_opener=repeats_opener,
        moves_system=_moves_system(layout, two_turns),
        min_white_space=min_white_space,
        most_white_space=most_white_space,
        header_pairs=header_pairs,
    )


def _untrusted_because(layout: Layout, shown: Sequence[RenderedTokens]) -> str:
    """Why the layout is not trusted: the first token at which its turns differ from the renderer's; empty if none."""
    if not any(role == ASSISTANT for role, _ in layout.openers):
        return "no probe shows a header of an assistant turn"
    rows = rows_of([rendered.token_ids for rendered in shown])
    turns = layout.turns(rows).assistants
    end = turns.sampled_end if layout.has_own_stop else turns.end
    found = covered(turns.body, end, len(rows.ids))
    if layout.repeats_opener:
        # Between the parts of one answer the opener is sampled, too.
        again = turns.select(turns.resumed)
        found |= covered(again.start, again.body, len(rows.ids))
    wrong = np.flatnonzero(found != _sampled(shown))
    if not wrong.size:
        return ""
    row = int(rows.row_of[wrong[0]])
    return f"turns of probe {row} are not where the template writes them (token {int(wrong[0] - rows.starts[row])})"


def _moves_system(layout: Layout, rendered: Sequence[RenderedTokens | MessageError]) -> bool:
    """Whether a system message changes the ids of the last user turn and not those of the first one.

    Args:
        rendered: the same two turns without and with a system message before them.
    """
    contents = []
    for one in rendered:
        if isinstance(one, MessageError):
            return False
        ids = np.array(one.token_ids)
        turns = layout.turns(rows_of([ids.tolist()]))
        users = turns.select(turns.role == ROLES.index("user"))
        contents.append([ids[low:high].tolist() for low, high in zip(users.body, users.end, strict=True)])
    without, with_system = contents
    return len(without) == len(with_system) == 2 and without[0] == with_system[0] and without[1] != with_system[1]


def _sampled(shown: Sequence[RenderedTokens]) -> Bools:
    """True on tokens of the concatenated probes that the assistant samples."""
    flags = [
        is_sampled and owner >= 0 and rendered.message_roles[owner] == "assistant"
        for rendered in shown
        for is_sampled, owner in zip(rendered.sampled_mask, rendered.message_indices, strict=True)
    ]
    return np.array(flags, dtype=np.bool_)
