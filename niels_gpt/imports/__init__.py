"""Token datasets of other programs as episodes.

How an import runs::

    import_episodes(path, "hf", out)              run.py
      an export's own checksums                   exported.py
      TokenFormat.open -> SplitFiles by split     inputs: id_columns.py, megatron.py, arrays.py
      SplitFiles.read -> Ids                      inputs/token_formats.py
      EpisodeWriter, manifest written last        run.py

To add a format, write one file in `inputs` with a function that finds the files of each split (token_formats.py helps)
and a `TokenFormat`, and one line in `FORMATS` of run.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.imports.run import FORMATS, import_episodes

_MODULES = {"FORMATS": "run", "import_episodes": "run"}

__all__ = ["FORMATS", "import_episodes"]

if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES)
