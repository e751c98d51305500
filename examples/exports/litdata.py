"""Chunks of litData, for Lightning: `python -m examples.exports.litdata DATASET OUT`.

Read them with StreamingDataset("OUT/train"): dicts of `tokens` and of `mask`, the weight of each token in the loss.
Labels are the tokens moved by one; move the mask, too.
"""

import sys

import numpy as np
from litdata.streaming.writer import BinaryWriter

import niels_gpt as ng

dataset, out = sys.argv[1:]
for name, split in ng.open(dataset).splits.items():
    writer = BinaryWriter(f"{out}/{name}", chunk_bytes="64MB")
    for number, row in enumerate(split):
        mask = np.array(row.trained if row.weights is None else row.weights, np.float32)
        mask[:1] = 0  # nothing predicts the first token of a text
        writer.add_item(number, {"tokens": row.ids.astype(np.uint32), "mask": mask})
    writer.done()
    writer.merge()
