"""Tokenized files of datatrove, for nanotron: `python -m examples.exports.datatrove DATASET OUT`.

Read them with DatatroveFolderDataset("OUT/train", seq_len=2048, token_size=4, return_positions=True). Its windows cross
rows, and it does not read the mask, which is in 00000.ds.loss, aligned with the tokens.
"""

import sys

from datatrove.pipeline.tokens.tokenizer import TokenizedFile

import niels_gpt as ng

dataset, out = sys.argv[1:]
for name, split in ng.open(dataset).splits.items():
    file = TokenizedFile(f"{out}/{name}", "00000.ds", save_loss_metadata=True, save_final_metadata=True, token_size=4)
    for row in split:
        trained = row.trained
        trained[:1] = False  # nothing predicts the first token of a text
        file.write(row.ids.tolist(), trained)
    file.close()
