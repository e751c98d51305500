"""Audio and video in a content or in a column: refused at every door, with row, message or column, and a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
import niels_gpt as ng
from niels_gpt.errors import MessageError
from niels_gpt.messages import Conversation, normalise
from niels_gpt.renderers.registry import FAMILIES, RendererOptions
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.sources.chat_files import chat_files, from_dataset
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.rejections import Rejected
from tests.renderers.tiny_families import folder_of, renderer_of

# As OpenAI, Qwen, vLLM, Transformers and Gemini write them.
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "OpenAI's audio": ("audio", {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
    "Qwen's audio": ("audio", {"type": "audio", "audio": "a.wav"}),
    "Qwen's audio without a type": ("audio", {"audio": "a.wav"}),
    "an address of audio": ("audio", {"type": "audio_url", "audio_url": {"url": "https://a.b/c.mp3"}}),
    "Transformers' audio": ("audio", {"type": "audio", "path": "a.wav"}),
    "Qwen's video": ("video", {"type": "video", "video": ["1.png", "2.png"], "fps": 2.0}),
    "Qwen's video without a type": ("video", {"video": "a.mp4", "max_pixels": 360}),
    "an address of video": ("video", {"type": "video_url", "video_url": {"url": "https://a.b/c.mp4"}}),
    "a text that has a video": ("video", {"type": "text", "text": "look", "video": "a.mp4"}),
    "Gemini's audio": ("audio", {"inline_data": {"mime_type": "audio/wav", "data": "UklGRg=="}}),
    "OpenAI's file that is a sound": ("audio", {"type": "file", "file": {"filename": "a.MP3", "file_id": "file-1"}}),
    "OpenAI's file as a data URI": ("video", {"type": "file", "file": {"file_data": "data:video/mp4;base64,AAAA"}}),
    "a video that is said to be an image": (
        "video",
        {"type": "image_url", "image_url": {"url": "https://a/b.mp4?c=d"}},
    ),
    "a video of an unknown type": ("video", {"type": "media", "media": "a.mp4"}),
    "Anthropic's form": ("audio", {"type": "document", "source": {"media_type": "audio/wav", "data": "UklGRg=="}}),
    "Gemini's video": ("video", {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://a/b"}}),
}
parts = pytest.mark.parametrize("name", PARTS)
TEXT = {"type": "text", "text": "What is said?"}
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | string) }}{% endfor %}"


def asked(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "s"}, {"role": "user", "content": [TEXT, part]}, said("Nothing.")]


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def sentence(kind: str, where: str = "message 1: content.1") -> str:
    return (
        f"{where} is {kind}; expected a text or an image: no renderer here can count the tokens of {kind}. Remove the "
        "part, put a transcript in its place, or drop the row"
    )


def built_and_diagnosed(file: Path) -> tuple[str, str]:
    """What a build says of the one row that it rejects, and the evidence of the doctor's finding about it."""
    model, out = str(folder_of("chatml")), file.parent / "episodes"
    ng.build(str(file), out, tokenizer=model, renderer_name="chatml", max_bad_rows=1)
    rejected = json.loads((out / "rejected.jsonl").read_text(encoding="utf-8"))
    report = ng.diagnose(str(file), tokenizer=model, renderer=RendererOptions("chatml"))
    (finding,) = [each for each in report.findings if each.rule == "unusable-row"]
    return rejected["detail"], str(finding.evidence)


@parts
def test_messages(name: str) -> None:
    kind, part = PARTS[name]
    with pytest.raises(MessageError) as caught:
        normalise(asked(part))
    assert (caught.value.reason, str(caught.value)) == ("unsupported_media", sentence(kind))


def test_other_parts_are_not_meant() -> None:
    """Nulls that Arrow added, images, files, and texts about sound are no audio."""
    for part in (
        {"type": "text", "text": "audio", "audio": None, "video_url": None},
        {"type": "image", "image": "a.png"},
        {"type": "image_url", "image_url": {"url": "video.png"}},
        {"inline_data": {"mime_type": "image/png", "data": ""}},
        {"file_data": {"mime_type": None}, "text": "x"},
        {"type": "file", "file": {"file_id": "audio"}},
        {"type": "refusal", "refusal": "I cannot play a.mp3"},
        {"type": "tool_result", "content": "saved as a.mp4"},
    ):
        assert normalise(asked(part))[1]["content"][0] == TEXT


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    renderer = renderer_of(family)
    for name in ("OpenAI's audio", "Qwen's video"):
        kind, part = PARTS[name]
        for render in (renderer.render, renderer.render_ids, renderer.text, lambda chat: renderer.render_many([chat])):
            with pytest.raises(MessageError) as caught:
                render(asked(part))
            assert str(caught.value).endswith(sentence(kind))
    assert isinstance(caught.value, MessageError)


@parts
def test_templates(name: str) -> None:
    """A template would write a placeholder, or what Python prints."""
    kind, part = PARTS[name]
    renderer = TemplateRenderer(folder_of("qwen3"), template=CHATML)
    for render in (renderer.render, renderer.text, lambda chat: renderer.render_many([chat])):
        with pytest.raises(MessageError) as caught:
            render(asked(part))
        assert str(caught.value).endswith(sentence(kind))


@parts
def test_rows_of_files(name: str, tmp_path: Path) -> None:
    kind, part = PARTS[name]
    rows = {
        "messages": {"messages": asked(part)},
        "sharegpt": {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": [TEXT, part]}]},
        "prompt_completion": {"prompt": asked(part)[:2], "completion": [said("x")]},
    }
    for form, row in rows.items():
        file = tmp_path / f"{form}.jsonl"
        file.write_text(json.dumps(row) + "\n", encoding="utf-8")
        (read,) = chat_files([file], dialect=form).iterate()
        assert isinstance(read, Rejected)
        assert (read.reason, read.detail) == ("unsupported_media", f"{file}:1: {sentence(kind)}")
    pair = tmp_path / "pairs.jsonl"
    row = {"prompt": asked(part)[:2], "chosen": [said("x")], "rejected": [said("y")]}
    pair.write_text(json.dumps(row) + "\n", encoding="utf-8")
    (read,) = preference_files([str(pair)]).iterate()
    assert isinstance(read, Rejected)
    assert read.reason == "unsupported_media"
    assert sentence(kind) in read.detail


def test_builds_and_the_doctor(tmp_path: Path) -> None:
    """A bad row among good ones: left out of the dataset, counted, and found."""
    kind, part = PARTS["OpenAI's audio"]
    good = [{"role": "user", "content": "a"}, said("b")]
    rows = [good, asked(part), good, good, good]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows), encoding="utf-8")
    rejected, evidence = built_and_diagnosed(file)
    assert rejected == f"{file}:2: {sentence(kind)}"
    assert "content.1 is audio" in evidence


# ---- columns

GOOD = [{"role": "user", "content": "a"}, said("b")]
WAV = {"bytes": b"RIFF", "path": None}
MEDIA_COLUMNS: dict[str, tuple[str, Any, int]] = {
    "videos": ("video", ["a.mp4", "b.mp4"], 2),
    "videos, one path": ("video", "a.mp4", 1),
    "audios": ("audio", ["a.wav"], 1),
    "audio": ("audio", WAV, 1),
    "video": ("video", {"bytes": None, "path": "a.mp4"}, 1),
    "video, a path": ("video", "clips/a.MP4", 1),
    "audio, an address": ("audio", "https://a.b/c.wav?x=1", 1),
}
columns = pytest.mark.parametrize("case", MEDIA_COLUMNS)


def column_sentence(case: str) -> str:
    return (
        f"column {case.partition(',')[0]!r} holds files ({MEDIA_COLUMNS[case][2]}), and the messages name 0 images; "
        'expected images in a content, each as {"type": "image", "image": PATH}, and no audio or video. Put images '
        "there, drop the row, or remove the column where the messages make sense without it"
    )


def row_with(case: str, **row: Any) -> dict[str, Any]:
    return {**row, case.partition(",")[0]: MEDIA_COLUMNS[case][1]}


@columns
def test_columns_of_datasets(case: str) -> None:
    """Chats in all shapes, as `datasets` reads them; the number of the row is told."""
    for row in (
        {"messages": GOOD},
        {"conversations": [{"from": "human", "value": "<video>a"}, {"from": "gpt", "value": "b"}]},
        {"instruction": "a", "output": "b"},
        {"prompt": "a", "completion": "b"},
    ):
        good, read = from_dataset([{**row, "videos": None, "audio": None}, row_with(case, **row)])
        assert isinstance(good, Conversation)
        assert isinstance(read, Rejected)
        assert (read.reason, read.detail) == ("unsupported_media", f"row 1: {column_sentence(case)}")


def test_images_in_a_column_that_no_message_names() -> None:
    placeholder = [{"role": "user", "content": [{"type": "image"}, TEXT]}, said("b")]
    named = [{"role": "user", "content": [{"type": "image", "image": "a.png"}, TEXT]}, said("b")]
    for messages in (GOOD, placeholder):
        (read,) = from_dataset([{"messages": messages, "images": ["a.png"]}])
        assert isinstance(read, Rejected)
        assert read.reason == "images_in_column"
        assert read.detail.startswith(
            "row 0: column 'images' holds files (1), and the messages name 0 images; expected images"
        )
    (read,) = from_dataset([{"messages": named, "images": ["a.png"]}])
    assert isinstance(read, Conversation)
    (read,) = from_dataset([{"messages": named, "images": ["a.png", "b.png"]}])
    assert isinstance(read, Rejected)
    assert "column 'images' holds files (2), and the messages name 1 images; expected images" in read.detail
    llava = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A cat."}]
    for image in ("coco/train2017/000000033471.jpg", "https://a.b/c.PNG?w=3", "data:image/png;base64,AAAA"):
        (read,) = from_dataset([{"id": "1", "image": image, "conversations": llava}])
        assert isinstance(read, Rejected)
        assert "column 'image' holds files (1), and the messages name 0 images" in read.detail


@pytest.mark.parametrize(
    "beside",
    [
        {"images": ["iVBORw0KGgo="]},  # Ollama
        {"images": "a.png"},
        {"image": {"path": "a.png"}},
        {"audio": {"id": "audio_1"}},  # OpenAI
        {"videos": ["a.mp4"]},
        {"video": "clips/a.mp4"},
        {"audio": "https://a.b/c.wav?signed=1"},
        {"image": "data:image/png;base64,AAAA"},
    ],
)
def test_media_beside_a_content(beside: dict[str, Any]) -> None:
    field = next(iter(beside))
    with pytest.raises(MessageError, match=rf"message 1: {field} holds .*; expected images in the content") as caught:
        normalise([said("a"), {"role": "user", "content": "What is it?", **beside}])
    assert caught.value.reason == "unsupported_media"


def test_columns_that_hold_no_media_are_metadata() -> None:
    for value in (
        {"videos": []},
        {"images": None},
        {"video": "My holiday"},
        {"audio": 3},
        {"images": 2},
        {"audios": [None]},
    ):
        (read,) = from_dataset([{"messages": GOOD, **value}])
        assert isinstance(read, Conversation)
