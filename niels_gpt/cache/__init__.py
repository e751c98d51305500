"""Token caches on disk: written once, memory-mapped by every training job. The format is in docs/formats.md.

::

    build_cache.py        conversations or texts -> the files below             (needs a tokenizer)
    build_all.py          the caches of all named sources, with a copy of the tokenizer (tokenizer_copy.py)
    cli.py                `python -m niels_gpt.cache.cli build-all`
    ----------------------------------------------------------------------
    pretrain_dataset.py   random windows of token streams                        (needs numpy, torch, pydantic)
    sft_dataset.py        conversations with masked targets
    mmap.py, meta.py      the names of document 001 for mapping files, and for reading and writing meta.json
    formats.py            defaults, names of dtypes; the files themselves are in `niels_gpt.store`

    pretrain/NAME/  train/shard_00000.bin ...  val/shard_00000.bin ...  meta.json
    sft/NAME/       train_tokens.bin train_idx.npy val_tokens.bin val_idx.npy meta.json

Nothing is imported here, so that readers do not load what only builders need.
"""
