"""Peak memory of a build in units does not grow with the input: twenty times the rows, the same peak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.scale.builds import write_chats

BUILD = """
import resource, sys
from pathlib import Path
from niels_gpt.sources.chat_file import ChatFile
from niels_gpt.tokenizer import load_tokenizer
from tests.scale.builds import build, units

if __name__ == "__main__":
    file, out, tokenizer, workers = sys.argv[1:]
    build("episodes", ChatFile(file), Path(out), load_tokenizer(tokenizer), units(1 << 20, int(workers)))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_twenty_times_the_input(tmp_path: Path, tokenizer_dir: Path, workers: int) -> None:
    """3 MB and 60 MB; what is held is a unit's portion, and mapped pages of units that the system may take back."""
    script = tmp_path / "run.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{BUILD}")
    once = write_chats(tmp_path / "once.jsonl", 9_000).read_bytes()
    peaks = []
    for times in (1, 20):
        file = tmp_path / f"x{times}.jsonl"
        with file.open("wb") as stream:
            for _ in range(times):
                stream.write(once)
        command = [sys.executable, script, file, tmp_path / f"out{times}", tokenizer_dir, workers]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    assert peaks[1] - peaks[0] < 40, f"peaks {peaks[0]:.0f} and {peaks[1]:.0f} MiB"
