"""Mapped files of tokens: the module path of document 001."""

from niels_gpt.store.shards import map_tokens

__all__ = ["map_tokens"]
