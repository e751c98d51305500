"""Shards of MosaicML Streaming, for llm-foundry and Composer: `python -m examples.exports.mds DATASET OUT`.

Read them with StreamingDataset(local="OUT/train", batch_size=8): dicts of `tokens` and of `mask`, the weight of each
token in the loss. Labels are the tokens moved by one; move the mask, too.
"""

import sys

import numpy as np
from streaming import MDSWriter

import niels_gpt as ng

dataset, out = sys.argv[1:]
columns = {"tokens": "ndarray:uint32", "mask": "ndarray:float32"}
for name, split in ng.open(dataset).splits.items():
    with MDSWriter(out=f"{out}/{name}", columns=columns) as writer:
        for row in split:
            mask = np.array(row.trained if row.weights is None else row.weights, np.float32)
            mask[:1] = 0  # nothing predicts the first token of a text
            writer.write({"tokens": row.ids.astype(np.uint32), "mask": mask})
