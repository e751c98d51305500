"""Conversations of which only the texts are encoded: what is known of a shape, where it is cut, and where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("gigatoken")

from niels_gpt.renderers import filling
from niels_gpt.renderers.alone import encode_alone
from niels_gpt.renderers.apart import Apart
from niels_gpt.renderers.filling import Shape
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.rendered import BODY, SCAFFOLD
from niels_gpt.renderers.runs import _runs, apart_of
from niels_gpt.renderers.script import Script
from niels_gpt.tokenizer.seams import SEAM, Seams
from tests.renderers.chats import TOOLS
from tests.renderers.test_shapes import ask, called, new, same, without_shapes
from tests.renderers.tiny_families import TOKENS, byte_level, renderer_of

WHOLE = {"laguna-xs.2", "ngpt", "llama-3", "llama-3.0"}  # a line behind each text; no byte-level tokenizer; see below


def shape_of(family: str, messages: Any, tools: Any = None) -> Shape | None:
    renderer = new(family)
    for _ in range(3):
        renderer.render_many([messages], tools=[tools])
    if renderer._shapes is None:
        return None
    found = renderer._shapes.of([messages], [tools]).shapes
    return found[0] if found else None


@pytest.mark.parametrize("family", FAMILIES)
def test_the_texts_of_nearly_all_families_are_encoded_apart(family: str) -> None:
    shape = shape_of(family, ask())
    assert (shape is None or shape.apart is None) == (family in WHOLE)


def shown(family: str, part: Apart) -> list[tuple[str, bool]]:
    """The cells: the known tokens of each as text, or `...`; and whether a piece begins with it."""
    encoder, ids = renderer_of(family).encoder, part.ids.tolist()
    cells: list[tuple[str, bool]] = []
    for cell in part.cells.tolist():
        tokens, begins = cell >> 1, bool(cell & 1)
        own = ids[:tokens] if tokens > 0 else []
        ids = ids[len(own) :]
        cells.append(("..." if tokens < 0 else encoder.decode(own), begins))
    assert not ids
    return cells


def test_texts_alone() -> None:
    shape = shape_of("chatml", ask())
    assert shape is not None
    assert shape.apart is not None
    assert shown("chatml", shape.apart) == [
        ("<|im_start|>user\n", True),
        ("...", True),
        ("<|im_end|>\n", True),
        ("<|im_start|>assistant\n", True),
        ("...", True),
        ("<|im_end|>", True),
        ("\n", True),
    ]
    assert (shape.apart.form, shape.apart.units.tolist(), shape.apart.places.tolist()) == ((), [-2, 0, -2, 0], [1, 3])


def test_calls_and_results_bring_along_what_they_touch() -> None:
    messages: Any = [{"role": "system", "content": "Be brief."}, *called()]
    shape = shape_of("qwen3", messages, [TOOLS[0]])
    assert shape is not None
    assert shape.apart is not None
    assert "%s".join(shape.apart.form[::2]).split(SEAM) == [
        "%s\n\n#",  # of the tools behind the system's text
        "%s",
        '{"name": "get_weather", "arguments": %s}\n</tool_call>',
        "%s\n</tool_response>",
    ]
    assert (shape.apart.units.tolist(), shape.apart.places.tolist()) == (
        [-2, 0, 2, 1, -2, 0, -2, 39, 12, -2, 0, 17],
        [1, 5, 7, 10],
    )
    cells = shown("qwen3", shape.apart)
    whole = "".join(text for text, _ in cells)
    assert whole.startswith("<|im_start|>system\n...")
    assert " Tools\n\nYou may call" in whole, "the rest of a piece whose beginning is encoded is known"
    assert [begins for text, begins in cells if text.startswith(" Tools")] == [False]


def controls(encoder: Any, out: Script) -> list[Any]:
    return [(piece, *hit) for piece in (0, 2) for hit in encoder.flat.controls_in(out.texts[piece])]


@pytest.mark.parametrize(
    ("texts", "taken"),
    [
        (["<|im_start|>", "niels", "<|im_end|>"], True),
        (["<|im_start|>user\n", "niels", "<|im_end|>"], True),
        (["user\n", "niels", ""], True),
        (["<|im_start|>user\n", "niels", " more<|im_end|>"], True),
        (["<|im_start|>user ", "niels", "<|im_end|>"], True),  # the run begins with "user"
        (["<|im_start|> ", "niels", "<|im_end|>"], False),
        ([" ", "niels", "<|im_end|>"], False),
        (["<|im_start|>", "niels", "\n<|im_end|>"], False),
        (["<|im_start|>", "niels", "\n"], False),
        (["<|im_start|>%s\0", "niels", "<|im_end|>"], True),
        (["<|im_start|>user\n", "", "<|im_end|>"], False),
    ],
    ids=repr,
)
def test_where_a_text_can_be_cut_out(texts: list[str], taken: bool) -> None:
    encoder: Any = renderer_of("chatml").encoder
    before, value, behind = texts
    out = Script()
    out.texts += [before, value and 'niels-gpt-0 "é\\<&>\n".', behind]
    out.facts += [SCAFFOLD, BODY, SCAFFOLD]
    made = apart_of(encoder, encoder.flat.seams, out, controls(encoder, out))
    assert (made is not None) == taken


def test_a_slash_behind_a_sign_is_brought_along() -> None:
    """With expressions that take it to the line before."""
    encoder: Any = renderer_of("chatml").encoder
    out = Script()
    out.texts += ["<|im_start|>a\n<b>\n", 'niels-gpt-0 "é\\<&>\n".', "<|im_end|>"]
    out.facts += [SCAFFOLD, BODY, SCAFFOLD]
    forms = {}
    for slashes in (False, True):
        made = apart_of(encoder, Seams(slashes=slashes, lines=True), out, controls(encoder, out))
        assert made is not None
        forms[slashes] = made.form
    assert forms == {False: (), True: ("<b>\n", "", "")}


def test_white_space_at_the_ends_goes_another_way() -> None:
    renderer = new("qwen3")
    data = [ask("a", "b"), ask(" a", "b"), ask("a", "b"), ask("a\n", "b"), ask("/", "'s")]
    renderer.render_many(data)
    assert renderer._shapes is not None
    parted = renderer._shapes.of(data, [None] * len(data)).parted()
    assert [(group.numbers, bool(group.aparts())) for group in parted] == [([1, 3], False), ([0, 2, 4], True)]
    same(renderer.render_many(data), without_shapes(renderer, data))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_conversation_is_as_in_a_batch(family: str) -> None:
    """Texts alone, one that cannot be apart, and those that are encoded with what they touch: "arguments": ..."""
    renderer = new(family)
    data: list[tuple[Any, Any]] = [(ask("é", "Naïve, 中文."), None), (ask(" a", "b"), None), (ask("", "b"), None)]
    if renderer.calls is not None and "tool" in renderer.roles:
        more = called(id="abcdefgh2", arguments={"city": "Zürich", "days": 3}, content="warm")[1:]
        data += [([*called(id="abcdefgh1"), *more, *ask()[1:]], [TOOLS[0]])]
    for messages, tools in data:
        for _ in range(3):
            renderer.render_many([messages], tools=[tools])
        assert renderer.render(messages, tools=tools) == next(iter(renderer.render_many([messages], tools=[tools])))


@pytest.mark.parametrize("values", [["hi", "yes"], ["größer 中", "yes"], ["100%", "%s"]], ids=repr)
@pytest.mark.parametrize("family", ["chatml", "qwen3"])  # its texts alone, and with what they touch
def test_one_conversation_goes_the_quick_way(family: str, values: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def watched(*given: Any) -> Any:
        made.append(encode_alone(*given))
        return made[-1]

    renderer = new(family)
    renderer.render_many([ask(), ask()])
    expected = next(iter(without_shapes(renderer, [ask(*values)])))
    monkeypatch.setattr(filling, "encode_alone", watched)
    for _ in range(3):
        assert renderer.render(ask(*values)) == expected
    shape = shape_of(family, ask())
    assert shape is not None
    assert shape.apart is not None
    assert bool(shape.apart.form) == (family == "qwen3")
    assert len(made) >= 3, "some are proven, too"
    assert None not in made


class Masked(str):
    """Text that is shown otherwise than it is, in as many letters."""

    def __str__(self) -> str:
        return "*" * len(self)


@pytest.mark.parametrize("family", ["chatml", "qwen3"])
def test_a_text_is_what_it_holds_however_it_is_shown(family: str) -> None:
    renderer = new(family)
    renderer.render_many([ask(), ask()])
    told = ask(Masked("hello"), "yes")
    assert renderer.render(told) == renderer.render(ask("hello", "yes"))
    same(renderer.render_many([told]), without_shapes(renderer, [ask("hello", "yes")]))


def test_lists_share_nothing_with_their_shape() -> None:
    renderer = new("chatml")
    expected = [renderer.render(ask()) for _ in range(3)][-1]
    for _ in range(2):
        rendered = renderer.render(ask())
        assert rendered == expected
        lists: list[Any] = [rendered.token_ids, rendered.message_indices, rendered.sampled_mask, rendered.is_content]
        for own in [*lists, rendered.message_roles, rendered.message_tool_names]:
            own.clear()


def test_batches_share_nothing_with_their_shape() -> None:
    renderer = new("chatml")
    for _ in range(3):
        batch = renderer.render_many([ask()])
    expected = batch.facts.tolist(), batch.pieces.tolist(), batch.ids.tolist()
    for array in (batch.facts, batch.pieces, batch.counts, batch.ids, batch.lengths):
        assert array.flags.writeable, "as of conversations that the grammar writes"
        array += 1
    again = renderer.render_many([ask()])
    assert (again.facts.tolist(), again.pieces.tolist(), again.ids.tolist()) == expected


def test_an_added_token_behind_two_ends_of_lines(tmp_path: Any) -> None:
    """To GPT-2's expression they are one part before it, and two before a letter."""
    tokens = replace(TOKENS["llama-3"], added=("[X]",))
    texts = ("assistant\n\nhello", "user\n\n", "a\n\n")
    byte_level(tokens, texts=texts).save(str(tmp_path / "tokenizer.json"))
    renderer = FAMILIES["llama-3"](tmp_path)
    data = [ask("hello", "yes"), ask("hello", "yes"), ask("[X] hello", "[X] yes")]
    assert renderer.render_many(data).ids.tolist() == without_shapes(renderer, data).ids.tolist()
    same(renderer.render_many(data), without_shapes(renderer, data))


def test_what_is_far_from_a_text_takes_no_time() -> None:
    """A tool's description of a megabyte is walked through once; once for each of its words would take hours."""
    text = "ab. " * 250_000 + "(value)"
    assert _runs(text, [(len(text) - 7, len(text))], [], Seams(slashes=False, lines=True)) == [(0, len(text))]
