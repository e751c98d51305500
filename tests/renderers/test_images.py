"""Images in conversations: places, facts, batches, bridges, and what is refused."""

from __future__ import annotations

import base64
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, MissingExtra, UsageError
from niels_gpt.renderers.base import (
    MODEL_RENDERER_MAP,
    MULTIMODAL_MODELS,
    MultiModalData,
    PlaceholderRange,
    RenderedTokens,
    build_training_sample,
    build_training_samples,
    build_trajectory_step,
    create_renderer,
    create_renderer_pool,
    is_multimodal,
)
from niels_gpt.renderers.images.loading import image_hash, image_part
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.chats import Messages
from tests.renderers.sweeps import CHATML, both_cuts, chats, nfc, official_ids, served_and_said
from tests.renderers.tiny_families import folder_of, renderer_of
from tests.renderers.tiny_images import (
    WITH_IMAGES,
    MediaProcessor,
    PaddingProcessor,
    illustrated,
    picture,
    png,
    qwen_processor,
    seeing,
    tokens_of,
)

families = pytest.mark.parametrize("family", WITH_IMAGES)


def part(image: Any) -> dict[str, Any]:
    return {"type": "image", "image": image}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def asked(*parts: Any) -> Messages:
    return [{"role": "user", "content": list(parts)}]


def album(family: str, number: int, seed: int = 1, **more: Any) -> list[tuple[Messages, Any, list[tuple[int, Any]]]]:
    """Random conversations, most with images: messages, tools, and of each image its message and itself."""
    rng = random.Random(f"album {family} {seed}")
    made = [(*illustrated(rng, messages), tools) for messages, tools in chats(family, number, seed, **more)]
    return [(messages, tools, shown) for messages, shown, tools in made]


def places(rendered: RenderedTokens) -> list[PlaceholderRange]:
    media = rendered.multi_modal_data
    return [] if media is None else media.mm_placeholders["image"]


def image_id(renderer: Any) -> int:
    return next(token for token, kind in renderer.mm_token_type_id_map.items() if kind == 1)


# ---- where they stand, and what is known of their tokens


def check_places(family: str, renderer: Any, rendered: RenderedTokens, shown: list[tuple[int, Any]]) -> None:
    """The ranges are the images' tokens, no more and no less, each as many as the processor says."""
    token, ids = image_id(renderer), np.array(rendered.token_ids)
    assert [place.length for place in places(rendered)] == [tokens_of(family, image) for _, image in shown]
    covered = np.zeros(len(ids), dtype=bool)
    for place, (index, _) in zip(places(rendered), shown, strict=True):
        inside = slice(place.offset, place.offset + place.length)
        assert not covered[inside].any()
        covered[inside] = True
        assert set(rendered.message_indices[inside]) == {index}
        assert all(rendered.is_content[inside])
        assert not any(rendered.sampled_mask[inside])
        assert not rendered.is_content[place.offset - 1]  # what opens and closes it is the template's
        assert not rendered.is_content[place.offset + place.length]
    assert np.array_equal(ids == token, covered)
    assert rendered.mm_token_type_ids() == covered.astype(int).tolist()
    if not shown:
        assert rendered.multi_modal_data is None
        return
    media = rendered.multi_modal_data
    assert media is not None
    assert media.mm_hashes == {"image": [image_hash(image) for _, image in shown]}
    for item, place in zip(media.mm_items["image"], places(rendered), strict=True):
        assert item["image_grid_thw"].shape == (1, 3)
        assert item["image_grid_thw"].prod() == 4 * place.length == len(item["pixel_values"])


@both_cuts
@pytest.mark.parametrize("options", [(), (("add_vision_id", True),)], ids=["defaults", "counted"])
@families
def test_random_conversations(family: str, options: tuple[tuple[str, Any], ...], split: bool) -> None:
    """Ids are those of the text, with the token of every image as often as its processor says."""
    if options and "add_vision_id" not in FAMILIES[family].config_class.model_fields:
        pytest.skip("no such option")
    renderer = seeing(family, *options, split=split)
    for messages, tools, shown in album(family, 25):
        for gen in (False, True):
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
            check_places(family, renderer, rendered, shown)
            text = renderer.text(messages, tools=tools, add_generation_prompt=gen)
            numbers = iter([place.length for place in places(rendered)])
            token = image_id(renderer)
            expected: list[int] = []
            for found in official_ids(family, text, split):
                expected += [found] * (next(numbers) if found == token else 1)
            assert rendered.token_ids == expected
            assert rendered.token_ids == renderer.render_ids(messages, tools=tools, add_generation_prompt=gen)
            assert len(rendered.message_indices) == len(rendered.sampled_mask) == len(rendered.is_content)
            assert nfc(family, text).count(FAMILIES[family].image_tokens[1]) == len(shown)  # type: ignore[attr-defined]


@families
def test_texts_are_rendered_as_without_a_processor(family: str) -> None:
    for messages, tools in chats(family, 15, seed=3):
        assert seeing(family).render(messages, tools=tools) == renderer_of(family).render(messages, tools=tools)


# ---- one as many, here as there


@both_cuts
@families
def test_batches_equal_single_renderings(family: str, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_gpt.renderers.encode.BLOCK", 4)
    renderer = seeing(family, split=split)
    made = album(family, 15, seed=5)
    batch = renderer.render_many([m for m, _, _ in made], tools=[t for _, t, _ in made])
    single = [renderer.render(messages, tools=tools) for messages, tools, _ in made]
    assert list(batch) == single
    assert len(batch.media) == len(made)
    assert int(batch.lengths.sum()) == len(batch.ids) == len(batch.sampled) == len(batch.message_indices)
    for one, other in zip(batch, single, strict=True):
        for left, right in zip(items(one), items(other), strict=True):
            assert left.keys() == right.keys()
            assert all(np.array_equal(left[name], right[name]) for name in left)


def items(rendered: RenderedTokens) -> list[dict[str, Any]]:
    return [] if rendered.multi_modal_data is None else rendered.multi_modal_data.mm_items["image"]


def test_a_batch_names_the_conversation_whose_image_is_bad() -> None:
    good, bad = asked(part(picture())), asked(words("a"), part(b"nothing"))
    with pytest.raises(MessageError, match=r"conversation 1: message 0: content\.1 is no image that Pillow can read"):
        seeing("qwen3-vl").render_many([good, bad])


def test_an_image_is_processed_once() -> None:
    processor = PaddingProcessor()
    renderer: Any = create_renderer(folder_of("kimi-k2.5"), "kimi-k2.5", processor=processor)
    chat = asked(part(picture()), part(picture(seed=1)), part(picture()))
    first = renderer.render(chat)
    assert processor.calls == 2
    assert renderer.render(asked(part(png(picture())), part(picture(seed=1)), part(picture()))) == first
    assert processor.calls == 2
    renderer.render(asked(part(picture(seed=2))))
    assert processor.calls == 3
    items(first)[0]["mine"] = 1  # the dict is the caller's, the arrays are shared
    assert "mine" not in items(first)[2]


# ---- pools, and how renderers are made


def test_pools() -> None:
    processor = PaddingProcessor()
    pool = create_renderer_pool(str(folder_of("kimi-k2.5")), "kimi-k2.5", size=3, processor=processor)
    alone, made = seeing("kimi-k2.5"), album("kimi-k2.5", 10, seed=7)
    assert is_multimodal(pool)
    assert dict(pool.mm_token_type_id_map) == alone.mm_token_type_id_map
    expected = [alone.render(messages, tools=tools) for messages, tools, _ in made]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda row: pool.render(row[0], tools=row[1]), made)) == expected
    chat = asked(part(picture(40, 40, seed=9)))
    before = processor.calls
    for _ in range(6):
        first = pool.render(chat, add_generation_prompt=True)
    assert processor.calls == before + 1  # what one renderer processed, the others have
    stop = alone.get_stop_token_ids()[:1]
    bridged = pool.bridge_to_next_turn(
        first.token_ids, stop, asked(words("x")), previous_multi_modal_data=first.multi_modal_data
    )
    assert bridged is not None
    assert places(bridged) == places(first)


def test_which_models_take_images() -> None:
    assert WITH_IMAGES == ["qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8", "kimi-k2.5"]
    assert not is_multimodal(TemplateRenderer(folder_of("qwen3-vl"), template=CHATML))
    assert {MODEL_RENDERER_MAP[name] for name in MULTIMODAL_MODELS} == set(WITH_IMAGES)
    assert set(MULTIMODAL_MODELS.values()) == {frozenset({"image"})}
    assert MULTIMODAL_MODELS["Qwen/Qwen3-VL-8B-Instruct"] == {"image"}
    ids = renderer_of("qwen3-vl").encoder.added_ids
    assert seeing("qwen3-vl").mm_token_type_id_map == {ids["<|image_pad|>"]: 1, ids["<|video_pad|>"]: 2}


def test_processors_that_are_refused() -> None:
    with pytest.raises(UsageError, match=r"qwen3 takes no images, so no processor; expected one of qwen3-vl, qwen3\.5"):
        create_renderer(folder_of("qwen3"), "qwen3", processor=qwen_processor())
    with pytest.raises(UsageError, match="template takes no images"):
        create_renderer(folder_of("qwen3"), "template", processor=qwen_processor())
    with pytest.raises(UsageError, match=r"processor is a str, which counts no tokens .* AutoImageProcessor"):
        create_renderer(folder_of("qwen3-vl"), "qwen3-vl", processor="Qwen/Qwen3-VL-8B-Instruct")


# ---- training


@families
def test_training_samples(family: str) -> None:
    """An image is context: it is trained by no rule but the one that trains everything."""
    renderer = seeing(family)
    for messages, tools, shown in album(family, 12, seed=8, ends_with="assistant"):
        rendered = renderer.render(messages, tools=tools)
        ids, mask = build_training_sample(renderer, messages, tools=tools)
        assert ids == rendered.token_ids
        assert not any(trained for token, trained in zip(ids, mask, strict=True) if token == image_id(renderer))
        for sample, trained in build_training_samples(renderer, messages, tools=tools):
            assert len(sample) == len(trained)
        step = build_trajectory_step(
            renderer, messages[:-1] or messages, messages[-1:] if messages[:-1] else [], tools=tools
        )
        assert ("multi_modal_data" in step) == bool(shown)
        if shown:
            assert step["multi_modal_data"] == rendered.multi_modal_data
        assert sum(rendered.tokens_per_message()) == sum(owner >= 0 for owner in rendered.message_indices)


# ---- bridges


@families
def test_bridges_are_what_rendering_gives(family: str) -> None:
    """With images in the prompt before, in the new messages, in both; whatever the template keeps of history."""
    equal = 0
    kept = ("preserve_all_thinking", True)
    for options in ((), (kept,), (kept, ("add_vision_id", True))):
        if len(options) > 1 and family == "kimi-k2.5":
            continue
        renderer = seeing(family, *options)
        for messages, tools, _ in album(family, 30, seed=9, ends_with="assistant"):
            if len(messages) < 2 or messages[-1].get("tool_calls"):
                continue
            prompt, said = served_and_said(renderer, messages, tools)
            before = renderer.render(messages[:-1], tools=tools, add_generation_prompt=True).multi_modal_data
            for new in (asked(words(" b"), part(picture(31, 9)), words("c")), asked(words("b"))):
                bridged = renderer.bridge_to_next_turn(prompt, said, new, tools=tools, previous_multi_modal_data=before)
                assert bridged is not None
                assert bridged.token_ids[: len(prompt) + len(said)] == prompt + said
                count = sum(place.length for place in places(bridged))
                assert count == bridged.token_ids.count(image_id(renderer))
                for place in places(bridged):
                    ids = bridged.token_ids[place.offset : place.offset + place.length]
                    assert set(ids) == {image_id(renderer)}
                later = places(bridged)[0 if before is None else len(before.mm_placeholders["image"]) :]
                assert {bridged.message_indices[place.offset] for place in later} <= {0}
                whole = renderer.render([*messages, *new], tools=tools, add_generation_prompt=True)
                if whole.token_ids == bridged.token_ids:  # not where a text merges with what is before it
                    equal += 1
                    assert whole.multi_modal_data == bridged.multi_modal_data
                    assert len(items(whole)) == len(items(bridged))
    assert equal > 20


# ---- what cannot be forged


@pytest.mark.parametrize("split", [True, False])
@families
def test_texts_never_become_images(family: str, split: bool) -> None:
    renderer = seeing(family, split=split)
    opens, token, closes = FAMILIES[family].image_tokens  # type: ignore[attr-defined]
    forged = asked(words(f"{opens}{token}{closes}"), part(picture()), words(token * 3))
    rendered = renderer.render(forged)
    check_places(family, renderer, rendered, [(0, picture())])
    assert not renderer.render(asked(words(token))).token_ids.count(image_id(renderer))
    assert renderer.render(asked(words(token))).multi_modal_data is None
    with pytest.raises(MessageError, match=r"message 0 spells the control token"):
        seeing(family, ("special_tokens_in_content", "error")).render(forged)
    seeing(family, ("special_tokens_in_content", "error")).render(asked(part(picture())))
    with pytest.raises(MessageError) as caught:
        seeing(family, ("special_tokens_in_content", "parse")).render(forged)
    assert caught.value.reason == "placeholder_in_content"


# ---- at the door


def test_shapes_of_parts(tmp_path: Path) -> None:
    image = picture(19, 23)
    file, odd = tmp_path / "a.png", tmp_path / "a b%20ä.png"
    for path in (file, odd):
        path.write_bytes(png(image))
    code = base64.b64encode(png(image)).decode()
    data = f"data:image/png;base64,{code}"
    parts = [
        *(
            {"type": "image", "image": held}
            for held in (image, png(image), str(file), file, str(odd), data, file.as_uri())
        ),
        *({"type": "image", name: str(file)} for name in ("url", "path")),
        {"type": "image", "image": odd.as_uri()},
        {"type": "image", "base64": code},
        {"type": "image", "base64": code[:10] + "\n" + code[10:]},
        {"type": "image", "image": {"bytes": png(image), "path": None}},
        {"type": "image", "image": {"bytes": None, "path": str(file)}},
        *(
            {"type": "image_url", "image_url": held}
            for held in (data, {"url": data}, {"url": str(file), "detail": "low"})
        ),
        {"type": "input_image", "image_url": data},
        {"type": "image", "image": image, "text": None, "image_url": None},
        {"image": image},
        {"image_url": {"url": data}},
    ]
    renderer = seeing("qwen3-vl")
    expected = renderer.render(asked(words("a"), part(image)))
    for given_part in parts:
        assert renderer.render(asked(words("a"), given_part)) == expected, given_part
    assert image_part(words("a"), 0, 0) is None


HALF = png(picture(50, 50))[:400]
BROKEN: dict[str, tuple[Any, str, str]] = {
    "no image": (
        {"type": "image"},
        "unsupported_content",
        r"message 0: content\.1 is of type 'image' and holds no ima",
    ),
    "no url": (
        {"type": "image_url", "image_url": {}},
        "unsupported_content",
        r"content\.1 is of type 'image_url' and holds",
    ),
    "a video": (
        {"type": "video", "video": "a.mp4"},
        "unsupported_media",
        r"content\.1 is video; expected a text or an image",
    ),
    "no type": ({"text": "x"}, "unsupported_content", "type None"),
    "an array": (part(np.zeros((4, 4, 3), np.uint8)), "wrong_type", r"content\.1 is a ndarray; expected .*fromarray"),
    "a number": (part(3), "wrong_type", r"content\.1 is a int; expected a PIL image"),
    "no file": (part("gone.png"), "broken_image", r"content\.1: no such file: 'gone\.png'"),
    "a url": (
        part("https://a.b/c.png"),
        "image_on_network",
        r"is at 'https://a\.b/c\.png'; nothing is fetched .*Download",
    ),
    "broken bytes": (part(b"no image"), "broken_image", "no image that Pillow can read"),
    "half a file": (part(HALF), "broken_image", "no image that Pillow can read"),
    "a broken URI": (part("data:image/png;base64,???"), "broken_image", r"content\.1 is not base64"),
    "a URI of text": (part("data:image/svg+xml,<svg/>"), "broken_image", "expected data:image/png;base64"),
    "too long and thin": (
        part(picture(900, 1)),
        "image_refused",
        r"900 x 1 pixels, mode RGB \(ValueError: absolute asp",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_bad_images(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broken, reason, message = BROKEN[case]
    for render in (seeing("qwen3-vl").render, seeing("qwen3.5").render_ids):
        with pytest.raises(MessageError, match=message) as caught:
            render(asked(words("a"), broken))
        assert caught.value.reason == reason
        assert "message 0" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


@families
def test_roles_that_show_nothing(family: str) -> None:
    """A model writes no images, and Qwen's system messages hold none."""
    roles = ("assistant",) if family == "kimi-k2.5" else ("assistant", "system")
    for role in roles:
        chat = [{"role": role, "content": [words("a"), part(picture())]}, *asked(words("b"))]
        with pytest.raises(MessageError, match=f"message 0: content.1 is of type 'image'; .* of role '{role}'"):
            seeing(family).render(chat)


@families
def test_images_without_a_processor(family: str) -> None:
    chat = [*asked(words("a")), {"role": "user", "content": [words("b"), part(picture())]}]
    for render in (renderer_of(family).render, renderer_of(family).render_ids):
        with pytest.raises(MessageError, match=r"message 1: content\.1 is an image, .*AutoImageProcessor") as caught:
            render(chat)
        assert caught.value.reason == "no_processor"
    with pytest.raises(MessageError, match="conversation 0: message 1"):
        renderer_of(family).render_many([chat])


def test_families_without_images() -> None:
    for family in set(FAMILIES) - set(WITH_IMAGES):
        with pytest.raises(MessageError, match=r"content\.1 is of type 'image'; expected a text part") as caught:
            renderer_of(family).render(asked(words("a"), part(picture())))
        assert caught.value.reason == "unsupported_content"


def test_templates_show_images_and_make_no_ids_of_them() -> None:
    source = (
        "{% for m in messages %}{% for c in m.content %}{{ '<|image_pad|>' if c.type == 'image' else c.text }}"
        "{% endfor %}<|im_end|>{% endfor %}"
    )
    renderer = TemplateRenderer(folder_of("qwen3-vl"), template=source)
    chat = asked(words("a"), part(picture()))
    assert renderer.text(chat) == "a<|image_pad|><|im_end|>"
    for render in (renderer.render, renderer.render_ids, lambda chat: renderer.render_many([chat])):
        with pytest.raises(MessageError, match=r"message 0: content\.1 is an image; a template says where"):
            render(chat)
    assert renderer.bridge_to_next_turn([1], [2], chat) is None


def test_pillow_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"needs Pillow.*pip install 'niels-gpt\[vision\]'"):
        seeing("qwen3-vl").render(asked(part(b"x")))
    assert seeing("qwen3-vl").render(asked(words("a"))).token_ids


class Whole:
    """As `AutoProcessor` gives it: the image processor is within."""

    def __init__(self, image_processor: Any) -> None:
        self.image_processor = image_processor


def test_interfaces_of_processors() -> None:
    chat = asked(part(picture(33, 17)), words("a"))
    folder = folder_of("kimi-k2.5")
    expected = create_renderer(folder, "kimi-k2.5", processor=PaddingProcessor()).render(chat)
    for processor in (Whole(PaddingProcessor()), MediaProcessor(), Whole(MediaProcessor())):
        assert create_renderer(folder, "kimi-k2.5", processor=processor).render(chat) == expected
    (item,) = items(create_renderer(folder, "kimi-k2.5", processor=MediaProcessor()).render(chat))
    assert set(item) == {"pixel_values", "grid_thws"}


def test_bridges_without_the_images_of_the_prompt_are_refused() -> None:
    renderer = seeing("qwen3-vl")
    first = renderer.render(asked(part(picture())), add_generation_prompt=True)
    stop, new = renderer.get_stop_token_ids()[:1], asked(words("x"))
    media = first.multi_modal_data
    place = places(first)[0]
    fewer = MultiModalData(
        media.mm_hashes, {"image": [PlaceholderRange(place.offset, place.length - 1)]}, media.mm_items
    )
    twice = media.followed_by(media)
    beyond = media.shifted(len(first.token_ids))

    def bridged(completion: list[int], previous: Any) -> Any:
        return renderer.bridge_to_next_turn(first.token_ids, completion, new, previous_multi_modal_data=previous)

    assert bridged(stop, media) is not None
    for wrong in (None, MultiModalData(), fewer, twice, beyond, media.shifted(1)):
        assert bridged(stop, wrong) is None
    assert bridged([image_id(renderer), *stop], media) is None  # the model wrote a placeholder: nothing is behind it
