"""Ids and label masks for OLMo-core, in raw arrays: `python -m examples.exports.olmo DATASET OUT`.

Read them with NumpyPackedFSLDatasetConfig(paths=["OUT/train/token_ids_part_0000.npy"], dtype=uint32,
label_mask_paths=["OUT/train/labels_mask_part_0000.npy"]). It moves labels and mask itself, and takes every eos of its
tokenizer as the end of a document.
"""

import sys
from pathlib import Path

import niels_gpt as ng

dataset, out = sys.argv[1:]
for name, split in ng.open(dataset).splits.items():
    folder = Path(out, name)
    folder.mkdir(parents=True)
    ids, mask = folder / "token_ids_part_0000.npy", folder / "labels_mask_part_0000.npy"
    with ids.open("wb") as ids_file, mask.open("wb") as mask_file:
        for row in split:
            trained = row.trained
            trained[:1] = False  # nothing predicts the first token of a text
            ids_file.write(row.ids.astype("<u4").tobytes())
            mask_file.write(trained.tobytes())
