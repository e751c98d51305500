"""Where text and conversations come from. A source knows files and formats, never a tokenizer.

::

    base.py              what a source is: Source, TextSource, ChatSource
    registry.py          the named sources, by name

    chat_files.py        conversations of the user's own files
    preference_files.py  completions that are compared or judged
    text_files.py        documents of the user's own text files and notes
    hub_corpora.py       data sets on the Hugging Face hub: FineWeb-Edu, WikiText, Gutenberg, dolly-15k
    oasst1.py            OpenAssistant, also on the hub

    mapping.py           rows of unknown formats: which columns hold what, or a function of the user
    arrow_nulls.py       drops the nulls that Arrow adds to rows
    rejections.py        unusable rows: counted, written to rejected.jsonl, and at some point too many

    curation/            rows that are left out on purpose: filters, duplicates, decontamination
    files/               which files a user names, their bytes, their records
    rows/                what the columns of a row mean, in the known formats

A source yields rows in a fixed order. In place of a row that cannot be used it yields `Rejected`, so that its consumer
decides how many are too many. A row of a file goes from `files` (bytes to a `Record`) over `rows` or `mapping` (columns
to messages) to the source, and then through the checks of `curation`.
"""
