"""train.bin and val.bin of nanoGPT, uint16 ids without a header: `python -m examples.exports.nanogpt DATASET OUT`.

Put them into nanoGPT's data/NAME and train with --dataset=NAME. There is no mask: every token is trained. Rows end as
in the dataset; nothing is appended.
"""

import sys
from pathlib import Path

import niels_gpt as ng

dataset, out = ng.open(sys.argv[1]), Path(sys.argv[2])
if dataset.vocab_size is None or dataset.vocab_size > 65_536:
    sys.exit(f"{dataset.path}: its vocabulary ({dataset.vocab_size}) may not fit into uint16, which nanoGPT reads")
out.mkdir(parents=True)
for name, split in dataset.splits.items():
    with (out / f"{name}.bin").open("wb") as file:
        for rows in split.chunks():
            file.write(rows.ids.astype("<u2").tobytes())
