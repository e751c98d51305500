"""The encoder of conversations for whatever a caller has: an encoder, a renderer, or a tokenizer with our sentinels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from niels_gpt.builds.encoder_protocol import CacheTokenizer, ConversationEncoder
from niels_gpt.builds.images import ImageFolder
from niels_gpt.builds.renderer_encoder import KnownRenderer, RendererEncoder, RenderingPolicy, Samples
from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.loss import LossOn, Preset
from niels_gpt.renderers.protocol import Renders


def as_encoder(
    encoder: Any,
    on: LossOn | Preset | None = None,
    policy: RenderingPolicy | None = None,
    samples: Samples = "per-conversation",
    images: str | Path | None = None,
) -> ConversationEncoder:
    """An encoder from an encoder, a renderer, or a tokenizer with the four sentinels.

    Args:
        on: for renderers: which tokens are trained: a `LossOn`, or the name of its preset.
        policy: for renderers: whether conversations are used whose rendering is incomplete.
        samples: for renderers: how many samples a conversation makes.
        images: for renderers with a processor: the folder of the images in conversations.

    Raises:
        UsageError: `encoder` is none of these; it is an encoder, which has a policy, and another one is passed; samples
            per turn are wanted without a renderer; or images without a folder, without a processor, or in samples per
            turn.
    """
    check_samples(samples)
    folder = None if images is None else _image_folder(encoder, Path(images), samples)
    # From the most specific protocol to the least: what a caller has may follow several of them.
    if isinstance(encoder, ConversationEncoder):
        if samples != "per-conversation":
            raise UsageError(f"samples are {samples}, and {type(encoder).__name__} is an encoder; pass its renderer")
        # The encoder's policy alone decides; another one that was passed would have no effect.
        own = encoder.policy if isinstance(encoder, RendererEncoder) else RenderingPolicy()
        given, default = policy or RenderingPolicy(), RenderingPolicy()
        if given != default and given != RenderingPolicy(own.allow_partial, given.on_unwritten and own.on_unwritten):
            raise UsageError(
                f"found allow_partial={given.allow_partial} and on_unwritten={given.on_unwritten!r} beside a "
                f"{type(encoder).__name__}, which has its own; pass its renderer, or make it with "
                "as_encoder(renderer, policy=RenderingPolicy(...))"
            )
        return encoder
    if isinstance(encoder, CacheTokenizer):
        if samples == "per-turn":  # "auto" is one: the sentinel format never rewrites history
            raise UsageError("samples are per-turn, and our own sentinels make one a conversation; pass a renderer")
        return SentinelEncoder(encoder)
    on, policy = LossOn.of(on), policy or RenderingPolicy()
    if isinstance(encoder, KnownRenderer):
        known: dict[str, Any] = {"vocab_size": encoder.vocab_size, "fingerprints": encoder.fingerprints}
    elif isinstance(encoder, Renders):
        known = {}
    else:
        raise UsageError(
            f"{type(encoder).__name__} does not turn conversations into ids; expected a renderer (render(messages)), "
            "or a tokenizer with encode(), special_token_ids() and vocab_size"
        )
    return RendererEncoder(encoder, on=on, policy=policy, images=folder, samples=samples, **known)


def check_samples(samples: str) -> None:
    """Raise `UsageError` unless this is one of `Samples`."""
    if samples not in get_args(Samples):
        near = did_you_mean(samples, get_args(Samples))
        raise UsageError(f"samples is {samples!r}; expected one of {', '.join(get_args(Samples))}{near}")


def refuse_image_folder(encoder: ConversationEncoder, kind: str) -> None:
    """Raise `UsageError` for an encoder with images, which a dataset of this kind has no place for."""
    if isinstance(encoder, RendererEncoder) and encoder.images is not None:
        raise UsageError(f"{kind} hold no images, and the encoder has the folder {encoder.images.folder}; leave it out")


def _image_folder(renderer: Any, folder: Path, samples: Samples) -> ImageFolder:
    # Not in the protocol of renderers: those that read images have one.
    processor = getattr(renderer, "processor", None)
    if processor is None:
        raise UsageError(
            f"images are in {folder}, and {type(renderer).__name__} has no image processor; pass a renderer of a model "
            "with images, made with processor=transformers.AutoImageProcessor.from_pretrained(MODEL)"
        )
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; expected the folder of the conversations' images")
    if samples != "per-conversation":
        raise UsageError(f"samples are {samples}, and conversations with images make one sample; leave samples out")
    return ImageFolder(folder, processor)
