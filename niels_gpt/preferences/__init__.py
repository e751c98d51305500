"""Preferences and rewards: completions of a prompt that are compared, labelled or scored.

How a row of a file becomes rows of a batch, with the file that does each step::

    row -> Preference: prompt and completions            sources/rows/preference_rows.py
      -> ids of prompt and completion, prompt length     encode.py
      -> episodes, and completions.bin beside them       build.py
      -> groups that fit into rows                       dataset.py
      -> rows of a batch, chosen before rejected         batches.py
      -> order, ranks, resuming                          loader.py, and `niels_gpt.episodes`

docs/preferences.md is for users; the command is `build` in `niels_gpt.cli.build`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.preferences.batches import PreferenceBatch
    from niels_gpt.preferences.build import build_preferences
    from niels_gpt.preferences.loader import PreferenceLoader

_MODULES = {"PreferenceBatch": "batches", "PreferenceLoader": "loader", "build_preferences": "build"}

__all__ = ["PreferenceBatch", "PreferenceLoader", "build_preferences"]

if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES)
