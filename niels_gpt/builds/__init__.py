"""Rows to ids and weights, and a directory that is complete or absent: what builds of caches and episodes share.

::

    build.py                  one build, from its options to the rename: `write_dataset`. Start reading here
    finished.py                 a finished build at the output: the same, or what differs
    changes.py                  what a build says of rows that it changed
    tasks.py                  what may run anywhere, and the chunks that it makes
    executor.py                 where it runs: a source is built in units
    pool.py                       worker processes of this machine
    ray_executor.py               a Ray cluster
    units.py                    the finished pieces of a build on disk: built, checked, read, retained, deleted
    rows.py                   checks of rows before they are encoded, and batches of similar size
    conversations.py          the task that encodes conversations, by one of
    conversation_encoders.py    the encoder for what a caller has: `as_encoder`
    encoder_protocol.py         what an encoder is, and its batches
    sentinel_encoder.py         our own sentinels
    renderer_encoder.py         a renderer, with one sample of a conversation or several
    documents.py              texts: encoder, task, token budgets
    splits.py                 train or val, by group; the shuffle buffer
    images.py                 images of conversations: found, hashed, placed; cutting beside them
"""
