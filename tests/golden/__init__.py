"""Golden texts: what every family writes, piece by piece, in files that a person can read.

`FAMILY/CASE.txt` holds the rendering of one conversation of `conversations.py`; the margin says what each piece is and
which message it belongs to::

    TEMPLATE   0 | <|im_start|>user\\n
    CONTEXT    0 | How deep is it?
    TEMPLATE   0 | <|im_end|>\\n
    TEMPLATE   1 | <|im_start|>assistant\\n
    REPLY      1 | Twelve feet.
    STOP       1 | <|im_end|>
    TEMPLATE   1 | \\n

A piece with several lines goes on below an empty margin. `\\n` ends a line, `\\x20` is a blank at its end, `\\\\` a
backslash. Adjacent pieces of one kind and message are one. Below are the texts that the format has no place for; of a
conversation that a family refuses the reason is shown. Of training samples the margin says what is trained.

`python -m tests.golden update FAMILY` writes the files of a family, `python -m tests.golden update` those of all.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.renderers.base import build_training_samples
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.kinds import CONTENT, SAMPLED, Kind, Piece
from niels_gpt.renderers.template.renderer import TemplateRenderer, load_template
from tests.golden.conversations import CHATS, TOOLS, Chat, chats_of
from tests.renderers.tiny_families import folder_of, renderer_of

FOLDER = Path(__file__).parent


def texts_of(family: str) -> dict[str, str]:
    """File name -> golden text, of each conversation of a family."""
    renderer = renderer_of(family)
    return {file_name(name): golden_text(family, chat) for name, chat in chats_of(type(renderer)).items()}


def file_name(case: str) -> str:
    """The file of a case: letters, digits and what file systems take; `a\\n` becomes `a_n`."""
    return re.sub(r"[^\w.=+-]+", "_", case) + ".txt"


def golden_text(family: str, chat: Chat) -> str:
    """The rendering as lines, below one that says what was rendered."""
    found, usual = _rendered(family, chat), replace(chat, options={}, produced=False)
    if chat != usual and found == _rendered(family, usual):
        found = ["the same as by default"]
    return "\n".join([_title(chat), "", *found, ""])


def _rendered(family: str, chat: Chat) -> list[str]:
    renderer, tools = renderer_of(family, *chat.options.items()), TOOLS if chat.tools else None
    if chat.produced:
        renderer = renderer.as_produced()
    try:
        if chat.samples:
            return [*_samples(renderer, chat)]
        out = renderer.emit(chat.messages, tools=tools, add_generation_prompt=chat.prompt)
    except MessageError as error:
        return [f"refused: {error.reason}"]
    return [*lines(out.pieces()), *(f"unwritten: {one}" for one in out.notes.unwritten)]


def _samples(renderer: Family, chat: Chat) -> Iterator[str]:
    for number, (ids, mask) in enumerate(build_training_samples(renderer, chat.messages), 1):
        yield f"sample {number}"
        for trained, run in groupby(zip(ids, mask, strict=True), itemgetter(1)):
            yield from block("trained" if trained else "", renderer.encoder.decode([token for token, _ in run]))


def _title(chat: Chat) -> str:
    roles = ", ".join(
        f"{index} {message['role']}{' calls' if message.get('tool_calls') else ''}"
        for index, message in enumerate(chat.messages)
    )
    options = "".join(f"; {name}={value!r}" for name, value in chat.options.items())
    extras = (
        "; training samples" * chat.samples
        + "; tools" * chat.tools
        + "; generation prompt" * chat.prompt
        + "; as produced" * chat.produced
    )
    return f"# {roles}{extras}{options}"


def lines(pieces: Iterable[Piece]) -> Iterator[str]:
    """The lines of a rendering."""
    for text, message, kind in _joined(pieces):
        yield from block(f"{kind.name:9} {message if message >= 0 else '-':>2}", text)


def beside_template(family: str, template: Path, variables: dict[str, Any]) -> str:
    """Where a family and a chat template write the same conversation otherwise, as a diff; "" for nothing.

    The margin has what both know of a piece: who writes it, and not its kind. A conversation that one of them refuses
    or that the template does not attribute is named.
    """
    ours = renderer_of(family)
    theirs = TemplateRenderer(
        folder_of(family),
        template=load_template(template),
        clock=lambda form: "2026-01-31",
        stops=ours.stops,
        **variables,
    )
    found: list[str] = []
    for name, chat in CHATS.items():
        if chat.samples or chat.produced:
            continue
        texts: list[list[str]] = []
        for renderer in (ours, theirs):
            try:
                out = renderer.emit(
                    chat.messages, tools=TOOLS if chat.tools else None, add_generation_prompt=chat.prompt
                )
                kinds = (piece._replace(kind=_WRITTEN_BY[piece.kind]) for piece in out.pieces())
                texts.append([*lines(kinds), *([out.attribution] if out.attribution != "full" else [])])
            except MessageError as error:
                texts.append([f"refused: {error}"])
        found += difflib.unified_diff(texts[1], texts[0], f"{name}, template", f"{name}, {family}", n=2, lineterm="")
    return "\n".join(found)


# The model's own text as a reply, the caller's as context, all else as the template's.
_WRITTEN_BY = {
    kind: Kind.REPLY if kind & SAMPLED else Kind.CONTEXT if kind & CONTENT else Kind.TEMPLATE for kind in Kind
}


def block(margin: str, text: str) -> list[str]:
    """The lines of a text beside a margin; none of an empty text."""
    parts = re.findall(r"[^\n]*\n|[^\n]+", text)
    return [f"{'' if at else margin:12} | {_escaped(line)}" for at, line in enumerate(parts)]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The blocks of a file: margin and text."""
    margin, inside = "", ""
    for line in text.split("\n"):
        begins, _, shown = line.partition(" | ")
        if begins.strip():
            if margin:
                yield margin, inside
            margin, inside = " ".join(begins.split()), ""
        inside += re.sub(r"\\(\\|n|x20)", lambda found: _SPELLED[found[1]], shown)
    if margin:
        yield margin, inside


_SPELLED = {"\\": "\\", "n": "\n", "x20": " "}


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1][1:] == piece[1:]:
            joined[-1] = joined[-1]._replace(text=joined[-1].text + piece.text)
        elif piece.text:
            joined.append(piece)
    return joined


def _escaped(line: str) -> str:
    escaped = line.replace("\\", "\\\\").replace("\n", "\\n")
    return re.sub(r" $", r"\\x20", escaped)


def update(family: str) -> None:
    """Write the files of a family, and remove those of conversations that are no more."""
    folder, texts = FOLDER / family, texts_of(family)
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.txt"):
        if file.name not in texts:
            file.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def difference(family: str) -> str:
    """What is rendered otherwise than the files say, as a diff; "" for nothing."""
    folder, new = FOLDER / family, texts_of(family)
    old = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.txt")}
    found: list[str] = []
    for name in sorted({*old, *new}):
        before, after = (texts.get(name, "").splitlines() for texts in (old, new))
        found += difflib.unified_diff(before, after, f"{family}/{name}", "rendered", n=2, lineterm="")
    return "\n".join(found)
