"""Families that take images: an image is one token in the grammar, and in the ids as many as its processor says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from niels_gpt.messages import Message
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.configs import FamilyConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.images import ImagePart, image_part
from niels_gpt.renderers.processors import CACHE_MOST, Images, ProcessedImage, no_processor
from niels_gpt.renderers.rendered import MultiModalData, RenderedTokens
from niels_gpt.renderers.script import Script


class TakesImages(Family):
    """A family with images, to be named before the family whose turns it has.

    Args:
        tokenizer, config, options: as `Family`.
        processor: what `transformers.AutoProcessor` or `AutoImageProcessor` gives for the model. Texts, and the text of
            a conversation with images (one placeholder each), need none.
        image_cache_max: how many images are kept as the processor made them.

    Class attributes:
        image_words: what opens an image, the token that stands for it, what closes it.
        placeholders: the type of each placeholder token, 1 for images and 2 for videos.

    Raises:
        UsageError: `processor` counts no tokens of images. Else as `Family`.
    """

    image_words: ClassVar[tuple[str, str, str]]
    placeholders: ClassVar[Mapping[str, int]]

    def __init__(
        self,
        tokenizer: Any,
        config: FamilyConfig | None = None,
        *,
        processor: Any = None,
        image_cache_max: int = CACHE_MOST,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, config, **options)
        self.images = None if processor is None else Images.of(processor, image_cache_max)

    @property
    def mm_token_type_id_map(self) -> dict[int, int]:
        """Placeholder id -> 1 for images, 2 for videos, as far as the tokenizer has them."""
        ids = self.encoder.added_ids
        return {ids[text]: kind for text, kind in self.placeholders.items() if text in ids}

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
        previous_multi_modal_data: MultiModalData | None = None,
    ) -> RenderedTokens | None:
        """See `Renderer`; the images of the given ids come along, before those of the new messages.

        Returns:
            `None` also where the images of the given ids are not those of `previous_multi_modal_data`, token by token:
            a model would be asked about images that nobody has.
        """
        earlier = previous_multi_modal_data or MultiModalData()
        if not self._are_those_of(earlier, [*previous_prompt_ids, *previous_completion_ids]):
            return None
        pictures = len(earlier.mm_placeholders.get("image", ()))
        made = self._bridged(previous_prompt_ids, previous_completion_ids, new_messages, tools, pictures)
        if made is None or earlier.is_empty():
            return made
        later = made.multi_modal_data
        return made.with_media(earlier if later is None else earlier.then(later))

    def _are_those_of(self, media: MultiModalData, ids: Sequence[int]) -> bool:
        """The placeholder tokens among these ids are the ranges of these media, no more and no less."""
        if media.is_empty():  # nearly all bridges: a search for two ids in a list costs next to nothing
            return not any(token in ids for token in self.mm_token_type_id_map)
        found = np.isin(np.asarray(ids, dtype=np.int64), list(self.mm_token_type_id_map))
        covered = np.zeros(len(ids), dtype=np.bool_)
        for places in media.mm_placeholders.values():
            for place in places:
                covered[place.offset : place.offset + place.length] = True
        total = sum(place.length for places in media.mm_placeholders.values() for place in places)
        return bool(np.array_equal(found, covered)) and int(covered.sum()) == total

    # ---- for the families

    def parts(self, chat: Chat, index: int) -> list[str | ImagePart]:
        """The content in texts and images; neighbouring texts are joined.

        Raises:
            MessageError: a part is neither (`unsupported_content`).
        """
        content = chat.messages[index]["content"]
        if isinstance(content, str):
            return [content]
        found: list[str | ImagePart] = []
        for number, part in enumerate(content):
            image = image_part(part, index, number)
            if image is not None:
                found.append(image)
            elif found and isinstance(found[-1], str):
                found[-1] += chat.text_of(part, index, number, beside=" or an image")
            else:
                found.append(chat.text_of(part, index, number, beside=" or an image"))
        return found

    def write_parts(self, parts: Sequence[str | ImagePart], index: int, out: Script) -> None:
        """Texts and images of one message."""
        opens, token, closes = self.image_words
        for part in parts:
            if isinstance(part, str):
                out.body(part, index)
            else:
                out.image(self.label(out.pictures + 1) + opens, token, closes, index, self._process(part))

    def label(self, number: int) -> str:
        """What stands before an image, the first being 1."""
        return ""

    def _process(self, part: ImagePart) -> Callable[[], ProcessedImage]:
        if self.images is None:
            return partial(_without, self.name, part)
        return partial(self.images.process, part)


def _without(format_name: str, part: ImagePart) -> ProcessedImage:
    raise no_processor(format_name, part)
