"""`niels-gpt show` and `niels-gpt render`: one row in the terminal, token by token.

`show` opens whatever a path holds::

    meta.json, train/          a cache or episodes        the row as a training step sees it
    .jsonl .json .parquet ...  conversations, with --tokenizer      rendered, as `render` shows them
                               conversations, without               their messages as text
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from niels_gpt import ranges
from niels_gpt.cli.options import (
    DatasetTokenizer,
    IsolatingFlags,
    Json,
    LossFlags,
    OneSplit,
    RendererFlags,
    RowNumber,
    Tokenizer,
    TokenTable,
    grouped,
)
from niels_gpt.cli.paths import CHAT_SUFFIXES, EXISTING
from niels_gpt.cli.terminal import note, out, print_json, print_line
from niels_gpt.errors import UsageError
from niels_gpt.options import Argument, Option
from niels_gpt.store.manifest import no_such_directory
from niels_gpt.store.remote import AnyFile, RemoteFile, as_file

if TYPE_CHECKING:
    from niels_gpt.display.example import Example


@grouped
def show(
    source: Annotated[
        str,
        Argument(
            "A cache (the directory that holds meta.json), episodes (that holds train/), or a file of conversations or "
            "its URL.",
            "PATH",
        ),
    ],
    renderer: Annotated[IsolatingFlags, "Rendering"],
    loss: Annotated[LossFlags, "Rendering"],
    number: RowNumber = 0,
    split: OneSplit = "train",
    length: Annotated[
        int | None,
        Option(
            "Inputs of a row.  [default: the whole example; 64 of a stream of text, 1024 of packed episodes]",
            "TOKENS",
            limits=ranges.LENGTH,
            flag="--sequence-length",
        ),
    ] = None,
    packed: Annotated[bool, Option("Episodes: a row of several, as packing makes it.")] = False,
    tokenizer: DatasetTokenizer = None,
    table: TokenTable = True,
    as_json: Json = False,
) -> None:
    """Print an example as a training step sees it, token by token.

    Trained, context, scaffold and padding are coloured.

    PATH is a cache, episodes or a file of conversations. A row of a cache or of episodes was rendered when it was
    built; a conversation is rendered now, with --tokenizer and the options under "Rendering".

    Example: niels-gpt show cache/sft/chats 17 --sequence-length 128

    Example: niels-gpt show episodes/chats 3 --packed --sequence-length 256

    Example: niels-gpt show chats.jsonl 17 --tokenizer ~/models/Qwen3-8B
    """
    path = as_file(source)
    rendering = renderer.named or loss.loss_on is not None
    # A URL is a file of conversations: datasets in a store are fetched first.
    # Any other file is treated as a misspelt dataset: that error lists everything that can be shown.
    if isinstance(path, RemoteFile) or (path.suffix in CHAT_SUFFIXES and not path.is_dir()):
        if packed or length is not None:
            raise UsageError(f"{path}: a file of conversations; --packed and --sequence-length are for datasets")
        if tokenizer is None and rendering:
            raise UsageError(f"{path}: rendering needs a tokenizer; pass --tokenizer")
        if tokenizer is None:
            _print_messages(path, number, as_json)
            return
        # Only now, so that wrong options are reported before a wrong path.
        EXISTING(source)
        view = _rendered(path, number, tokenizer, renderer, loss, quiet=as_json)
    elif rendering:
        raise UsageError(f"{path}: its rows were rendered when it was built; rendering options are for conversations")
    elif not path.exists():
        raise no_such_directory(path, "a cache, episodes or a file of conversations")
    else:
        from niels_gpt.explorer.example_view import view_example

        place = None if tokenizer is None else Path(tokenizer)
        view = view_example(path, number, split=split, T=length, packed=packed, tokenizer=place)
    _print(view, as_json=as_json, table=table)


@grouped
def render(
    file: Annotated[str, Argument("Conversations: .jsonl, .json, .parquet; also .gz and .zst; or a URL.", "FILE")],
    tokenizer: Tokenizer,
    renderer: Annotated[IsolatingFlags, "Rendering"],
    loss: Annotated[LossFlags, "Rendering"],
    number: RowNumber = 0,
    table: TokenTable = True,
    as_json: Json = False,
) -> None:
    """Print a conversation in a model's own format, token by token.

    Trained, sampled, context and scaffold are coloured.

    Without --renderer it is a family where the tokenizer's name, config.json and control tokens prove one, else its
    chat template; a line on stderr says which.

    Example: niels-gpt render chats.jsonl 17 --tokenizer ~/models/Qwen3-8B

    Without Qwen3's reasoning: --renderer qwen3 --renderer-option enable_thinking=false
    """
    EXISTING(file)  # after the options
    _print(_rendered(file, number, tokenizer, renderer, loss, quiet=as_json), as_json=as_json, table=table)


def _rendered(
    file: str | AnyFile, number: int, tokenizer: str, renderer: RendererFlags, loss: LossFlags, *, quiet: bool
) -> Example:
    """A conversation with its tokens. All else is checked before the tokenizer is loaded, which takes seconds."""
    from niels_gpt.explorer.example_view import view_rendered
    from niels_gpt.sources.chat_files import nth_conversation

    loss_on, chosen = loss.loss_on, renderer.options()
    conversation = nth_conversation(file, number)
    opened = chosen.open(tokenizer)
    for line in [] if quiet else chosen.automatic(tokenizer):
        note(line)
    return view_rendered(opened, conversation, loss_on)


def _print(view: Example, *, as_json: bool, table: bool) -> None:
    from niels_gpt.display.table import example_text
    from niels_gpt.display.terminal import in_colour

    if as_json:
        print(view.to_json())
    else:
        print(example_text(view, table=table, colour=in_colour()), end="")


def _print_messages(file: AnyFile, number: int, as_json: bool) -> None:
    """Print a conversation's messages as text; used without --tokenizer."""
    from niels_gpt.display.rows import printable
    from niels_gpt.sources.chat_files import nth_conversation

    found = nth_conversation(file, number)
    if as_json:
        print_json({"where": found.where, "messages": found.messages, "tools": found.tools})
        return
    console = out()
    for index, message in enumerate(found.messages):
        console.print(Text(f"── {index} {message['role']} ──", style="bold"))
        for name, value in message.items():
            if name != "role" and value not in (None, ""):
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                label = "" if name == "content" else f"{name}: "
                safe = "".join(c if c == "\n" else printable(c) for c in text)  # data cannot steer the terminal
                console.print(Text(label + safe), soft_wrap=True)
    print_line("Its tokens: add --tokenizer with the directory or hub name of a tokenizer", "dim")
