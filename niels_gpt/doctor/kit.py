"""What a diagnosis works with: encoder, renderer, layout, as far as they are given; and what only the whole shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from niels_gpt.doctor.judged import NO_MASK, NO_TOKENIZER, Conditions
from niels_gpt.doctor.layout import Layout, plain_layout, sentinel_layout
from niels_gpt.doctor.learning import NO_TEMPLATE, AnyRenderer, bare, learn
from niels_gpt.doctor.reading import Opened
from niels_gpt.doctor.rules import calls, data, documents, masks, tokenizers, turns
from niels_gpt.doctor.rules.rule import Need
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import Scope
from niels_gpt.doctor.work import Work
from niels_gpt.errors import Mismatch, TemplateError, UsageError
from niels_gpt.ranges import EXAMINED_LENGTH
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.opening import open_renderer
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.renderers.template import load_template
from niels_gpt.tokenizer.opening import open_encoder
from niels_gpt.tokenizer.protocol import PieceEncoder


class Kit:
    """Encoder, renderer and layout of a diagnosis, as far as they are known.

    Attributes:
        told: what reports say of them.
    """

    def __init__(self, encoder: PieceEncoder | None, renderer: AnyRenderer | None, layout: Layout | None) -> None:
        self.encoder, self.renderer, self.layout = encoder, renderer, layout
        self.sentinels: dict[str, int] = {}
        self.told: dict[str, Any] = {}
        if encoder is not None:
            name = renderer.name if isinstance(renderer, Family) else "none" if renderer is None else "template"
            self.told = {"tokenizer": encoder.name, "renderer": name}

    @classmethod
    def of(cls, opened: Opened, tokenizer: Any, template: Any, renderer: Any, date: str | None) -> Kit:
        """For an input; one of our own datasets brings its sentinels with it."""
        if opened.form == "documents":
            return cls._of_documents(opened, tokenizer, template, renderer)
        if tokenizer is not None or is_renderer(renderer):
            encoder, made = renderer_for(tokenizer, template, renderer, date)
            _check_tokenizer(opened, encoder)
            kit = cls(encoder, made, learn(made) if made is not None else bare(encoder))
            if encoder.engine == "sentencepiece":
                kit.sentinels = dict(zip(("sys", "usr", "asst", "eot"), encoder.control_ids.values(), strict=True))
            return kit
        if template is not None or renderer is not None:
            raise UsageError("a template or renderer without a tokenizer; pass --tokenizer (tokenizer=) too")
        kit = cls(None, None, None)
        if opened.form in ("cache", "episodes"):
            special = opened.stored.sentinels
            size = opened.stored.vocab_size
            if special and size:
                kit.layout, kit.sentinels = sentinel_layout(special, size), special
        return kit

    @classmethod
    def _of_documents(cls, opened: Opened, tokenizer: Any, template: Any, renderer: Any) -> Kit:
        """For a cache of plain text, whose tokenizer is needed only to show texts."""
        if template is not None or renderer is not None:
            raise UsageError(f"{opened.name}: a cache of plain text has no template; leave --template and --renderer")
        encoder = None if tokenizer is None else open_encoder(tokenizer)
        if encoder is not None:
            _check_tokenizer(opened, encoder)
        kit = cls(encoder, None, None)
        special = opened.stored.sentinels
        size = opened.stored.vocab_size
        if special and size:
            kit.layout, kit.sentinels = plain_layout(special, size), special
        return kit

    def work(self, opened: Opened, on: LossOn, max_length: int | None, keep: int) -> Work:
        """What workers are given."""
        EXAMINED_LENGTH.check(max_length)
        if max_length is not None and opened.form == "documents":
            raise UsageError(f"{opened.name}: plain text is read in windows of any length; leave --max-length out")
        layout = self.layout
        spell: Callable[[int], str] = str
        if self.encoder is not None:
            spell = Speller(self.encoder)
        elif layout is not None:
            spell = Named(layout.names)
        return Work(
            opened=opened,
            scope=Scope(layout, spell, max_length, self.sentinels),
            keep=keep,
            renderer=self.renderer if opened.kind == "chats" else None,
            on=on,
            controls=tuple(self.encoder.control_ids) if self.encoder is not None else (),
            bad_forms=calls.bad_forms(self.renderer) if self.renderer is not None and opened.kind == "chats" else {},
        )

    def conclude(self, tally: Tally, opened: Opened, *, sampled: bool) -> None:
        """What only the whole input shows."""
        turns.finish(tally)
        masks.finish(tally, sampled=sampled)
        calls.finish(tally)
        data.duplicates(tally, opened.name)
        if opened.form == "documents":
            documents.finish(tally, opened.stored, opened.splits, sampled=sampled)
            return
        share = masks.share(tally)
        if share is not None and not masks.LEAST_SHARE <= share <= masks.MOST_SHARE:
            tally.add("loss-share", [], count=tally.sums["plain real tokens"], rows=tally.sums["rows"])
        if self.encoder is not None and self.layout is not None:
            tokenizers.check(self.encoder, self.renderer, self.layout, tally, alone=False)
        if self.layout is not None and self.renderer is not None and not self.layout.trusted:
            tally.add("format-not-understood", [], count=1, rows=0)

    def conditions(self, kind: str, tally: Tally, *, length: bool = False, sampled: bool = False) -> Conditions:
        """What there was to judge by.

        Args:
            kind: chats, tokens, documents or tokenizer. length: a longest row was given. sampled: not all rows were
                looked at.
        """
        unmet: dict[Need, str] = {}
        if sampled:
            unmet["everything"] = "only a sample was looked at"
        if self.encoder is None and not self.sentinels:  # what serves our own format stops at its own sentinel
            unmet |= {"tokenizer": NO_TOKENIZER, "renderer": NO_TOKENIZER, "stops": NO_TOKENIZER}
        elif self.encoder is not None and self.renderer is None:
            unmet |= {"renderer": NO_TEMPLATE, "stops": NO_TEMPLATE}
        elif self.layout is not None and self.renderer is not None and not self.layout.stops:
            unmet["stops"] = self.layout.doubt or "the template writes no control token behind an answer"
        if kind == "chats":
            unmet |= self._without_renderer()
        else:
            unmet |= self._without_layout(kind, tally)
        if kind == "tokens" and not tally.sums["rows with a mask"]:
            unmet["mask"] = NO_MASK
        return Conditions(kind, unmet, length)

    def _without_renderer(self) -> dict[Need, str]:
        """Of conversations: what only their rendering would show."""
        if self.renderer is not None:
            return {}
        why = NO_TOKENIZER if self.encoder is None else NO_TEMPLATE
        rendered: tuple[Need, ...] = ("ids", "turns", "beginnings", "mask", "prompts", "padding")
        unmet = dict.fromkeys(rendered, why)
        return unmet if self.encoder is not None else {**unmet, "controls": why}

    def _without_layout(self, kind: str, tally: Tally) -> dict[Need, str]:
        """Of ids: what only a format that is known would show."""
        layout = self.layout
        if layout is None:
            unmet: dict[Need, str] = dict.fromkeys(("vocabulary", "turns", "controls", "beginnings"), NO_TOKENIZER)
        elif kind != "tokens" or (layout.trusted and tally.sums["turns found"]):
            return {}
        elif layout.trusted:
            why = "no turn of this format is in any row; check --tokenizer and --renderer"
            unmet = {"turns": why, "controls": why}
        else:
            unmet = {"turns": layout.doubt, "controls": layout.doubt}
            if not layout.preamble and layout.bos is None:
                unmet["beginnings"] = layout.doubt
        if not tally.sums["rows with a mask of their own"]:  # labels alone may be a text's to train from end to end
            unmet["prompts"] = unmet["turns"]
        if layout is None and not tally.sums["rows with an attention mask"]:
            unmet["padding"] = NO_TOKENIZER
        return unmet


def _check_tokenizer(opened: Opened, encoder: PieceEncoder) -> None:
    """Refuse a tokenizer that one of our datasets was not built with.

    Raises:
        Mismatch: naming both.
    """
    if opened.form not in ("cache", "episodes", "documents"):
        return
    built, given = opened.stored.tokenizer_sha256, encoder.fingerprints["tokenizer"]
    if built is not None and built != given:
        raise Mismatch(
            f"{opened.name}: built with tokenizer {built[:12]} but examined with {given[:12]} ({encoder.name}); pass "
            "the tokenizer it was built with"
        )


class Speller:
    """An id as the text that a tokenizer gives it; holds the texts, so that workers need no tokenizer."""

    def __init__(self, encoder: PieceEncoder) -> None:
        self._spelt = encoder.token_bytes(range(encoder.vocab_size))

    def __call__(self, token: int) -> str:
        """The text; ids outside the vocabulary as numbers."""
        return self._spelt[token].decode("utf-8", "replace") if 0 <= token < len(self._spelt) else f"<{token}?>"


class Named:
    """An id as its name if it has one."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = dict(names)

    def __call__(self, token: int) -> str:
        """The name, or the number."""
        return self._names.get(token, str(token))


def is_renderer(given: Any) -> TypeGuard[AnyRenderer]:
    """Something that renders and has an encoder."""
    return isinstance(given, Family | DefaultRenderer)


def renderer_for(
    tokenizer: Any, template: Any, renderer: Any, date: str | None
) -> tuple[PieceEncoder, AnyRenderer | None]:
    """The encoder, and the renderer if the tokenizer has a template or a family is named.

    Raises:
        UsageError: a template for a family. TokenizerError, TemplateError: one of them cannot be used.
    """
    if is_renderer(renderer):
        return renderer.encoder, renderer
    encoder = open_encoder(tokenizer)
    if renderer is None and template is None and encoder.template is None and encoder.engine != "sentencepiece":
        named = _by_name(encoder)
        return (named.encoder, named) if named is not None else (encoder, None)
    if date is not None or isinstance(template, Path):
        made: AnyRenderer = open_renderer(str(tokenizer), renderer or "auto", template=_file(template), date=date)
    elif template is not None:
        if renderer not in (None, "auto", "template", "default"):
            raise UsageError(f"renderer {renderer} writes by its own grammar; a template is for renderer 'template'")
        made = DefaultRenderer(encoder, template=_template_text(template))
    else:
        made = create_renderer(encoder, renderer or "auto")
    return made.encoder, made


def _by_name(encoder: PieceEncoder) -> AnyRenderer | None:
    """A family by the tokenizer's exact hub name; `None` where there is neither a family nor a template."""
    try:
        return create_renderer(encoder)
    except TemplateError:
        return None


def _file(template: Any) -> Path | None:
    return None if template is None else Path(template)


def _template_text(template: str) -> str:
    """A template given as text, or as the name of a file with it."""
    one_line = "\n" not in template and "{" not in template
    return load_template(template) if one_line else template
