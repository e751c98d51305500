"""`MultiModalData`: the images of a rendering, and where their placeholder tokens are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlaceholderRange:
    """The placeholder tokens of one image: `token_ids[offset : offset + length]`."""

    offset: int
    length: int


@dataclass(frozen=True)
class MultiModalData:
    """The images of a conversation, in lists by modality ("image"), in order of appearance.

    Attributes:
        mm_hashes: the hash of each image's pixels.
        mm_placeholders: its tokens.
        mm_items: the processor's numpy arrays, by the names of the model's arguments; not compared by `==`.
    """

    mm_hashes: dict[str, list[str]] = field(default_factory=dict)
    mm_placeholders: dict[str, list[PlaceholderRange]] = field(default_factory=dict)
    mm_items: dict[str, list[dict[str, Any]]] = field(default_factory=dict, compare=False)

    def is_empty(self) -> bool:
        """There are no images."""
        return not (self.mm_hashes or self.mm_placeholders or self.mm_items)

    def shifted(self, by: int) -> MultiModalData:
        """The same images, `by` tokens later."""
        places = {
            kind: [PlaceholderRange(place.offset + by, place.length) for place in ranges]
            for kind, ranges in self.mm_placeholders.items()
        }
        return MultiModalData(self.mm_hashes, places, self.mm_items)

    def followed_by(self, later: MultiModalData) -> MultiModalData:
        """These images, and later ones in the same ids."""

        def join(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {kind: [*one.get(kind, ()), *other.get(kind, ())] for kind in {**one, **other}}

        return MultiModalData(
            join(self.mm_hashes, later.mm_hashes),
            join(self.mm_placeholders, later.mm_placeholders),
            join(self.mm_items, later.mm_items),
        )
