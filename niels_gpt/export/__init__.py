"""Caches and episodes as files of other trainers; `niels_gpt.imports` reads such files back.

How an export runs::

    export(source, "trl", out)                    run.py
      splits_of, open_source -> Source            source.py              one split of the dataset
      arrange -> Rows, a million tokens at a time arranging.py, rows.py  limit, order, truncation, packing
      Format.open -> SplitWriter.write(rows)      formats.py             and one file for each format:
                                                  hf, megatron, megatron_bridge; preferences
      README.md and export.json, written last     run.py

`tokenize.py` is the same without files: a function for `datasets.map`, Ray Data and torch. Files of other programs
(OLMo-core, litData, nanoGPT, ...) are written by examples/exports in some lines each.

To add a format, write one file with a `SplitWriter` and a `Format`, and one line in registry.py. writers.py has what
writers share: files with checksums, parquet, files named as on the hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.export.registry import FORMATS
    from niels_gpt.export.run import export

# Public names, imported when they are used: the command line must not load what only an export needs.
_MODULES = {"FORMATS": "registry", "export": "run"}

__all__ = ["FORMATS", "export"]

if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES)
