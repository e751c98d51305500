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
from niels_gpt.sources.chat_files import chat_files, from_dataset, nth_conversation
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.preference_files import preference_files
from tests.renderers.tiny_families import folder_of, renderer_of

Part = dict[str, Any]
# As OpenAI, Qwen, vLLM, Transformers, Anthropic and Gemini write them.
PARTS: list[tuple[str, Part]] = [
    ("audio", {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
    ("audio", {"audio": "a.wav"}),
    ("audio", {"type": "audio_url", "audio_url": {"url": "https://a.b/c.mp3"}}),
    ("audio", {"type": "audio", "path": "a.wav"}),
    ("video", {"type": "video", "video": ["1.png", "2.png"], "fps": 2.0}),
    ("video", {"type": "video_url", "video_url": {"url": "https://a.b/c.mp4"}}),
    ("video", {"type": "text", "text": "look", "video": "a.mp4"}),
    ("audio", {"inline_data": {"mime_type": "audio/wav", "data": "UklGRg=="}}),
    ("audio", {"type": "file", "file": {"filename": "a.MP3", "file_id": "file-1"}}),
    ("video", {"type": "file", "file": {"file_data": "data:video/mp4;base64,AAAA"}}),
    ("video", {"type": "image_url", "image_url": {"url": "https://a/b.mp4?c=d"}}),
    ("video", {"type": "media", "media": "a.mp4"}),
    ("audio", {"type": "document", "source": {"media_type": "audio/wav", "data": "UklGRg=="}}),
    ("video", {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://a/b"}}),
]
TEXT = {"type": "text", "text": "What is heard?"}
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | string) }}{% endfor %}"
GOOD = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def asked(part: Part) -> list[Part]:
    return [{"role": "system", "content": "s"}, {"role": "user", "content": [TEXT, part]}, GOOD[1]]


def sentence(kind: str, where: str = "message 1: content.1") -> str:
    return (
        f"{where} is {kind}; expected a text or an image: no renderer here can count the tokens of {kind}. Remove the "
        "part, put a transcript in its place, or drop the row"
    )


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_parts_are_refused_in_messages_templates_and_rows(kind: str, part: Part, tmp_path: Path) -> None:
    template = TemplateRenderer(folder_of("qwen3"), template=CHATML)
    for door in (normalise, template.render, template.text, lambda chat: template.render_many([chat])):
        with pytest.raises(MessageError) as caught:
            door(asked(part))  # type: ignore[operator]
        assert caught.value.reason == "unsupported_media"
        assert str(caught.value).endswith(sentence(kind))
    rows = {
        "messages": {"messages": asked(part)},
        "sharegpt": {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": [TEXT, part]}]},
        "prompt_completion": {"prompt": asked(part)[:2], "completion": GOOD[1:]},
        "preference": {"prompt": asked(part)[:2], "chosen": GOOD[1:], "rejected": GOOD[1:]},
    }
    file = tmp_path / "rows.jsonl"
    for form, row in rows.items():
        file.write_text(json.dumps(row) + "\n", encoding="utf-8")
        (read,) = preference_files([file]) if form == "preference" else chat_files([file], dialect=form)
        assert isinstance(read, Rejected)
        assert (read.reason, read.detail.endswith(sentence(kind))) == ("unsupported_media", True), read.detail


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_refused_by_every_family(family: str) -> None:
    renderer = renderer_of(family)
    for kind, part in (PARTS[0], PARTS[4]):
        for render in (renderer.render, renderer.render_ids, renderer.text, lambda chat: renderer.render_many([chat])):
            with pytest.raises(MessageError) as caught:
                render(asked(part))
            assert str(caught.value).endswith(sentence(kind))


def test_other_parts_and_fields_are_not_meant() -> None:
    """Nulls that Arrow added, images, files, and texts about sound are no audio."""
    for part in (
        {"type": "text", "text": "see a.wav", "audio": None, "video_url": None},
        {"type": "image", "image": "a.png"},
        {"type": "image_url", "image_url": {"url": "video.png"}},
        {"inline_data": {"mime_type": "image/png", "data": ""}},
        {"file_data": {"mime_type": None}, "text": "x"},
        {"type": "file", "file": {"file_id": "audio"}},
        {"type": "tool_result", "content": "saved as a.mp4"},
    ):
        assert normalise(asked(part))[1]["content"][0] == TEXT
    for beside in ({"images": []}, {"images": None}, {"audio": 3}, {"image": "a caption"}, {"video": "My holiday"}):
        assert normalise([{"role": "user", "content": "a", **beside}])[0]["content"] == "a"


@pytest.mark.parametrize(
    "beside",
    [
        {"images": ["iVBORw0KGgo="]},  # Ollama
        {"image": {"path": "a.png"}},
        {"audio": {"id": "audio_1"}},  # OpenAI
        {"video": "clips/a.mp4"},
        {"audio": "https://a.b/c.wav?signed=1"},
        {"image": "data:image/png;base64,AAAA"},
    ],
)
def test_media_beside_a_content_is_refused(beside: Part) -> None:
    field = next(iter(beside))
    with pytest.raises(MessageError, match=rf"message 1: {field} holds .*; expected images in the content") as caught:
        normalise([GOOD[1], {"role": "user", "content": "What is it?", **beside}])
    assert caught.value.reason == "unsupported_media"


# ---- columns


@pytest.mark.parametrize(
    ("column", "value", "files"),
    [
        ("videos", ["a.mp4", "b.mp4"], 2),
        ("videos", "a.mp4", 1),
        ("audio", {"bytes": b"RIFF", "path": None}, 1),
        ("video", "clips/a.MP4", 1),
        ("audio", "https://a.b/c.wav?x=1", 1),
        ("image", "data:image/png;base64,AAAA", 1),  # LLaVA
    ],
)
def test_columns_of_media_are_refused_in_every_shape(column: str, value: Any, files: int) -> None:
    for row in (
        {"messages": GOOD},
        {"conversations": [{"from": "human", "value": "<video>a"}, {"from": "gpt", "value": "b"}]},
        {"instruction": "a", "output": "b"},
        {"prompt": "a", "completion": "b"},
    ):
        good, read = from_dataset([{**row, "videos": None, "images": [], "audio": 3}, {**row, column: value}])
        assert isinstance(good, Conversation)
        assert isinstance(read, Rejected)
        assert read.reason == ("images_in_column" if column == "image" else "unsupported_media")
        assert read.detail.startswith(f"row 1: column {column!r} holds files ({files}), and the messages name 0 images")


def test_images_in_a_column_are_as_many_as_the_messages_name() -> None:
    named = [{"role": "user", "content": [{"type": "image", "image": "a.png"}, TEXT]}, GOOD[1]]
    placeholder = [{"role": "user", "content": [{"type": "image"}, TEXT]}, GOOD[1]]
    cases = ((GOOD, ["a.png"], 0), (placeholder, ["a.png"], 0), (named, ["a.png"], None), (named, ["a.png"] * 2, 1))
    for messages, images, found in cases:
        (read,) = from_dataset([{"messages": messages, "images": images}])
        assert isinstance(read, Rejected) == (found is not None)
        if isinstance(read, Rejected):
            assert f"column 'images' holds files ({len(images)}), and the messages name {found} images" in read.detail


def test_builds_and_the_doctor_name_the_row(tmp_path: Path) -> None:
    """A bad row among good ones: left out of the dataset, counted, and found."""
    model, file = str(folder_of("chatml")), tmp_path / "chats.jsonl"
    bad: tuple[Part, ...] = ({"messages": asked(PARTS[0][1])}, {"messages": GOOD, "videos": ["a.mp4"]})
    for number, (row, says) in enumerate(zip(bad, ("content.1 is audio", "holds files (1)"), strict=True)):
        rows, out = [{"messages": GOOD}, row, *[{"messages": GOOD}] * 3], tmp_path / f"episodes{number}"
        file.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
        ng.build(str(file), out, tokenizer=model, renderer="chatml", max_bad_rows=1)
        rejected = json.loads((out / "rejected.jsonl").read_text(encoding="utf-8"))
        assert rejected["detail"].startswith(f"{file}:2: ")
        assert says in rejected["detail"]
        report = ng.diagnose(str(file), tokenizer=model, renderer=RendererOptions("chatml"))
        (finding,) = [each for each in report.findings if each.rule == "unusable-row"]
        assert says in str(finding.evidence)
    with pytest.raises(MessageError, match=r"chats\.jsonl:2: column"):
        nth_conversation(file, 1)
