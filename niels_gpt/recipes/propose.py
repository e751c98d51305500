"""`niels-gpt init`: proposes a commented recipe for given data.

It reads the first rows of every file and writes into comments what it found: formats, roles, tools, reasoning, the
renderer and why it was chosen, and how long conversations are.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Final

import numpy as np

from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.errors import InputError, MessageError, UsageError, shortened
from niels_gpt.messages import Conversation, reasoning_of
from niels_gpt.recipes.schema import NAME
from niels_gpt.renderers.registry import automatic_renderer, create_renderer
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.chat_files import ChatFile, chat_files
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.tokenizer.load import is_sentencepiece

SAMPLED: Final = 200  # rows of each file
LENGTHS: Final = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass
class FoundFile:
    """Counts of the first rows of a file."""

    file: ChatFile
    rows: int = 0
    unusable: Counter[str] = field(default_factory=Counter)
    example: str = ""  # the detail of the first unusable row
    roles: Counter[str] = field(default_factory=Counter)
    with_tools: int = 0
    with_reasoning: int = 0
    conversations: list[Conversation] = field(default_factory=list)


def propose(inputs: Sequence[str], tokenizer: str, *, base: Path) -> str:
    """The text of a recipe for some files and a tokenizer.

    Args:
        inputs: files, directories' patterns or URLs, as `chat_files` takes them.
        tokenizer: a directory or hub name, or a `spm.model`.
        base: the directory that the recipe will be in; local paths are written relative to it.

    Raises:
        InputError: a file is missing or empty. UsageError: no file has a conversation that can be read.
        TokenizerError: the tokenizer cannot be used.
    """
    source = chat_files(inputs)
    files = [source] if isinstance(source, ChatFile) else list(source.files)
    found = [_look(file) for file in files]
    if not any(each.conversations for each in found):
        first = next((each.example for each in found if each.example), "the files hold no rows")
        raise UsageError(f"no row of {', '.join(str(each.file.path) for each in found)} is a conversation: {first}")
    # As the build decides: a SentencePiece model means sentinels, for which it refuses `[loss]`.
    path = Path(tokenizer).expanduser()
    if path.exists() and is_sentencepiece(path):
        return _written(found, tokenizer, None, [], base)
    return _written(found, tokenizer, *_rendered(found, tokenizer), base)


def _look(file: ChatFile) -> FoundFile:
    found = FoundFile(file)
    # The first rows, not a sample of all: reading them takes a moment, however large the file is.
    for row in islice(file.iterate(), SAMPLED):
        found.rows += 1
        if isinstance(row, Rejected):
            found.unusable[row.reason] += 1
            found.example = found.example or row.detail
            continue
        found.conversations.append(row)
        found.roles.update(message["role"] for message in row.messages)
        found.with_tools += bool(row.tools)
        found.with_reasoning += any(reasoning_of(message) for message in row.messages)
    return found


def _rendered(found: Sequence[FoundFile], tokenizer: str) -> tuple[str, list[int]]:
    """The renderer with the reason for it, and the length of each conversation in tokens."""
    automatic = automatic_renderer(tokenizer)
    renderer, lengths = create_renderer(tokenizer), list[int]()
    for chat in (chat for each in found for chat in each.conversations):
        try:
            lengths.append(len(renderer.render(chat.messages, tools=chat.tools).token_ids))
        except MessageError:  # such rows do not prevent a proposal; the dry run counts them with their reasons
            continue
    return f"{automatic.renderer}: {automatic.reason}", lengths


def _written(found: Sequence[FoundFile], tokenizer: str, renderer: str | None, lengths: list[int], base: Path) -> str:
    """The text of the recipe.

    Args:
        renderer: the comment on the renderer; `None` if conversations are written with sentinels.
        lengths: of the conversations, in tokens; empty if they were not measured.
    """
    off = "" if renderer else "# "  # before [loss], which is only for renderers
    chosen = shortened(renderer or "our own sentinels, because the tokenizer is a SentencePiece model")
    length, comment = _length(lengths)
    names = _names(found)
    # Keys of TOML need quotation marks around a dot, which would begin a table.
    keys = [name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name) for name in names]
    head = [
        "# A recipe: everything from the sources to the batches. Written by `niels-gpt init`; edit it as you like.",
        "#",
        "#   niels-gpt build RECIPE --dry-run     checks it and estimates rows, tokens, disk and time",
        "#   niels-gpt build RECIPE               builds it, and writes RECIPE's lock beside it",
        "#",
        "# Paths are relative to this file.",
        "",
        f"out = {_text('datasets/' + names[0])}",
        f"seed = {DEFAULT_SEED:<33} # of the split and of the order",
        "",
        "[tokenizer]",
        f"path = {_text(_relative(tokenizer, base))}",
        "",
        "[renderer]",
        f'name = "auto"                            # {chosen}',
        "# options = { enable_thinking = false }    # `niels-gpt renderers NAME` lists the options",
        "",
        f"{off}[loss]",
        f'{off}on = "all_assistant_turns"               # or last_assistant_turn, last_message, ...',
        "",
        "[rows]",
        "max_bad_rows = 0                         # unusable rows to leave out before the build gives up",
        'on_unsupported = "drop"                  # fields that the format has no place for: drop, or error',
        "",
        "[split]",
        f"val_frac = {DEFAULT_VAL_FRAC}",
        "",
        "[sequence]",
        f"length = {length:<31} # {comment}",
        "packing = true                           # several whole conversations in a row",
        'too_long = "skip"                        # or head, tail, drop_partial_turn, error',
        "",
    ]
    sources = [line for name, each in zip(names, found, strict=True) for line in _source(name, each, base)]
    mixture = [
        "# [mixture]                              # without it every row comes once an epoch",
        '# by = "tokens"                          # or trained_tokens, rows',
        "# weights = { " + ", ".join(f"{key} = 1" for key in keys) + " }",
        "",
        "# [[exports]]                            # `niels-gpt formats` lists them",
        '# to = "trl"',
    ]
    return "\n".join([*head, *sources, *mixture]) + "\n"


def _source(name: str, found: FoundFile, base: Path) -> list[str]:
    roles = ", ".join(f"{role} {count:,}" for role, count in found.roles.most_common())
    lines = ["[[sources]]", f"name = {_text(name)}", f"files = [{_text(_relative(str(found.file.path), base))}]"]
    looked = f"the first {found.rows:,} rows" if found.rows == SAMPLED else f"its {found.rows:,} rows"
    lines.append(
        _comment(
            f"{looked}: messages of {roles or 'none'}; {found.with_tools:,} with tools, "
            f"{found.with_reasoning:,} with reasoning"
        )
    )
    if found.unusable:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in found.unusable.most_common())
        lines += [_comment(f"unusable: {reasons}"), _comment(f"the first: {' '.join(found.example.split())[:160]}")]
    lines += [f"format = {_text(found.file.detected_dialect() or 'messages')}", ""]
    return lines


def _names(found: Sequence[FoundFile]) -> list[str]:
    """A name for each file, for its directory: of letters, digits and `-_.`, no name twice."""
    names: list[str] = []
    for each in found:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", each.file.name).strip("-._")[:48] or "source"
        # a, a-2, a-3, ...: one of as many names as there are files is free.
        numbered = (f"{name}-{number}" for number in count(2))
        names.append(next(one for one in (name, *islice(numbered, len(names))) if one not in names))
        assert NAME.fullmatch(names[-1])
    return names


def _length(lengths: Sequence[int]) -> tuple[int, str]:
    """The smallest of `LENGTHS` that 95 of 100 conversations fit into, and a comment with the measured lengths."""
    if not lengths:
        return 2048, "inputs of a row; conversations were not measured"
    median, high, longest = (int(value) for value in np.percentile(lengths, (50, 95, 100)))
    # Not the longest: one conversation of 100,000 tokens would make all rows so long. `too_long` decides on the rest.
    length = next((each for each in LENGTHS if each >= high), LENGTHS[-1])
    return length, f"tokens of {len(lengths):,} conversations: median {median:,}, 95 % {high:,}, longest {longest:,}"


def _relative(path: str, base: Path) -> str:
    """A path as the recipe writes it: relative if it is below `base`, else absolute; URLs and hub names unchanged."""
    if "://" in path or not Path(path).expanduser().exists():
        return path
    try:
        return str(Path(path).expanduser().resolve().relative_to(base.resolve()))
    except ValueError:  # elsewhere
        return str(Path(path).expanduser().resolve())


def _comment(text: str) -> str:
    """A comment. Roles and errors quote the data, in which a line end would begin a line of the recipe."""
    return f"# {shortened(text)}"


def _text(value: str) -> str:
    """A string of TOML.

    Raises:
        InputError: it is a path that is not UTF-8, as TOML has to be.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{value!r}: not UTF-8, and a recipe can name no such file; rename it") from error
    # JSON's strings are strings of TOML, but for DEL, which JSON does not escape and TOML refuses.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
