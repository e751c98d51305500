"""Small images, and processors of them: Transformers' own with small sizes, and two with Kimi's interfaces."""

from __future__ import annotations

import io
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("PIL")
from PIL import Image

from niels_gpt.renderers.image_family import TakesImages
from niels_gpt.renderers.registry import FAMILIES, config_of
from tests.memory import shared
from tests.renderers.chats import Messages, plain_text
from tests.renderers.tiny_families import folder_of

WITH_IMAGES = [name for name, family in FAMILIES.items() if issubclass(family, TakesImages)]


def picture(width: int = 20, height: int = 12, seed: int = 0, mode: str = "RGB") -> Any:
    """Coloured noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def png(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@cache
def qwen_processor() -> Any:
    """Qwen's image processor of Transformers: patches of 4 x 4, four to a token, 1 to 64 tokens."""
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    return module.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 4096}
    )


class PaddingProcessor:
    """As Kimi's of Transformers (which needs torchvision): images are padded to whole tokens, never made larger."""

    patch_size, merge_size = 4, 2

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, images: Any, return_tensors: str | None = None) -> dict[str, Any]:
        self.calls += 1
        (image,) = images
        pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
        step = self.patch_size * self.merge_size
        high, wide = (-(-side // step) * self.merge_size for side in pixels.shape[:2])
        padded = np.zeros((high * self.patch_size, wide * self.patch_size, 3), np.float32)
        padded[: pixels.shape[0], : pixels.shape[1]] = pixels
        patches = padded.reshape(high, self.patch_size, wide, self.patch_size, 3).transpose(0, 2, 4, 1, 3)
        return {
            "pixel_values": patches.reshape(high * wide, 3, self.patch_size, self.patch_size),
            "image_grid_thw": np.array([[1, high, wide]]),
        }


class MediaProcessor:
    """The interface of the processor in Kimi's repositories."""

    def media_tokens_calculator(self, media: Any) -> int:
        assert media["type"] == "image"
        made = PaddingProcessor()([media["image"]])
        return int(made["image_grid_thw"].prod()) // 4

    def preprocess(self, medias: Any, return_tensors: str | None = None) -> dict[str, Any]:
        (media,) = medias
        made = PaddingProcessor()([media["image"]])
        return {"pixel_values": made["pixel_values"], "grid_thws": made["image_grid_thw"]}


def processor_of(family: str) -> Any:
    return PaddingProcessor() if family == "kimi-k2.5" else qwen_processor()


@shared
def seeing(family: str, *options: tuple[str, Any], split: bool = True) -> Any:
    """A renderer with a processor; tests share it."""
    config: Any = config_of({"name": family, **dict(options)})
    folder = folder_of(family, split=split)
    return FAMILIES[family](folder, config, processor=processor_of(family))  # type: ignore[call-arg]


def tokens_of(family: str, image: Any) -> int:
    """How many tokens an image has, asked of the processor alone."""
    made = processor_of(family)(images=[image], return_tensors="np")
    return int(np.asarray(made["image_grid_thw"]).prod()) // 4


def illustrated(rng: random.Random, messages: Messages) -> tuple[Messages, list[tuple[int, Any]]]:
    """The conversation with images among what users and tools say, and of each image its message and itself."""
    made: Messages = []
    shown: list[tuple[int, Any]] = []
    for index, message in enumerate(messages):
        if message["role"] in ("user", "tool") and rng.random() < 0.5:
            content = message["content"]
            parts = content if isinstance(content, list) else [{"type": "text", "text": plain_text(content)}]
            parts = [dict(part) for part in parts]
            for place in sorted(rng.choices(range(len(parts) + 1), k=rng.choice((1, 1, 2))), reverse=True):
                image = picture(rng.randint(3, 60), rng.randint(3, 60), rng.randint(0, 3))
                parts.insert(
                    place, rng.choice(({"type": "image", "image": image}, {"type": "image_url", "image_url": image}))
                )
            held = [part.get("image") or part.get("image_url") for part in parts if part["type"] != "text"]
            shown += [(index, image) for image in held]
            message = message | {"content": parts}
        made.append(message)
    return made, shown
