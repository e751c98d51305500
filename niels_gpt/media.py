"""Sounds and films in messages: what a provider calls them, which texts are their files, and how they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError

# How providers call a part with a sound or a film; as `type`, or as the field that holds it.
_KINDS: Final = {
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}
_MIME_TYPES: Final = ("mime_type", "mimeType", "media_type")
# Of a part: these hold texts, which may well speak of a film's file.
_TEXT_FIELDS: Final = frozenset({"type", "text", "thinking", "content", "refusal", "output"})
_SUFFIXES: Final = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "audio": (".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a"),
    "video": (".mp4", ".mov", ".webm", ".avi", ".mkv"),
}


def refuse_media(part: object, where: str) -> None:
    """Refuse a part of a content that is audio or video, as OpenAI, Qwen or Gemini write it.

    No renderer knows how many tokens they take, and a template would write a placeholder, or nothing.

    Raises:
        MessageError: `unsupported_media`, naming `where`.
    """
    kind = _media_of(part) if isinstance(part, Mapping) else ""
    if kind:
        raise MessageError(
            "unsupported_media",
            f"{where} is {kind}; expected a text or an image: no renderer here can count the tokens of {kind}. Remove "
            "the part, put a transcript in its place, or drop the row",
        )


def _media_of(part: Mapping[Any, Any]) -> str:
    """The kind of a part: "audio", "video", or "" for any other part."""
    # {"type": "input_audio", ...}, or without a type {"input_audio": ...}.
    for name in (part.get("type"), *part):
        if isinstance(name, str) and name in _KINDS:
            return _KINDS[name]
    for name, value in part.items():
        found = "" if name in _TEXT_FIELDS else _kind_of_value(value)
        if found in ("audio", "video"):
            return found
    return ""


def _kind_of_value(value: object) -> str:
    """What a field of a part holds: a text that is a file's, or an object that names its MIME type or its file."""
    if isinstance(value, str):
        return kind_of_file(value)
    if not isinstance(value, Mapping):
        return ""
    mime = next((value[name] for name in _MIME_TYPES if isinstance(value.get(name), str)), "")
    return mime.partition("/")[0].lower() or next(
        (kind for held in value.values() if isinstance(held, str) and (kind := kind_of_file(held))), ""
    )


def kind_of_file(text: str) -> str:
    """What file a text is the path or address of, or itself as a data URI: "image", "audio", "video" or ""."""
    if text[:5].lower() == "data:":
        kind = text[5:11].partition("/")[0].lower()
        return kind if kind in _SUFFIXES else ""
    # A signed address ends in its query, not in the suffix; the name of a local file may have a question mark.
    path = (text.partition("?")[0] if "://" in text[:16] else text)[-8:].lower()
    return next((kind for kind, suffixes in _SUFFIXES.items() if path.endswith(suffixes)), "")
