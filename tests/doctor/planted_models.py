"""Bugs in tokenizers and templates, and differences between two of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import sentencepiece

from niels_gpt.doctor import Report, diagnose
from niels_gpt.samples import chats_file
from niels_gpt.tokenizer import SPECIAL_TOKENS
from tests.doctor.made import CHATML, as_rows, chats, marks, model, template_of
from tests.doctor.planted import Case
from tests.renderers.tiny_families import renderer_of

FAMILIES = ("qwen2.5", "llama-3", "gemma")
BOS = {"llama-3": "<|begin_of_text|>", "gemma": "<bos>", "mistral": "<s>"}
MARKED = (
    CHATML.replace("m.content + STOP", "m.content")
    .replace("{{ START + m.role", "{% generation %}{% endgeneration %}{{ START + m.role")
    .replace("+ '\n' }}{% endfor %}", "+ STOP + '\n' }}{% endfor %}")
)
EARLIER = CHATML.replace("m.content +", "(m.content if loop.last else 'Earlier: ' + m.content) +")
UNTRACED = CHATML.replace("+ m.content +", "+ (m.content | urlencode) +")
PREFILLED = CHATML.replace("'assistant\n' }}", "'assistant\n<think>\n' }}")
LOOSE = CHATML.replace("+ '\n' + m.content", "+ '\n\n' + m.content")


def _eos(family: str, other: bool) -> str:
    _, stop = marks(family)
    controls = [text for text in renderer_of(family).encoder.control_ids if text != stop]
    return controls[0] if other else stop


def _stop_ids(family: str) -> list[int]:
    return [renderer_of(family).encoder.control_ids[marks(family)[1]]]


def _add_bos(family: str, planted: bool) -> Callable[[Any], None] | None:
    if not planted:
        return None

    def change(tokenizer: Any) -> None:
        from tokenizers.processors import TemplateProcessing

        bos = BOS[family]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )

    return change


def _model(folder: Path, family: str, template: str = CHATML, **more: Any) -> Path:
    return model(folder / "model", family, template=template_of(family, template), **more)


def _stop_set(family: str, planted: bool, folder: Path) -> Report:
    """Base eos, and a generation config that does or does not name the end-of-turn."""
    other = renderer_of(family).encoder.control_ids[_eos(family, True)]
    listed = [other] if planted else [other, *_stop_ids(family)]
    return diagnose(_model(folder, family, eos_token=_eos(family, True), generation={"eos_token_id": listed}))


def _stop_set_of_generate(config: str, family: str, planted: bool, folder: Path) -> Report:
    """The tokenizer's eos is the end-of-turn, and the config that generate() reads names the base model's eos alone.

    As Llama 3 was published: eos_token_id 128001 in generation_config.json, and every turn ends in 128009.
    """
    other = renderer_of(family).encoder.control_ids[_eos(family, True)]
    made = _model(folder, family, eos_token=_eos(family, False))
    (made / config).write_text(json.dumps({"eos_token_id": other if planted else [other, *_stop_ids(family)]}))
    return diagnose(as_rows(chats()), tokenizer=made)


def _stop_set_of_none(family: str, planted: bool, folder: Path) -> Report:
    """A generation_config.json without an eos_token_id: generate() stops at nothing."""
    held: dict[str, Any] = {"do_sample": True} | ({} if planted else {"eos_token_id": _stop_ids(family)[0]})
    return diagnose(_model(folder, family, eos_token=_eos(family, False), generation=held))


def _unknown_stop(family: str, planted: bool, folder: Path) -> Report:
    return diagnose(as_rows(chats()), tokenizer=_model(folder, family, eos_token=_eos(family, planted)))


def _padding(family: str, planted: bool, folder: Path) -> Report:
    return diagnose(_model(folder, family, pad_token=_eos(family, not planted)))


def _normalised(family: str, planted: bool, folder: Path) -> Report:
    """Our own format has one tokenizer; the models of the families differ only in their size."""
    (folder / "spm.model").write_bytes(_sentencepiece(planted, 600 + 50 * FAMILIES.index(family)))
    return diagnose(folder)


@cache
def _sentencepiece(planted: bool, size: int) -> bytes:
    """A model with our sentinels; `planted`: it changes full-width letters and makes one space of several."""
    exact = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(chats_file().read_text(encoding="utf-8").splitlines()[:40]),
        model_writer=written,
        vocab_size=size,
        byte_fallback=True,
        character_coverage=0.98,
        add_dummy_prefix=False,
        user_defined_symbols=list(SPECIAL_TOKENS),
        minloglevel=2,
        num_threads=1,
        **({} if planted else exact),
    )
    return written.getvalue()


def _bos(family: str, planted: bool, folder: Path) -> Report:
    text = CHATML if family != "mistral" else CHATML.replace("START", "'[INST]'").replace("STOP", "'</s>'")
    template = "{{ bos_token }}" + (text if family == "mistral" else template_of(family, text))
    made = model(
        folder / "model", family, template=template, bos_token=BOS[family], processor=_add_bos(family, planted)
    )
    return diagnose(made)


def _template(bad: str, good: str, family: str, planted: bool, folder: Path) -> Report:
    return diagnose(_model(folder, family, bad if planted else good))


def _silent(family: str, planted: bool, folder: Path) -> Report:
    """A template without any end-of-turn."""
    return diagnose(_model(folder, family, CHATML.replace(" + STOP", "") if planted else CHATML))


def _drift(bad: str, family: str, planted: bool, folder: Path) -> Report:
    one = model(folder / "one", family, template=template_of(family))
    two = model(folder / "two", family, template=template_of(family, bad if planted else CHATML))
    return diagnose(one, two)


def _other_tokenizer(family: str, planted: bool, folder: Path) -> Report:
    """The same template and control tokens over another vocabulary."""
    one = model(folder / "one", family, template=template_of(family))
    two = model(folder / "two", family, template=template_of(family), processor=_renumbered if planted else None)
    return diagnose(one, two)


def _renumbered(tokenizer: Any) -> None:
    """Merges are forgotten: the same text in more tokens."""
    from tokenizers import Tokenizer

    held = json.loads(tokenizer.to_str())
    held["model"]["merges"] = []
    tokenizer.model = Tokenizer.from_str(json.dumps(held)).model


RULES: tuple[tuple[str, tuple[str, ...], Callable[[str, bool, Path], Report], tuple[str, ...]], ...] = (
    ("eot-not-in-stop-set", FAMILIES, _stop_set, ()),
    ("eot-not-in-stop-set", FAMILIES, partial(_stop_set_of_generate, "generation_config.json"), ()),
    ("eot-not-in-stop-set", FAMILIES, partial(_stop_set_of_generate, "config.json"), ()),
    ("eot-not-in-stop-set", FAMILIES, _stop_set_of_none, ()),
    ("eot-not-in-stop-set", FAMILIES, _unknown_stop, ()),
    ("pad-is-eos", FAMILIES, _padding, ()),
    ("tokenizer-changes-text", FAMILIES, _normalised, ()),
    ("bos-added-twice", ("llama-3", "gemma", "mistral"), _bos, ()),
    ("no-generation-markers", FAMILIES, partial(_template, CHATML, MARKED), ()),
    ("prefix-not-preserved", FAMILIES, partial(_template, EARLIER, CHATML), ()),
    ("attribution-partial", FAMILIES, partial(_template, UNTRACED, CHATML), ("eot-missing",)),
    ("eot-missing", FAMILIES, _silent, ("attribution-partial",)),
    ("template-drift", FAMILIES, partial(_drift, LOOSE), ("generation-prompt-drift",)),
    ("generation-prompt-drift", FAMILIES, partial(_drift, PREFILLED), ()),
    ("tokenizer-drift", FAMILIES, _other_tokenizer, ("generation-prompt-drift",)),
)


def cases() -> list[Case]:
    return [
        Case(rule, family, partial(make, family, planted), planted, also)
        for rule, families, make, also in RULES
        for family in families
        for planted in (True, False)
    ]
