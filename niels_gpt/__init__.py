"""From conversations to exact token ids, exact loss masks, memory-mapped caches and fixed-shape batches.

Nothing is imported here on purpose: a training job that opens a cache pays for numpy and torch alone.
The folders are the floors of the design, lowest first::

    messages errors files inputs seeds     a conversation, an error, an atomic file, an order
    tokenizer/                             text <-> ids
    sources/                               where text and chats come from (knows no tokenizer)
    format/                                ids -> masks, fitting, tensors
    cache/                                 bytes on disk <-> arrays
    explorer/ demo cli                     the people's side
"""

__version__ = "0.1.0"
