"""`TakesImages`: what families with images share.

A grammar writes one placeholder token for an image; `encode.py` repeats it as often as the model's processor says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from niels_gpt.messages import Messages
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.images.loading import ImagePart, image_part
from niels_gpt.renderers.images.processors import CACHE_SIZE, Images, MultiModalData, ProcessedImage, no_processor
from niels_gpt.renderers.options import FamilyConfig
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.pieces import token_id_list


class TakesImages(Family):
    """A family with images; it is the first base class: `class KimiK25Renderer(TakesImages, KimiK2Renderer)`.

    Args:
        tokenizer, config, options: as `Family`.
        processor: what `transformers.AutoProcessor` or `AutoImageProcessor` gives for the model. Without one,
            conversations without images can be rendered, and `text` shows one placeholder for each image.
        image_cache_max: how many processed images are cached.

    Class attributes:
        image_tokens: the text that opens an image, its placeholder token, the text that closes it.
        placeholders: the type of each placeholder token, 1 for images and 2 for videos.

    Raises:
        UsageError: `processor` is no image processor. Else as `Family`.
    """

    image_tokens: ClassVar[tuple[str, str, str]]
    placeholders: ClassVar[Mapping[str, int]]

    def __init__(
        self,
        tokenizer: Any,
        config: FamilyConfig | None = None,
        *,
        processor: Any = None,
        image_cache_max: int = CACHE_SIZE,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, config, **options)
        self.processor = processor.processor if isinstance(processor, Images) else processor
        self.images = None if processor is None else Images.of(processor, image_cache_max)

    @property
    def mm_token_type_id_map(self) -> dict[int, int]:
        """Placeholder id -> 1 for images, 2 for videos; placeholders that the tokenizer lacks are left out."""
        ids = self.encoder.added_ids
        return {ids[text]: kind for text, kind in self.placeholders.items() if text in ids}

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Messages,
        *,
        tools: Any = None,
        previous_multi_modal_data: MultiModalData | None = None,
    ) -> RenderedTokens | None:
        """See `Renderer`; the result has the images of the previous ids, then those of the new messages.

        Returns:
            `None` also where the placeholders in the previous ids are not those of `previous_multi_modal_data`, token
            by token: a model would get placeholders without their images.
        """
        prompt = token_id_list(previous_prompt_ids, "previous_prompt_ids")
        completion = token_id_list(previous_completion_ids, "previous_completion_ids")
        earlier = previous_multi_modal_data or MultiModalData()
        if not self._has_placeholders_of(earlier, prompt + completion):
            return None
        # Labels count over the whole conversation: after two images comes `Picture 3: `.
        image_count = len(earlier.mm_placeholders.get("image", ()))
        bridge = self._bridge(prompt, completion, new_messages, tools, image_count)
        if bridge is None or earlier.is_empty():
            return bridge
        later = bridge.multi_modal_data
        return bridge.with_media(earlier if later is None else earlier.followed_by(later))

    def _has_placeholders_of(self, media: MultiModalData, ids: Sequence[int]) -> bool:
        """Whether the placeholder tokens among these ids are exactly the ranges of these media."""
        if media.is_empty():  # nearly all bridges; searching a list for two ids is cheap
            return not any(token in ids for token in self.mm_token_type_id_map)
        # ids      5 p p 6 p     ranges  1..3 and 4..5     found and covered  F T T F T, and 3 tokens in all: ranges
        # that overlap would cover the same tokens with a larger sum.
        found = np.isin(np.asarray(ids, dtype=np.int64), list(self.mm_token_type_id_map))
        covered = np.zeros(len(ids), dtype=np.bool_)
        for places in media.mm_placeholders.values():
            for place in places:
                covered[place.offset : place.offset + place.length] = True
        total = sum(place.length for places in media.mm_placeholders.values() for place in places)
        return bool(np.array_equal(found, covered)) and int(covered.sum()) == total

    # ---- for the families

    def content_parts(self, view: ConversationView, index: int) -> list[str | ImagePart]:
        """The content as texts and images; adjacent texts are joined.

        Raises:
            MessageError: a part is neither (`unsupported_content`).
        """
        content = view.messages[index]["content"]
        if isinstance(content, str):
            return [content]
        parts: list[str | ImagePart] = []
        for number, part in enumerate(content):
            image = image_part(part, index, number)
            if image is not None:
                parts.append(image)
            elif parts and isinstance(parts[-1], str):
                parts[-1] += view.text_of(part, index, number, or_else=" or an image")
            else:
                parts.append(view.text_of(part, index, number, or_else=" or an image"))
        return parts

    def write_parts(self, parts: Sequence[str | ImagePart], index: int, out: Emitter) -> None:
        """Write the texts and images of one message."""
        opens, token, closes = self.image_tokens
        for part in parts:
            if isinstance(part, str):
                out.content(part, index)
                continue
            # Processing waits until ids are made: `text` and `pieces` need no processor and load no file.
            process: Callable[[ImagePart], ProcessedImage] = partial(_refuse_image, self.name)
            if self.images is not None:
                process = self.images.process
            out.image(self.image_label(out.image_count + 1) + opens, token, closes, index, partial(process, part))

    def image_label(self, number: int) -> str:
        """The text before image `number` of the conversation, counted from 1."""
        return ""


def _refuse_image(format_name: str, part: ImagePart) -> ProcessedImage:
    raise no_processor(format_name, part)
