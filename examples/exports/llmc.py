"""Token files of llm.c and of the speed runs that followed it: `python -m examples.exports.llmc DATASET OUT`.

Read them with train_gpt2cu -i "OUT/train_*.bin" -j "OUT/val_*.bin"; with train_llama3cu where ids have 32 bits. There
is no mask: every token is trained.
"""

import sys
from pathlib import Path

import numpy as np

import niels_gpt as ng

dataset, out = ng.open(sys.argv[1]), Path(sys.argv[2])
# The magic number and the version tell the dtype.
magic, version, dtype = (20240520, 1, "<u2") if (dataset.vocab_size or 1 << 32) <= 1 << 16 else (20240801, 7, "<u4")
out.mkdir(parents=True)
for name, split in dataset.splits.items():
    for number, rows in enumerate(split.chunks(100_000_000)):  # a file holds fewer than 2**31 tokens
        header = np.zeros(256, "<i4")
        header[:3] = magic, version, len(rows.ids)
        (out / f"{name}_{number:06d}.bin").write_bytes(header.tobytes() + rows.ids.astype(dtype).tobytes())
