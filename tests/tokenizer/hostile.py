"""Damaged and hostile tokenizer directories, for a process of its own: `python -m tests.tokenizer.hostile FIRST COUNT`.

Each seed takes a good directory, changes something in it, opens it, and encodes and decodes with what opened. Whatever
is raised must be one of our errors, say which file, and be one line; the process must stay small.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from niels_gpt.errors import NielsError
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.training import train_tokenizer
from tests.memory import peak
from tests.tokenizer import tiny

CONFIG = {"eos_token": tiny.END, "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}]}
TEN = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}
# Values of other types, numbers and texts that ask for much, and steps that make much of little or panic.
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1 << 31, 1 << 63, 1 << 200, 1.5, float("nan"), "", "x", "\ud800", "ab" * 50_000),
    *([], {}, [None], [{}], {"type": "Sequence", "normalizers": [None]}, {"type": 3}, {"String": ""}, {"Regex": "("}),
    *({"type": "Sequence", "normalizers": [TEN] * 12}, {**TEN, "content": "e" * 100_000}),
    *({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "Metaspace", "replacement": "▁"}),
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
    *({"id": 1 << 31, "content": "y", "special": True}, {"id": 3, "content": "y" * 5000}),
)
RAW = (
    b"",
    b"\0" * 100,
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"null",
    b"[]",
    b'{"a": 1e999}',
    b"[" * 100_000,
    b'{"a":' * 9999,
)
TEXTS = ["hello world\n", tiny.START, "naïve 🤖 \u2581 x", tiny.THINK, "e" * 50]


def places(value: Any) -> list[list[Any]]:
    """The way to every value inside, of long tables a few only."""
    inside: list[Any] = list(value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0))
    some = inside if len(inside) < 60 else [*inside[:3], *inside[-3:]]
    return [[key, *rest] for key in some for rest in [[], *places(value[key])]]


def changed(value: Any, rng: random.Random) -> Any:
    """A value with something inside replaced, removed or put twice."""
    *way, last = rng.choice(places(value))
    held = value
    for key in way:
        held = held[key]
    if (kind := rng.randrange(4)) == 0:
        del held[last]
    elif kind == 1 and isinstance(held, list):
        held += held[:1]
    else:
        held[last] = rng.choice(ODD)
    return value


def change_file(file: Path, rng: random.Random) -> None:
    """One file of a directory becomes another, or none."""
    data, kind = file.read_bytes(), rng.randrange(10)
    if kind < 6 and file.suffix == ".json":
        file.write_text(json.dumps(changed(json.loads(data), rng)))
    elif kind < 9:
        at = rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        file.write_bytes(rng.choice((data[:at], data[:at] + b"\xed\xa0\x80" + data[at:], flipped, rng.choice(RAW))))
    else:
        file.unlink()
        rng.choice((file.mkdir, lambda: file.symlink_to("nothing"), lambda: None))()


def good(folder: Path) -> list[Path]:
    """Good directories of several kinds."""
    kinds = (tiny.byte_level(), tiny.byte_level(form="NFC"), tiny.metaspace(), tiny.spaced(), tiny.flagged(lstrip=True))
    made = [tiny.save(kind, folder / str(number), **CONFIG) for number, kind in enumerate(kinds)]
    for each in made:
        (each / "generation_config.json").write_text('{"eos_token_id": [1], "pad_token_id": 1}')
        (each / "chat_template.jinja").write_text("{{ messages[0].content }} é")
    train_tokenizer([chats_file(), notes_dir()], folder / "spm", vocab_size=1200)
    return [*made, folder / "spm"]


def judged(folder: Path) -> str:
    """What became of it; "fault: ..." is one."""
    try:
        encoder = open_encoder(folder)
        scaffold = [text in encoder.control_ids for text in TEXTS]
        ids, _ = encoder.encode_pieces(TEXTS, scaffold)
        encoder.encode_strings([TEXTS] * 70, [[4 * flag for flag in scaffold]] * 70)
        encoder.decode(ids)
        encoder.token_bytes(ids.tolist())
        list(map(str, (encoder.fingerprints, encoder.stop_ids, encoder.template, encoder.special_tokens)))
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
            base, folder = rng.choice(bases), Path(place, "case")
            shutil.copytree(base, folder)
            files = sorted(file for file in folder.iterdir() if file.name != "tokenizer_meta.json")
            # Half of the changes are in the file that has most to change.
            change_file(rng.choice([*files, *files[-2:][:1] * 2]), rng)
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
