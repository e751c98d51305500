"""The option `final_stop` of renderers by template: answers that the template leaves without a stop end in one."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError, UsageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.base import build_training_sample, build_training_samples
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.renderers.template.proofs.probes import probes
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.renderers.every_template import SOURCES, encoder, source_of
from tests.renderers.random_templates import WRITTEN, Known, joined, random_template, runs
from tests.renderers.small import CHATML, assistant, user
from tests.renderers.tiny_families import folder_of

STOP = "<|im_end|>"
ALPACA = (
    "{% for m in messages %}{{ '### ' + m.role + ':\n' }}{{ m.content | trim }}"
    "{{ '\n\n' if not loop.last }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n\n### assistant:\n' }}{% endif %}"
)
QWEN_15 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ '<|im_end|>\n' if not loop.last or add_generation_prompt }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OPENERS = (  # a control token that depends on the role opens each turn and ends the one before, as GLM's do
    "{% for m in messages %}{{ '<|endoftext|>' if m.role == 'user' else '<|im_start|>' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
FOOTER = CHATML.replace("<|im_start|>", "").replace("<|im_end|>", "</answer>")
CHAT = [user("one"), assistant("two"), user("three"), assistant("four")]


def made(source: str, final_stop: str = STOP, **options: Any) -> TemplateRenderer:
    return TemplateRenderer(folder_of("qwen3"), template=source, final_stop=final_stop, **options)


def sampled(renderer: TemplateRenderer, messages: Any, **options: Any) -> list[str]:
    return [run[0] for run in runs(renderer, messages, **options) if run[2]]


# ---- where it is written


def test_every_answer_without_a_stop_ends_in_it() -> None:
    renderer = made(ALPACA)
    assert renderer.render(CHAT).attribution == "full"
    assert runs(renderer, CHAT) == [
        ("### user:\n", 0, False, False),
        ("one", 0, False, True),
        ("\n\n### assistant:\n", 1, False, False),
        ("two<|im_end|>", 1, True, True),
        ("\n\n### user:\n", 2, False, False),
        ("three", 2, False, True),
        ("\n\n### assistant:\n", 3, False, False),
        ("four<|im_end|>", 3, True, True),
    ]
    stop = renderer.encoder.control_ids[STOP]
    assert renderer.render_ids(CHAT).count(stop) == 2


def test_only_the_last_one_where_history_has_stops() -> None:
    assert sampled(made(QWEN_15), CHAT) == ["two<|im_end|>", "four<|im_end|>"]
    assert made(QWEN_15).text(CHAT) == made(QWEN_15, "").text(CHAT) + STOP
    asked = [*CHAT, user("five")]
    assert made(QWEN_15).text(asked, add_generation_prompt=True) == made(QWEN_15, "").text(
        asked, add_generation_prompt=True
    )


def test_another_token_than_the_template_writes_elsewhere() -> None:
    assert sampled(made(QWEN_15, "<|endoftext|>"), CHAT) == ["two<|im_end|>", "four<|endoftext|>"]


def test_openers_at_which_serving_stops_are_stops() -> None:
    assert sampled(made(OPENERS, "<|endoftext|>"), CHAT) == ["two", "four<|endoftext|>"]
    assert sampled(made(OPENERS, STOP, stops=("<|endoftext|>",)), CHAT) == ["two", "four<|im_end|>"]


def test_after_ordinary_text_that_ends_answers() -> None:
    assert sampled(made(FOOTER), CHAT) == ["two</answer><|im_end|>", "four</answer><|im_end|>"]
    assert sampled(made(FOOTER, "", stops=("</answer>",)), CHAT) == ["two</answer>", "four</answer>"]


def test_a_stop_that_a_user_spells_is_no_stop() -> None:
    source = "{% for m in messages %}{{ m.content }}{{ '</answer>' if m.role == 'assistant' }}{% endfor %}"
    chat = [user("one"), assistant("two"), user("<|im_end|> three"), assistant("four<|im_end|>")]
    assert sampled(made(source), chat) == ["two</answer><|im_end|>", "four<|im_end|></answer><|im_end|>"]
    assert made(source).render(chat).attribution == "full"
    assert sampled(made(ALPACA), chat) == ["two<|im_end|>", "four<|im_end|><|im_end|>"]
    rendered = made(ALPACA).render(chat)
    stop = made(ALPACA).encoder.control_ids[STOP]
    assert (rendered.attribution, rendered.token_ids.count(stop)) == ("full", 2)


def test_an_empty_answer_ends_where_its_content_would_be() -> None:
    chat = [user("one"), assistant(""), user("two"), assistant("")]
    assert made(ALPACA).text(chat) == (
        "### user:\none\n\n### assistant:\n<|im_end|>\n\n### user:\ntwo\n\n### assistant:\n<|im_end|>"
    )
    assert made(ALPACA).render(chat).attribution == "full"


def test_a_generation_prompt_follows_it() -> None:
    asked = [*CHAT, user("five")]
    text = made(ALPACA).text(asked, add_generation_prompt=True)
    assert text == made(ALPACA, "").text(asked, add_generation_prompt=True).replace("two", "two" + STOP).replace(
        "four", "four" + STOP
    )


def test_a_template_that_ends_every_answer_is_unchanged() -> None:
    plain, closed = made(CHATML, ""), made(CHATML)
    assert plain.pieces(CHAT) == closed.pieces(CHAT)


def test_without_the_option_nothing_is_written() -> None:
    for source in (ALPACA, QWEN_15):
        rendered = made(source, "").render(CHAT)
        assert "stop" in rendered.attribution
        with pytest.raises(MessageError, match="--renderer-option final_stop=TOKEN"):
            build_training_sample(made(source, ""), CHAT)


def test_what_is_not_proven_stays_partial() -> None:
    """A start that no rule shows: the stop would not make the answer whole."""
    source = ALPACA.replace("\n\n### assistant:", "\n\nNow you say:")
    rendered = made(source).render(CHAT)
    assert rendered.attribution == "partial: message 1 does not begin as the generation prompt"
    assert STOP not in made(source).text(CHAT)


# ---- samples, bridges, options


def test_training_samples_have_it() -> None:
    for source in (ALPACA, QWEN_15):
        renderer = made(source)
        ids, mask = build_training_sample(renderer, CHAT)
        stop = renderer.encoder.control_ids[STOP]
        assert [trained for token, trained in zip(ids, mask, strict=True) if token == stop][-1]
        assert sum(trained and token == stop for token, trained in zip(ids, mask, strict=True)) == 2
        assert build_training_sample(renderer, CHAT, ensure_final_stop=True) == (ids, mask)
        assert build_training_samples(renderer, CHAT, ensure_final_stop=True) == [(ids, mask)]


@pytest.mark.parametrize("source", [ALPACA, QWEN_15], ids=["no stops", "all but the last"])
def test_a_bridge_is_the_full_rendering(source: str) -> None:
    renderer = made(source)
    past = [user("one"), assistant("two"), user("three")]
    prompt = renderer.render_ids(past, add_generation_prompt=True)
    whole = renderer.render_ids([*past, assistant("four"), user("five")], add_generation_prompt=True)
    said = renderer.encoder.encode_pieces(["four", STOP], [False, True])[0].tolist()
    for completion in (said, said[:-1]):  # stopped, and cut
        bridge = renderer.bridge_to_next_turn(prompt, completion, [user("five")])
        assert bridge is not None
        assert bridge.token_ids == whole


def test_it_must_be_a_control_token() -> None:
    with pytest.raises(UsageError, match=r"final_stop is '</s>', which is no control token .*expected one of"):
        made(ALPACA, "</s>")
    with pytest.raises(UsageError, match=r"did you mean '<\|im_end\|>'"):
        made(ALPACA, "<|im_ende|>")
    with pytest.raises(UsageError, match="final_stop is True"):
        create_renderer(folder_of("qwen3"), {"name": "template", "final_stop": True})


def test_serving_stops_at_it() -> None:
    renderer = made(ALPACA, "<|im_start|>")
    assert renderer.encoder.control_ids["<|im_start|>"] in renderer.get_stop_token_ids()
    assert "<|im_start|>" in renderer.stop_tokens


def test_it_is_part_of_the_fingerprint_and_of_pickles() -> None:
    prints = [made(ALPACA, stop).fingerprints for stop in ("", STOP, "<|endoftext|>")]
    assert len({one["template_variables_sha256"] for one in prints}) == 3
    again = pickle.loads(pickle.dumps(made(ALPACA)))
    assert again.pieces(CHAT) == made(ALPACA).pieces(CHAT)


# ---- templates whose answer is known


def without_bos(found: list[tuple[str, int, bool, bool]], known: Known) -> list[tuple[str, int, bool, bool]]:
    """The runs after bos, which belongs to no message or to the first one."""
    rest = (found[0][0].removeprefix(known.bos), *found[0][1:])
    return [rest, *found[1:]] if rest[0] else found[1:]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_templates_have_their_known_facts(written: str, seed: int) -> None:
    partial = 0
    for number in range(12 if seed == 0 else 80):
        rng = random.Random(f"{written} {seed} {number}")
        known = random_template(rng, written)
        renderer = made(known.source, bos_token="<s>")
        chat: list[Any] = [{"role": "system", "content": "be kind, always"}] if rng.random() < 0.5 else []
        for turn in range(rng.randint(1, 3)):
            thought = {"reasoning_content": f"thought {turn}: hm"} if known.think and rng.random() < 0.7 else {}
            chat += [user(f"question {turn}?"), assistant(f'answer "{turn}", {rng.random()}.', **thought)]
        rendered = renderer.render(chat)
        if rendered.attribution != "full":
            partial += 1
            continue
        expected = known.expected(chat, STOP)
        assert renderer.text(chat) == "".join(run[0] for run in expected), known.source
        assert without_bos(runs(renderer, chat), known) == without_bos(joined(expected), known), known.source
    assert partial <= number // 10


WILD = [name for name in sorted(SOURCES) if "/" in name]


def check(name: str) -> None:
    """Answers end in a stop where the attribution is full, and without the stops the text is the template's."""
    fields: Any = {"template": source_of(name), "clock": lambda form: "2026-01-01", "bos_token": "<s>"}
    plain = TemplateRenderer(encoder(), eos_token=STOP, **fields)
    closed = TemplateRenderer(encoder(), eos_token=STOP, final_stop=STOP, **fields)
    for probe in probes()[::11]:
        messages, tools = normalise(list(probe.messages)), probe.tools and list(probe.tools)
        try:
            out, before = closed.emit(messages, tools=tools), plain.emit(messages, tools=tools)
        except (MessageError, TemplateError):
            continue
        if before.attribution == "full":
            assert out.attribution == "full", (name, probe.name, out.attribution)
        text, at = "".join(before.texts), 0
        for piece in out.pieces():  # what is not the template's is a final stop that is sampled
            if text.startswith(piece.text, at):
                at += len(piece.text)
            else:
                assert (piece.text, piece.sampled, piece.scaffold) == (STOP, True, True), (name, probe.name, piece)
        assert at == len(text), (name, probe.name)
        ends = {piece.msg: piece.text for piece in out.pieces() if piece.sampled and piece.text}
        for index, end in ends.items():
            assert out.attribution != "full" or closed.controls.at_end(end), (name, probe.name, index, end)


@needs_assets
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 24))])
def test_answers_of_stored_templates_end_in_a_stop(part: int) -> None:
    for name in WILD[part::24]:
        check(name)
