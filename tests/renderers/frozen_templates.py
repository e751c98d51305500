"""What every template of the assets makes of many conversations, as one file, and what has changed since.

::

    python -m tests.renderers.frozen_templates make              write frozen_templates.xz
    python -m tests.renderers.frozen_templates compare           print what differs now; exit 1 if something does

A renderer here has a key: `templates/x` is a template over the tiny tokenizer of `every_template.py`,
`templates/x+stop` the same with `final_stop`, `qwen3-8b+own` a model's folder with its own tokenizer. Of a rendering
are kept: a short hash of its text, its characters in runs of equal facts, the control tokens that stay ordinary text,
and its attribution; or the error.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import lzma
import multiprocessing
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from niels_gpt.errors import MessageError, NielsError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.tokenizer.load import open_encoder
from tests.assets import ASSETS, FOLDERS
from tests.renderers.every_template import SOURCES, VARIABLES, encoder, renderer_of, source_of
from tests.renderers.frozen_chats import Chat, other_chats, probe_chats

FILE = Path(__file__).with_suffix(".xz")
ACCEPTED = Path(__file__).with_name("frozen_differences.toml")
OWN, WITH_STOP = "+own", "+stop"
ERROR = "error: "
STOPLESS = re.compile("without its stop|no stop token follows")
# A run's facts as one letter: whether it is sampled, whether it is content.
LETTERS = {(False, False): "s", (False, True): "c", (True, True): "m", (True, False): "o"}
FACTS_OF = {letter: facts for facts, letter in LETTERS.items()}
# An edge is white space, for owners all before the first content too, for content the quotes around a text in JSON.
# Differences that are shown and never counted: of a rendering that is partial before and after, nothing is promised.
INFORMATION = ("partial: facts", "partial: reason")
CLASSES = (
    *("text", "error", "full -> partial", "partial -> full", "owner", "owner at the edge", "sampled", "content"),
    *("content at the edge", "control", "conversation", *INFORMATION),
)


@dataclass(frozen=True)
class Rendering:
    """What is kept of a rendering.

    Attributes:
        text: a hash of the text; empty for an error.
        runs: `20s-1 5c0 ...`: 20 characters of no message and no content, then 5 of message 0's content.
        plain: numbers of the control tokens' spellings in the text that stay ordinary text: `2,5`.
        verdict: the attribution, or the error.
    """

    text: str
    runs: str
    plain: str
    verdict: str


Table = dict[str, list[Rendering]]  # key -> the renderings of all chats


# ---- rendering


def renderer_for(key: str) -> TemplateRenderer:
    """The renderer of a key; the stop that `+stop` adds is the tokenizer's eos."""
    name = key.removesuffix(WITH_STOP)
    if name.endswith(OWN):
        folder = ASSETS / name.removesuffix(OWN)
        eos = open_encoder(folder).special_tokens["eos_token"] if name != key else ""
        return TemplateRenderer(folder, clock=lambda form: "2026-01-01", final_stop=eos)
    if name == key:
        return renderer_of(key)
    return TemplateRenderer(
        encoder(),
        template=source_of(name),
        clock=lambda form: "2026-01-01",
        final_stop=VARIABLES["eos_token"],
        **VARIABLES,
    )


def rendered(renderer: TemplateRenderer, chat: Chat) -> tuple[Rendering, str]:
    """What is kept of a rendering, and its text."""
    try:
        out = renderer.emit(chat.messages, tools=chat.tools, add_generation_prompt=chat.prompt)
    except NielsError as error:
        reason = f".{error.reason}" if isinstance(error, MessageError) else ""
        return Rendering("", "", "", f"{ERROR}{type(error).__name__}{reason}"), ""
    pieces = [piece for piece in out.pieces() if piece.text]
    text = "".join(piece.text for piece in pieces)
    runs: list[list[Any]] = []
    for piece in pieces:
        facts = f"{LETTERS[piece.sampled, piece.content]}{piece.msg}"
        if runs and runs[-1][1] == facts:
            runs[-1][0] += len(piece.text)
        else:
            runs.append([len(piece.text), facts])
    recognised = "".join(("1" if piece.scaffold else "0") * len(piece.text) for piece in pieces)
    places = renderer.controls.places(text)
    plain = [str(number) for number, (start, stop) in enumerate(places) if "0" in recognised[start:stop]]
    short = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    kept = Rendering(short, " ".join(f"{length}{facts}" for length, facts in runs), ",".join(plain), out.attribution)
    return kept, text


def chats_of(kind: str) -> list[Chat]:
    """The conversations: `probes`, or `all`."""
    return [*probe_chats(), *(other_chats() if kind == "all" else ())]


def keys() -> list[str]:
    """All renderers but those with `final_stop`, which `make` adds where a template writes no stop."""
    return [*SOURCES, *(folder.name + OWN for folder in FOLDERS)]


def _freeze(key: str, chats: Sequence[Chat]) -> Table:
    """The renderings by one template, and those with `final_stop` where its answers end without a stop."""
    try:
        renderer = renderer_for(key)
    except NielsError as error:
        return {key: [Rendering("", "", "", f"{ERROR}{type(error).__name__} of the renderer")] * len(chats)}
    found = {key: [rendered(renderer, chat)[0] for chat in chats]}
    if any(STOPLESS.search(one.verdict) for one in found[key]):
        renderer = renderer_for(key + WITH_STOP)
        found[key + WITH_STOP] = [rendered(renderer, chat)[0] for chat in chats]
    return found


# ---- the file


def pack(table: Table, chats: Sequence[Chat]) -> bytes:
    """The table as bytes: columns, runs and verdicts once each, compressed."""
    runs: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    columns = {
        key: {
            "text": "".join(one.text or "------" for one in kept),
            "runs": [runs.setdefault(one.runs, len(runs)) for one in kept],
            "plain": {str(number): one.plain for number, one in enumerate(kept) if one.plain},
            "verdict": [verdicts.setdefault(one.verdict, len(verdicts)) for one in kept],
        }
        for key, kept in sorted(table.items())
    }
    document = {
        "chats": {chat.name: chat.fingerprint for chat in chats},
        "runs": list(runs),
        "verdicts": list(verdicts),
        "templates": columns,
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)


def unpack(data: bytes) -> tuple[Table, dict[str, str]]:
    """The table, and the fingerprints of its conversations by name."""
    document = json.loads(lzma.decompress(data))
    runs, verdicts = document["runs"], document["verdicts"]
    table = {
        key: [
            Rendering(
                columns["text"][6 * number : 6 * number + 6].strip("-"),
                runs[columns["runs"][number]],
                columns["plain"].get(str(number), ""),
                verdicts[columns["verdict"][number]],
            )
            for number in range(len(columns["runs"]))
        ]
        for key, columns in document["templates"].items()
    }
    return table, document["chats"]


# ---- comparing


@dataclass(frozen=True)
class Difference:
    """One rendering that differs in one way; `shown` is several lines for a reader."""

    key: str
    chat: str
    kind: str
    shown: str


def differences(old: Rendering, new: Rendering, text: str) -> Iterator[tuple[str, str]]:
    """`(class, lines that show it)` of two renderings; `text` is that of the new one."""
    if (old.verdict.startswith(ERROR) or new.verdict.startswith(ERROR)) and old.verdict != new.verdict:
        yield "error", f"old  {old.verdict}\nnew  {new.verdict}"
        return
    if old.text != new.text:
        yield "text", f"new  {text[-120:]!r}"
        return
    full = (old.verdict == "full", new.verdict == "full")
    if full == (False, False):
        if old.verdict != new.verdict:
            yield "partial: reason", f"old  {old.verdict}\nnew  {new.verdict}"
        if (old.runs, old.plain) != (new.runs, new.plain):
            yield "partial: facts", _shown_runs(old.runs, new.runs, text, None)
        return
    if full != (True, True):
        yield (
            "full -> partial" if full[0] else "partial -> full",
            f"old  {old.verdict}\nnew  {new.verdict}\n" + _shown_runs(old.runs, new.runs, text, None),
        )
        return
    if old.plain != new.plain:
        yield "control", f"spellings that stay text: old {old.plain or 'none'}, new {new.plain or 'none'}"
    if old.runs == new.runs:
        return
    before, after = facts_of(old.runs), facts_of(new.runs)
    if len(before) != len(after):  # the same hash of another text
        yield "text", f"{len(before)} characters, now {len(after)}"
        return
    first = next((at for at, (_, sampled, content) in enumerate(after) if content or sampled), len(after))
    seen = set()
    for at, (one, other) in enumerate(zip(before, after, strict=True)):
        names = (
            "owner at the edge" if text[at].isspace() or at < first else "owner",
            "sampled",
            "content at the edge" if text[at].isspace() or text[at] in "\"'" else "content",
        )
        for name, is_other in zip(names, (a != b for a, b in zip(one, other, strict=True)), strict=True):
            if is_other and name not in seen:
                seen.add(name)
                yield name, _shown_runs(old.runs, new.runs, text, at)


def facts_of(runs: str) -> list[tuple[int, bool, bool]]:
    """`(owner, sampled, content)` of each character."""
    found: list[tuple[int, bool, bool]] = []
    for run in runs.split():
        letter = next(character for character in run if character.isalpha())
        length, _, owner = run.partition(letter)
        found += [(int(owner), *FACTS_OF[letter])] * int(length)
    return found


def _shown_runs(old: str, new: str, text: str, at: int | None) -> str:
    """The runs of both renderings around a character, by default the first in which they differ."""
    if at is None:
        pairs = zip(facts_of(old), facts_of(new), strict=False)
        at = next((number for number, (a, b) in enumerate(pairs) if a != b), 0)
    lines = [f"at {at} of {text[max(0, at - 50) : at]!r} | {text[at : at + 50]!r}"]
    for name, runs in (("old", old), ("new", new)):
        start, around = 0, []
        for run in runs.split():
            letter = next(character for character in run if character.isalpha())
            length, _, owner = run.partition(letter)
            stop = start + int(length)
            if stop > at - 30 and start < at + 60:
                around.append(f"{letter}{owner} {text[start:stop][-40:]!r}")
            start = stop
        lines.append(f"{name}  " + "  ".join(around))
    return "\n".join(lines)


def _compare(item: tuple[str, list[Rendering]], chats: Sequence[Chat | None]) -> list[Difference]:
    """What differs by one template; a chat that is `None` has changed, and is left out."""
    key, frozen = item
    try:
        renderer = renderer_for(key)
    except NielsError as error:
        verdict = f"{ERROR}{type(error).__name__} of the renderer"
        return [
            Difference(key, "", "error", f"old  {old.verdict}\nnew  {verdict}")
            for old in frozen[:1]
            if old.verdict != verdict
        ]
    found = []
    for old, chat in zip(frozen, chats, strict=True):
        if chat is None:
            continue
        new, text = rendered(renderer, chat)
        if new != old:
            found += [Difference(key, chat.name, kind, shown) for kind, shown in differences(old, new, text)]
    return found


def accepted() -> list[dict[str, Any]]:
    """The accepted differences: patterns of `template` and `chat` (default all), a list of classes, and a `reason`."""
    if not ACCEPTED.is_file():
        return []
    found: list[dict[str, Any]] = tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("accepted", [])
    return found


def is_accepted(difference: Difference, table: Sequence[dict[str, Any]]) -> bool:
    """Whether an entry of the table names the difference."""
    return difference.kind in INFORMATION or any(
        fnmatch.fnmatchcase(difference.key, entry["template"])
        and difference.kind in entry["class"]
        and fnmatch.fnmatchcase(difference.chat, entry.get("chat", "*"))
        for entry in table
    )


def report(found: Sequence[Difference], every: bool) -> int:
    """Print a line for each template with counts, and the first difference of each class; the number not accepted."""
    table = accepted()
    counts: dict[str, Counter[str]] = {}
    open_ones: Counter[str] = Counter()
    first: dict[tuple[str, str], Difference] = {}
    for one in found:
        counts.setdefault(one.key, Counter())[one.kind] += 1
        if is_accepted(one, table) and not every:
            continue
        open_ones[one.kind] += not is_accepted(one, table)
        first.setdefault((one.key if every else "", one.kind), one)
    for key, kinds in sorted(counts.items()):
        print(f"{key:60} " + "  ".join(f"{kind}: {kinds[kind]}" for kind in CLASSES if kinds[kind]))
    for one in first.values():
        print(f"\n== {one.kind}: {one.key}, {one.chat!r}")
        print("   " + one.shown.replace("\n", "\n   "))
    print(
        "\nnot accepted: " + (", ".join(f"{kind} {open_ones[kind]}" for kind in CLASSES if open_ones[kind]) or "none")
    )
    return open_ones.total()


# ---- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("make", "compare"))
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--only", default="*", help="a pattern of keys: 'templates/*', '*+own', 'qwen3-8b*'")
    parser.add_argument("--chats", default="*", help="a pattern of names of conversations")
    parser.add_argument("--kind", choices=("probes", "all"), default="all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", action="store_true", help="the first difference of each class for every template")
    chosen = parser.parse_args(arguments)
    encoder()  # before the processes, so that they share it
    if chosen.command == "make":
        return _make(chosen)
    frozen, fingerprints = unpack(chosen.file.read_bytes())
    named = {chat.name: chat for chat in chats_of("all")}
    changed = [name for name, known in fingerprints.items() if name not in named or named[name].fingerprint != known]
    chats = [
        named[name] if name not in changed and fnmatch.fnmatchcase(name, chosen.chats) else None
        for name in fingerprints
    ]
    items = [item for item in frozen.items() if fnmatch.fnmatchcase(item[0], chosen.only)]
    found = [Difference("", name, "conversation", "it is not the frozen one; make the file again") for name in changed]
    with multiprocessing.Pool(chosen.jobs, maxtasksperchild=12) as pool:
        for some in pool.imap(partial(_compare, chats=chats), items):
            found += some
    print(f"{len(items)} renderers, {sum(chat is not None for chat in chats)} conversations")
    return 1 if report(found, chosen.every) else 0


def _make(chosen: argparse.Namespace) -> int:
    chats = chats_of(chosen.kind)
    chosen_keys = [key for key in keys() if fnmatch.fnmatchcase(key, chosen.only)]
    table: Table = {}
    with multiprocessing.Pool(chosen.jobs, maxtasksperchild=12) as pool:
        for some in pool.imap_unordered(partial(_freeze, chats=chats), chosen_keys):
            table |= some
            print(len(table), next(iter(some)), flush=True)
    data = pack(table, chats)
    chosen.file.write_bytes(data)
    print(f"{chosen.file}: {len(table)} renderers, {len(chats)} conversations, {len(data):,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
