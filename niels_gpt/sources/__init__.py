"""Where text and conversations come from. A source knows files and formats, never a tokenizer.

::

    base.py         what a source is: Source, TextSource, ChatSource
    registry.py     the named sources, by name

    chat_files.py   conversations of the user's own files      chat_shapes.py  the row formats they may have
    text_files.py   documents of the user's own text files     arrow_nulls.py  nulls that Arrow adds to rows
    roam.py         a folder of markdown notes
    hub_corpora.py  data sets on the Hugging Face hub: FineWeb-Edu, WikiText, Gutenberg, dolly-15k
    oasst1.py       OpenAssistant, on the hub too              hub.py          what hub sources share

    inputs.py       paths, decompression, text, JSON lines     records.py      rows of .jsonl, .json and .parquet
    slices.py       files cut into slices for several workers
    rejections.py   unusable rows: counted, written to rejected.jsonl, and at some point too many

A source yields rows in a fixed order. In place of a row that cannot be used it yields `Rejected`, so that its consumer
decides how many are too many.
"""
