"""Damaged and hostile tokenizer directories, for a process of its own: `python -m tests.tokenizer.hostile FIRST COUNT`.

Each seed takes a good directory, changes something in it, opens it, and encodes and decodes with what opened. Whatever
is raised must be one of our errors, say which file, and be one line; the process must stay small.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from niels_gpt.errors import NielsError
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.training import train_tokenizer
from tests.memory import peak
from tests.tokenizer import tiny

Place = list[Any]
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": tiny.END,
    "pad_token": {"content": tiny.END, "special": True},
    "add_bos_token": False,
    "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
}
GENERATION = {"eos_token_id": [1], "pad_token_id": 1}
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        7,
        1 << 31,
        1 << 63,
        1 << 200,
        1.5,
        float("nan"),
        "",
        "x",
        "\ud800",
        "\0",
        "é" * 3,
        "ab" * 50_000,
    ),
    *([], {}, [[]], [None], [{}], {"type": "Sequence"}, {"type": "Sequence", "normalizers": [None]}, {"type": 3}),
    *({"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 100_000}, {"String": ""}, {"Regex": "("}),
    *({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}, {"Regex": "(a*)*$"}, {"content": {"x": 1}}),
    *({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "Metaspace", "replacement": "▁"}),
    *({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},),
    *(
        {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeeeee"}] * 12,
        },
    ),
    *(
        {"id": 1 << 31, "content": "y", "special": True},
        {"id": 1 << 23, "content": "y"},
        {"id": 3, "content": "y" * 5000},
    ),
)
DEEP = ("[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900, '{"a": ' + "[" * 500 + "]" * 500 + "}")
RAW = (
    b"",
    b"\0" * 100,
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"null",
    b"[]",
    b"3",
    b'"x"',
    b"{" * 50,
    b'{"a": 1e999}',
    b"9" * 5000,
)
TEXTS = ["hello world\n", tiny.START, "naïve 🤖 \u2581 x", tiny.THINK, "e" * 50]


def places(value: Any, here: Place) -> Iterator[Place]:
    """The way to every value inside, of long tables a few only."""
    yield here
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = list(value)
    elif isinstance(value, list):
        inside = list(range(len(value)))
    for key in inside if len(inside) < 60 else [*inside[:3], *inside[-3:]]:
        yield from places(value[key], [*here, key])


def changed(value: Any, rng: random.Random) -> Any:
    """A copy with one to three values replaced, removed or put twice."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        here = rng.choice(list(places(value, [])))
        if not here:
            return rng.choice(ODD)
        held = value
        for key in here[:-1]:
            held = held[key]
        way = rng.randrange(5)
        if way == 0:
            del held[here[-1]]
        elif way == 1 and isinstance(held, list):
            held += held[:1] * rng.choice((1, 3))
        elif way == 2 and isinstance(held, dict):
            held[rng.choice(("type", "content", "vocab", "x"))] = rng.choice(ODD)
        else:
            held[here[-1]] = rng.choice(ODD)
    return value


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes cut off, changed, or put between."""
    at = rng.randrange(len(data) + 1)
    way = rng.randrange(4)
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + rng.choice((b"\0", b"\xff", b"\xed\xa0\x80", b'"', b"[" * 5000)) + data[at:]
    if way == 2:
        return rng.choice(RAW)
    at = min(at, len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def change_file(file: Path, rng: random.Random) -> None:
    """One file of a directory becomes another, or none."""
    data = file.read_bytes()
    way = rng.randrange(12)
    if way < 7 and file.suffix == ".json":
        file.write_text(json.dumps(changed(json.loads(data), rng)))
    elif way < 9:
        file.write_bytes(damaged(data, rng))
    elif way == 9 and file.suffix == ".json":
        file.write_text(rng.choice(DEEP))
    else:
        file.unlink()
        other: Callable[[], Any] = rng.choice(
            (
                file.mkdir,
                lambda: file.symlink_to("nothing"),
                lambda: file.symlink_to(file.name),
                lambda: os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 3 << 30),
                lambda: None,
            )
        )
        other()


def good(folder: Path) -> list[Path]:
    """Good directories of several kinds."""
    kinds = (tiny.byte_level(), tiny.byte_level(form="NFC"), tiny.metaspace(), tiny.spaced(), tiny.flagged(lstrip=True))
    made = []
    for number, kind in enumerate(kinds):
        made.append(tiny.save(kind, folder / str(number), **CONFIG))
        (made[-1] / "generation_config.json").write_text(json.dumps(GENERATION))
        (made[-1] / "config.json").write_text(json.dumps({"model_type": "x", "eos_token_id": 1}))
        (made[-1] / "chat_template.jinja").write_text("{{ messages[0].content }} é")
    train_tokenizer([chats_file(), notes_dir()], folder / "spm", vocab_size=1200)
    return [*made, folder / "spm"]


def use(folder: Path) -> None:
    """Open a tokenizer and do with it what commands do."""
    encoder = open_encoder(folder)
    scaffold = [text in encoder.control_ids for text in TEXTS]
    ids, _ = encoder.encode_pieces(TEXTS, scaffold)
    encoder.encode_strings([TEXTS] * 70, [[4 * flag for flag in scaffold]] * 70)
    encoder.decode(ids)
    encoder.token_bytes(ids.tolist())
    list(map(str, (encoder.fingerprints, encoder.stop_ids, encoder.template, encoder.special_tokens)))


def judged(folder: Path) -> str:
    """What became of it; "fault: ..." is one."""
    try:
        use(folder)
    except NielsError as error:
        said = str(error)
        if str(folder) not in said or "\n" in said or len(said) > 2500:
            return f"fault: the message does not name the directory, or is too long: {said[:300]}"
        return type(error).__name__
    except BaseException:  # whatever else comes out is what is looked for
        return "fault: " + traceback.format_exc()
    return "opened"


def main(first: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        bases = good(Path(place, "good"))
        found: Counter[str] = Counter(judged(base) for base in bases)
        assert found == {"opened": len(bases)}, found
        for seed in range(first, first + count):
            rng = random.Random(seed)
            base = rng.choice(bases)
            folder = Path(place, "case")
            shutil.copytree(base, folder)
            files = sorted(file for file in folder.iterdir() if file.name != "tokenizer_meta.json")
            change_file(
                rng.choice([*files, folder / files[0].name if base.name == "spm" else folder / "tokenizer.json"]), rng
            )
            before = peak()
            became = judged(folder)
            grown = (peak() - before) >> 20
            if became.startswith("fault") or grown > 600:
                print(f"seed {seed}, {grown} MiB more: {became}", flush=True)
                became = "fault"
            found[became] += 1
            shutil.rmtree(folder)
    print(json.dumps(found), peak() >> 20, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
