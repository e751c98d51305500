"""Which message every character of a rendered template belongs to (DESIGN 2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from niels_gpt.messages import Message
from niels_gpt.renderers.jinja import Chunk
from niels_gpt.renderers.traced import LABEL, LOST, NOWHERE, runs_of
from niels_gpt.renderers.turns import Controls, Run

QUOTED = -2  # an origin: data of another message than the turn's


def owned(chunks: list[Chunk], roles: Sequence[str]) -> list[Run]:
    """Every run with its message.

    Inside a loop over messages scaffold belongs to the message of that turn. Outside, a stretch that carries the text
    of a message belongs to it (a system block written before the loop); a stretch without any belongs to none.
    What an assistant said, written into another's turn (the name of the function that a result answers), is quoted:
    it belongs to that turn, and is nobody's body.
    """
    runs: list[Run] = []
    outside: list[Run] = []
    for chunk in chunks:
        if type(chunk.text) is str:  # all of it is the template's
            made = [Run(chunk.text, chunk.owner, NOWHERE)] if chunk.text else []
        else:
            made = [_run(text, origin, chunk.owner, roles) for text, origin in _split(chunk.text)]
        if chunk.owner == NOWHERE:
            outside += made
            continue
        runs += _adopted(outside)
        runs += made
        outside = []
    return runs + _adopted(outside)


def _run(text: str, origin: int, owner: int, roles: Sequence[str]) -> Run:
    if origin < 0:
        return Run(text, owner, origin)
    if owner not in (NOWHERE, origin) and roles[origin] == "assistant" != roles[owner]:
        return Run(text, owner, QUOTED)
    return Run(text, origin, origin)


def _split(text: str) -> Iterator[tuple[str, int]]:
    """The stretches of one origin; neighbouring runs are one."""
    start = stop = 0
    before = NOWHERE
    for length, origin in runs_of(text):
        if length and origin != before:
            if stop > start:
                yield str.__getitem__(text, slice(start, stop)), before
            start, before = stop, origin
        stop += length
    if stop > start:
        yield str.__getitem__(text, slice(start, stop)), before


def _adopted(outside: list[Run]) -> list[Run]:
    """Scaffold outside of loops goes to the message before it in the stretch, else to the one behind it."""
    origins = [run.origin for run in outside if run.origin >= 0]
    if not origins:
        return outside
    owner, adopted = origins[0], []
    for run in outside:
        owner = run.origin if run.origin >= 0 else owner
        adopted.append(Run(run.text, owner, run.origin))
    return adopted


def turns(runs: list[Run]) -> list[tuple[int, list[Run]]]:
    """Neighbouring runs of one message."""
    turns: list[tuple[int, list[Run]]] = []
    for run in runs:
        if not turns or turns[-1][0] != run.owner:
            turns.append((run.owner, []))
        turns[-1][1].append(run)
    return turns


def invented_turn(turn: Sequence[Run], controls: Controls) -> int:
    """How many runs of the first message's turn are a turn before it that the template made up (a default system).

    Such a turn has its own stop, in front of the first character of the message's data; where that has none, in front
    of the message's own stop. Or what opened it opens the message's own turn again (gpt-oss: system, then developer).
    """
    leading = 0
    while leading < len(turn) and turn[leading].origin < 0:
        leading += 1
    stops = [at + 1 for at in range(leading) if controls.last_stop(turn[at].text)]
    opener = controls.first(turn[0].text) if turn else ""
    again = [at for at in range(1, leading) if opener and turn[at].text.startswith(opener)]
    return max([*(stops[:-1] if leading == len(turn) else stops), *again[-1:]], default=0)


def disowned(runs: list[Run], start: int) -> list[Run]:
    """The same text, of which nothing behind character `start` belongs to a message."""
    made, at = [], 0
    for run in runs:
        cut = max(0, min(len(run.text), start - at))
        made += [Run(run.text[:cut], run.owner, run.origin), run_of_none(run._replace(text=run.text[cut:]))]
        at += len(run.text)
    return [run for run in made if run.text]


def run_of_none(run: Run) -> Run:
    """The same text as no message's."""
    return Run(run.text, NOWHERE, LABEL if run.origin >= 0 else run.origin)


def untraced(messages: Sequence[Message], runs: list[Run]) -> str:
    """What is in the output without its origin being known; empty if there is nothing."""
    lost = [run.text for run in runs if run.origin == LOST and run.text.strip()]
    if not lost:
        return ""
    for index, message in enumerate(messages):
        if any(text and text in run for text in _texts(message["content"]) for run in lost):
            return f"the content of message {index} lost its origin in the template"
    return f"the origin of {_shown(lost[0])} was lost in the template"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _texts(content: str | list[dict[str, Any]]) -> list[str]:
    """The texts of a content, in parts or not."""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    return [part.strip() for part in parts if isinstance(part, str)]
