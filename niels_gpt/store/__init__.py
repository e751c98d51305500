"""Stored datasets: columns of values per token or per row, in the three layouts of the documents; and files as such.

::

    schema.py         the columns and layouts: names of files, dtypes, records
    writer.py         `SplitWriter`: the files of one split of any layout
    verify.py         everything read and judged

    rows.py           rows of ids, and what every split can do;  gather.py: spans of arrays
    split.py          `IndexedSplit`: episodes, examples, windows;  documents.py: `DocumentSplit`, documents of a stream
    shards.py         `Shard`: the mapped columns of one;  index.py: where its rows are;  index_sets.py: sets of rows
    masks.py          which tokens are trained, from the sentinels among the ids of a row
    records.py        metadata and completions;  images.py: which images a row has

    kinds.py          what a directory holds, and its manifest;  foreign_meta.py: other programs' `meta.json`
    manifest.py       the JSON file that is written last: its fields, its own hash, and the files that it lists
    tokenizer_hash.py by which a manifest identifies a tokenizer
    published.py      a dataset in a store, whose manifest and indexes are here

    files.py          one file: written aside, flushed, renamed;  staging.py: a directory likewise
    locks.py          locks between processes, released however a process ends
    checksums.py      size and sha256 of a file

    remote.py         files at URLs, read by ranges
    retries.py        which requests to a store are repeated, how often, and after how long
    shard_cache.py    files of remote datasets on this machine, bounded, shared by all processes
"""
