"""Peak memory does not grow with the source: ten times the tokens, the same peak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.export import FORMATS
from tests.conftest import REPOSITORY

# Pages of mapped files count as resident although the system may take them back, so what is counted is the rest.
EXPORT = """
import sys
from niels_gpt.export import export
from niels_gpt.progress import Progress

def anonymous():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))

class Watch(Progress):
    most = 0
    def advance(self, steps):
        Watch.most = max(Watch.most, anonymous())

export(sys.argv[1], sys.argv[2], sys.argv[3], progress=Watch())
print(Watch.most / 1024)
"""


def source(folder: Path, tokens: int) -> Path:
    """Rows of 500 tokens without a manifest."""
    (folder / "train").mkdir(parents=True)
    np.random.default_rng(0).integers(0, 50_000, tokens, dtype=np.uint32).tofile(folder / "train" / "tokens.bin")
    np.ones(tokens, dtype=np.uint8).tofile(folder / "train" / "mask.bin")
    starts = np.arange(0, tokens, 500, dtype="<u8")
    np.stack([starts, np.full_like(starts, 500)], axis=1).tofile(folder / "train" / "episodes.idx")
    return folder


def peak_mib(folder: Path, name: str, out: Path) -> float:
    command = [sys.executable, "-c", EXPORT, str(folder), name, str(out)]
    return float(subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("name", ["hf", "megatron", pytest.param("all", marks=pytest.mark.slow)])
def test_ten_times_the_tokens_need_no_more_memory(tmp_path: Path, name: str) -> None:
    small, large = source(tmp_path / "small", 2_000_000), source(tmp_path / "large", 20_000_000)
    for each in sorted(FORMATS) if name == "all" else [name]:
        few, many = (peak_mib(folder, each, tmp_path / f"{folder.name}-{each}") for folder in (small, large))
        assert many < few + 100, each  # the large one has 100 MiB of tokens
