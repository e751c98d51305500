"""What holds for every family and every conversation: ids, facts of each token, batches, threads."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.format.sft import serialize_chat_to_ids
from niels_gpt.renderers.types import Piece
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer
from tests.renderers.chats import forged
from tests.renderers.sweeps import (
    Options,
    cases_and_cuts,
    chats,
    conversations,
    families,
    nfc,
    official_ids,
    text_of,
)
from tests.renderers.tiny_families import folder_of, renderer_of

# ---- ids


@conversations(4, 1500)
@cases_and_cuts
def test_ids_are_those_of_the_text(family: str, options: Options, split: bool, number: int) -> None:
    renderer = renderer_of(family, *options, split=split)
    for messages, tools in chats(family, number):
        for gen in (False, True):
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
            text = renderer.text(messages, tools=tools, add_generation_prompt=gen)
            assert rendered.token_ids == official_ids(family, text, split)
            assert rendered.token_ids == renderer.render_ids(messages, tools=tools, add_generation_prompt=gen)
            assert text_of(renderer, rendered.token_ids) == nfc(family, text)
            n = len(rendered.token_ids)
            assert len(rendered.message_indices) == len(rendered.sampled_mask) == len(rendered.is_content) == n
            assert rendered.message_roles == [message["role"] for message in messages]
            assert rendered.attribution == "full"


def test_ngpt_writes_what_the_sentinel_format_writes() -> None:
    renderer = renderer_of("ngpt")
    tokenizer = SentencePieceTokenizer(folder_of("ngpt") / "spm.model")
    for messages, _ in chats("ngpt", 60, parts=False, nones=False, flags=False, loose=False, marks=0.3):
        chat = forged(messages, SPECIAL_TOKENS[3])
        default = renderer.config.default_system_text
        theirs = serialize_chat_to_ids({"messages": chat}, tokenizer=tokenizer, default_system_text=default)
        assert renderer.render_ids(chat) == theirs


# ---- facts


@cases_and_cuts
def test_every_token_has_the_facts_of_its_first_character(family: str, options: Options, split: bool) -> None:
    """Checked character by character, without the engine's arithmetic."""
    renderer = renderer_of(family, *options, split=split)
    for messages, tools in chats(family, 12, seed=2):
        rendered = renderer.render(messages, tools=tools, add_generation_prompt=True)
        script = renderer.emit(messages, tools=tools, add_generation_prompt=True)
        text = "".join(script.texts)
        if nfc(family, text) != text:
            continue
        of_byte: list[Piece] = [piece for piece in script.pieces() for _ in piece.text.encode()]
        at = 0
        for token, *facts in zip(
            rendered.token_ids, rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True
        ):
            piece = of_byte[at]
            assert facts == [piece.msg, piece.sampled, piece.content]
            at += len(renderer.encoder.token_bytes([token])[0])
        assert at == len(of_byte)


# ---- one as many, here as there


@families
def test_pickled_and_shared_renderers_render_the_same(family: str) -> None:
    made = chats(family, 10, seed=10)
    renderer = renderer_of(family)
    expected = [renderer.render(messages, tools=tools) for messages, tools in made]
    again = pickle.loads(pickle.dumps(renderer))
    assert [again.render(messages, tools=tools) for messages, tools in made] == expected
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(lambda: [renderer.render(m, tools=t) for m, t in made]) for _ in range(8)]
        assert all(run.result() == expected for run in runs)
