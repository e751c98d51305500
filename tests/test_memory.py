"""Peak memory does not grow with the input: ten times the rows, the same peak."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from niels_gpt.samples import chats_file, notes_dir
from tests.conftest import REPOSITORY

BUILD = """
import json, sys
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.tokenizer import load_tokenizer
from pathlib import Path
from tests.memory import peak
kind, file, out, tokenizer = sys.argv[1:]
tokenizer = load_tokenizer(tokenizer)
if kind == "sft":
    build_sft_cache(chat_files([Path(file)]), out, tokenizer=tokenizer, val_frac=0.1, seed=0)
else:
    build_pretrain_cache(text_files([file]), out, tokenizer=tokenizer, max_train_tokens=1 << 40,
                         max_val_tokens=0, shard_bytes=1 << 22, seed=0, shuffle_buffer=100)
print(peak() / 2**20)
"""


def peak_mib(kind: str, file: Path, tokenizer_dir: Path) -> float:
    """The peak resident memory of a process that builds a cache from `file`, in MiB."""
    out = file.with_name(f"{file.stem}-cache")
    command = [sys.executable, "-c", BUILD, kind, str(file), str(out), str(tokenizer_dir)]
    return float(subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("kind", ["sft", "pretrain"])
def test_five_times_the_input_needs_no_more_memory(tmp_path: Path, tokenizer_dir: Path, kind: str) -> None:
    """6 MB and 30 MB of input. What is held is a batch of a million characters, not the 30 MB, their ids or offsets."""
    if kind == "sft":
        rows = chats_file().read_text(encoding="utf-8")
    else:
        texts = [path.read_text(encoding="utf-8") for path in sorted(notes_dir().iterdir())]
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    copies = 2_000_000 // len(rows.encode())
    peaks = []
    for times in (3, 15):
        file = tmp_path / f"x{times}.jsonl"
        with file.open("w", encoding="utf-8") as stream:
            for _ in range(copies * times):
                stream.write(rows)
        peaks.append(peak_mib(kind, file, tokenizer_dir))
    assert peaks[1] - peaks[0] < 12, f"peaks {peaks[0]:.0f} and {peaks[1]:.0f} MiB"
