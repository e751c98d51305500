"""Where text and conversations come from. A source knows files and formats, never a tokenizer.

::

    base.py         what a source is: Source, TextSource, ChatSource
    registry.py     the named sources, by name

    chat_files.py        conversations of the user's own files
      chat_shapes.py       the formats of their rows, and provider_shapes.py: those of Anthropic, Gemini and Harmony
      mapping.py           rows of other formats: which columns hold what, or a function of the user
      media_columns.py     columns of images beside the messages, which are refused
    preference_files.py  completions that are compared or judged; preference_rows.py: one row of them
    prompt_files.py      prompts with answers, for reinforcement learning
    text_files.py        documents of the user's own text files;  roam.py: a folder of markdown notes
    arrow_nulls.py       drops the nulls that Arrow adds to rows

    filters.py           rows that are left out on purpose, and the protocol of all such checks
    duplicates.py        rows that are in the data twice, or nearly;  contamination.py: in a benchmark, too
    ngrams.py            word n-grams and MinHashes, for both

    hub_corpora.py  data sets on the Hugging Face hub: FineWeb-Edu, WikiText, Gutenberg, dolly-15k
    oasst1.py       OpenAssistant, on the hub too              hub.py          a data set on the hub, at one commit

    locations.py    which files a path, pattern, URL or name on the hub names
    inputs.py       paths, decompression, text, JSON lines     records.py      rows of .jsonl, .json and .parquet
    slices.py       files cut into slices for several workers
    hashed_files.py the hashes of files, and whether they still had these bytes when they were read
    unique_keys.py  a decoder of JSON that refuses objects with a repeated key
    rejections.py   unusable rows: counted, written to rejected.jsonl, and at some point too many

A source yields rows in a fixed order. In place of a row that cannot be used it yields `Rejected`, so that its consumer
decides how many are too many.
"""
