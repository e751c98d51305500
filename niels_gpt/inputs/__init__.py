"""One reader of what a user names, for the doctor, the explorer and imports.

::

    opened         open_input: rows in memory, files, folders, patterns, URLs, the hub, datasets of ours  ->  Opened
    memory         rows and batches as Python objects
    parts          the rows of an input in slices, which workers decode
    rows           TokenRows: many rows of ids, concatenated
    columns        input_ids, labels, masks, position_ids ... of other trainers  ->  TokenRows
    token_files    token files of other programs as an input
    token_formats  what such a format is; each of these reads one:
    arrays         .npy, llm.c, raw ids
    megatron       .bin with .idx
    id_columns     parquet with columns of ids
"""
