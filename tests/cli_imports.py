"""What commands import, imported once: the process that `tests/cli_server.py` forks them from preloads this module."""

from __future__ import annotations

import gc
from importlib import import_module

# Of the libraries, those that read no variables that tests set; huggingface_hub, fsspec and transformers do.
_LIBRARIES = (
    *("numpy", "torch", "pyarrow.parquet", "pandas", "pydantic", "typer", "rich.console", "rich.table"),
    *("jinja2.sandbox", "tokenizers", "gigatoken", "sentencepiece"),
    # What huggingface_hub and datasets import besides.
    *("pyarrow.dataset", "httpx", "httpx2", "multiprocess", "dill", "yaml", "filelock", "xxhash", "tqdm.auto"),
)
_OURS = (
    *("cli.main", "cli.catalogue", "cli.corpora", "cli.exchange", "cli.options", "cli.show", "cache.build_all"),
    *("cache.build_cache", "doctor.run", "episodes.build", "store.verify", "export.registry", "imports.run"),
    *("preferences.build", "recipes.run", "renderers.registry", "renderers.template.renderer"),
    *("tokenizer.encoder", "tokenizer.training"),
)

for name in (*_LIBRARIES, *(f"niels_gpt.{each}" for each in _OURS), "tests.cli_server"):
    try:
        import_module(name)
    except ImportError:  # an optional library
        continue
gc.collect()
gc.freeze()  # a collection in a child would copy all memory that holds objects of the libraries
