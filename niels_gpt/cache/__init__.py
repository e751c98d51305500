"""Token caches on disk (document 001): written once, mapped by every training job.

::

    build_cache.py        conversations, texts  ->  the files below          (needs a tokenizer)
    cli.py                the same from the command line
    ----------------------------------------------------------------------
    pretrain_dataset.py   random windows of token streams                     (numpy and torch alone)
    sft_dataset.py        conversations with masked targets
    mmap.py               files as arrays; opening, verifying
    meta.py               meta.json: what the files are, written last
    formats.py            names, dtypes, writers

    pretrain/NAME/  train/shard_00000.bin ...  val/shard_00000.bin ...  meta.json
    sft/NAME/       train_tokens.bin train_idx.npy val_tokens.bin val_idx.npy meta.json

Nothing is imported here, so that readers do not load what only builders need.
"""
