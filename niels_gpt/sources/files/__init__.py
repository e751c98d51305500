"""From what a user names to rows and texts: which files, their bytes, their records. Columns are not interpreted here.

::

    listing.py       which files a path, pattern, URL or name on the hub names, and which are passed over
    formats.py       how a file is stored, by its name and its first bytes
    inputs.py        paths, decompression, text, JSON lines
    records.py       rows of .jsonl, .json, .parquet and .arrow
    hub.py           a data set on the Hugging Face hub, at one commit
    slices.py        files cut into slices for several workers
    hashed_files.py  the hashes of files, and whether they still had these bytes when they were read
"""
