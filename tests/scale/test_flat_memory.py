"""Peak memory of a build in units does not grow with the input: twenty times the rows, the same peak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.scale.builds import write_chats, write_texts

OPTIONS = {"pretrain": {"shard_bytes": 1 << 26}, "episodes": {}}
BUILD = """
import sys
from pathlib import Path
from niels_gpt.tokenizer import load_tokenizer
from tests.memory import peak
from tests.scale.builds import build, source_of, units

if __name__ == "__main__":
    kind, file, out, tokenizer, workers = sys.argv[1:]
    source = source_of(kind, Path(file))
    build(kind, source, Path(out), load_tokenizer(tokenizer), units(1 << 20, int(workers)), **OPTIONS)
    print(peak() / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("episodes", 1), ("episodes", 2), ("pretrain", 2)])
def test_twenty_times_the_input(tmp_path: Path, tokenizer_dir: Path, kind: str, workers: int) -> None:
    """3 MB and 60 MB; what is held is a unit's portion, and mapped pages of units that the system may take back."""
    script = tmp_path / "run.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\nOPTIONS = {OPTIONS[kind]}\n{BUILD}")
    if kind == "pretrain":
        once = (write_texts(tmp_path / "texts", 5_000) / "20.jsonl").read_bytes()
    else:
        once = write_chats(tmp_path / "once.jsonl", 9_000).read_bytes()
    peaks = []
    for times in (1, 20):
        file = tmp_path / f"x{times}.jsonl"
        with file.open("wb") as stream:
            for _ in range(times):
                stream.write(once)
        command = [sys.executable, script, kind, file, tmp_path / f"out{times}", tokenizer_dir, workers]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    assert peaks[1] - peaks[0] < 40, f"peaks {peaks[0]:.0f} and {peaks[1]:.0f} MiB"
