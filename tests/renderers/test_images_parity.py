"""Images beside the official templates, and beside the processors of Transformers that serving uses."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
from niels_gpt.renderers.registry import FAMILIES, config_of
from niels_gpt.renderers.types import RenderedTokens
from tests.assets import needs_assets
from tests.memory import shared
from tests.renderers.chats import Messages, conversation
from tests.renderers.test_parity import (
    PAIRS,
    differs,
    encoder_of,
    official_text,
    sorted_for,
    swept,
    template_of,
)
from tests.renderers.test_template import official
from tests.renderers.tiny_images import WITH_IMAGES, illustrated, picture, qwen_processor

SEEING = [(folder, family) for folder, family in PAIRS if family in WITH_IMAGES]
pairs = pytest.mark.parametrize(("folder", "family"), SEEING, ids=[folder.name for folder, _ in SEEING])


@shared
def whole_processor(folder: Path, family: str) -> Any:
    """The model's own processor, with small images and no videos: those need torchvision."""
    if family == "kimi-k2.5":
        from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor as Official
    else:
        from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor as Official

    class ForImages(Official):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> None:
            """It would look for the class of the video processor."""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ForImages(qwen_processor(), official(folder), None)


def renderer_of(folder: Path, family: str, **options: Any) -> Any:
    config: Any = config_of({"name": family, **options})
    return FAMILIES[family](encoder_of(folder), config, processor=qwen_processor())  # type: ignore[call-arg]


def options_of(family: str) -> list[dict[str, Any]]:
    return [{}] if family == "kimi-k2.5" else [{}, {"add_vision_id": True}]


def processed(folder: Path, family: str, text: str, images: list[Any]) -> Any:
    """What the processor makes of a text and its images."""
    given = {"images": images} if images else {}
    return whole_processor(folder, family)(text=[text], return_tensors="np", **given)


def check_processed(rendered: RenderedTokens, made: Any, shown: list[tuple[int, Any]]) -> None:
    assert rendered.token_ids == made["input_ids"][0].tolist()
    if "mm_token_type_ids" in made:
        assert rendered.mm_token_type_ids() == made["mm_token_type_ids"][0].tolist()
    if shown:
        assert rendered.multi_modal_data is not None
        items = rendered.multi_modal_data.mm_items["image"]
        for name in ("pixel_values", "image_grid_thw"):
            assert np.array_equal(np.concatenate([item[name] for item in items]), made[name])


def sweep(folder: Path, family: str, number: int, seed: int) -> int:
    """How many images were compared."""
    compared = 0
    for options in options_of(family):
        renderer, template = renderer_of(folder, family, **options), template_of(folder, family, options)
        rng = random.Random(f"{folder.name} {seed} {options}")
        for _ in range(number):
            # Arguments of calls are decoded; transformers' templates write those of JSON text as they are.
            plain, tools = conversation(rng, replace(swept(family, parts=True), text_arguments=False))
            if differs(family, plain, tools):
                continue
            messages, shown = illustrated(rng, plain)
            for gen in (False, True):
                expected = official_text(folder, family, messages, tools, options, gen)
                assert renderer.text(messages, tools=tools, add_generation_prompt=gen) == expected
                by_template = template.text(messages, tools=sorted_for(family, tools), add_generation_prompt=gen)
                assert by_template == expected
                made = processed(folder, family, expected, [image for _, image in shown])
                rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
                check_processed(rendered, made, shown)
            compared += len(shown)
    return compared


@needs_assets
@pairs
def test_random_conversations(folder: Path, family: str) -> None:
    """Text as the template's, ids and arrays as the processor's."""
    assert sweep(folder, family, 10, seed=1) > 10


@needs_assets
@pairs
@pytest.mark.parametrize("text", ["a", "\n", ".", "\u3000"])
def test_what_stands_beside_an_image(folder: Path, family: str, text: str) -> None:
    """White space at the ends, merges over the edge, images side by side."""
    image, other = picture(30, 20), picture(9, 40, seed=1)
    shown: list[list[Any]] = [[text, image], [image, text], [text, image, text, other, text], [image, other], [image]]
    for parts in shown:
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
        chat: Messages = [{"role": "user", "content": content}, {"role": "assistant", "content": text}]
        chat += [{"role": "user", "content": [{"type": "text", "text": text}]}]
        expected = official_text(folder, family, chat, None, {}, True)
        images = [(0, part) for part in parts if not isinstance(part, str)]
        made = processed(folder, family, expected, [image for _, image in images])
        check_processed(renderer_of(folder, family).render(chat, add_generation_prompt=True), made, images)
