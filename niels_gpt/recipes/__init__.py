"""Recipes: one file that says everything, from the sources to the batches and exports.

::

    recipe.toml --reading--> Recipe --inputs--> sources, encoder --run--> episodes, mixture.json, exports, lock
                             schema
"""

from __future__ import annotations

from niels_gpt.recipes.inputs import open_recipe
from niels_gpt.recipes.lock import read_lock
from niels_gpt.recipes.reading import read_recipe
from niels_gpt.recipes.run import build_recipe

__all__ = ["build_recipe", "open_recipe", "read_lock", "read_recipe"]
