"""What a diagnosis works with: tokenizer, renderer and layout (`Context`), and which rules these allow to judge.

::

    tokenizer  template  renderer           encoder   renderer             layout
    -          -         -                  -         -                    sentinels, if the dataset records them
    directory  none      -                  yes       -                    vocabulary and control tokens, no turns
    directory  its own   -                  yes       family or template   inferred from probes
    directory  any       family's name      yes       the family           inferred from probes
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.examine import Examination
from niels_gpt.doctor.layouts.inference import NO_TEMPLATE, infer_layout, layout_without_template
from niels_gpt.doctor.layouts.layout import Layout, sentinel_layout
from niels_gpt.doctor.layouts.probes import AnyRenderer
from niels_gpt.doctor.rules import (
    RULES,
    Need,
    calls,
    chats,
    contents,
    data,
    masks,
    preferences,
    tokenizers,
    turns,
    vocabulary,
)
from niels_gpt.doctor.view import Scope
from niels_gpt.errors import Mismatch, TemplateError, UsageError
from niels_gpt.inputs.opened import Opened
from niels_gpt.ranges import EXAMINED_LENGTH
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.registry import RendererOptions, clock_on, create_renderer
from niels_gpt.renderers.template.renderer import DefaultRenderer, load_template
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder

# Reasons for which rules are not judged; reports quote them.
NO_MASK = "the data has no mask (labels, assistant_masks, completion_mask or loss_mask)"
# For templates that write the date, if the user passes none: no rule depends on which day it is.
PROBE_DATE = "2026-01-31"
NO_TOKENIZER = "no tokenizer was given"


Skipped = tuple[dict[str, str], int]  # why rules were not judged, by rule, and how many were


class Context:
    """Encoder, renderer and layout of a diagnosis; each is `None` where it is not known.

    Attributes:
        sentinels: ids of `sys`, `usr`, `asst` and `eot`, where the rows are in the sentinel format.
        description: names of tokenizer and renderer, for the report's `source`.
    """

    def __init__(self, encoder: PieceEncoder | None, renderer: AnyRenderer | None, layout: Layout | None) -> None:
        self.encoder, self.renderer, self.layout = encoder, renderer, layout
        self.sentinels: dict[str, int] = {}
        self.description: dict[str, Any] = {}
        if encoder is not None:
            name = renderer.name if isinstance(renderer, Family) else "none" if renderer is None else "template"
            self.description = {"tokenizer": encoder.name, "renderer": name}

    @classmethod
    def for_input(cls, opened: Opened, tokenizer: Any, template: Any, renderer: Any, date: str | None) -> Context:
        """The context for an input, from what the user passed; a dataset of ours adds its sentinels.

        Raises:
            UsageError: a template or renderer without a tokenizer.
            Mismatch: the dataset was built with another tokenizer.
        """
        if tokenizer is not None or is_renderer(renderer):
            encoder, opened_renderer = renderer_for(tokenizer, template, renderer, date)
            _check_tokenizer(opened, encoder)
            context = cls(encoder, opened_renderer, _layout_of(encoder, opened_renderer))
            if encoder.engine == "sentencepiece":
                # Our own tokenizer lists its control tokens in this order.
                context.sentinels = dict(zip(("sys", "usr", "asst", "eot"), encoder.control_ids.values(), strict=True))
            return context
        if template is not None or renderer is not None:
            raise UsageError("a template or renderer without a tokenizer; also pass --tokenizer (tokenizer=)")
        context = cls(None, None, None)
        if opened.dataset is not None:
            # A dataset of ours may record its sentinels, which are all that its format writes.
            special, size = opened.dataset.special_token_ids, opened.dataset.vocab_size
            # With other names the rules about sentinels would judge the wrong tokens.
            if set(special) == {"sys", "usr", "asst", "eot"} and size:
                context.layout, context.sentinels = sentinel_layout(special, size), special
        return context

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, template: Any, renderer: Any, date: str | None) -> Context:
        """The context for a tokenizer that is the input itself."""
        encoder, opened = renderer_for(tokenizer, template, renderer, date, own_template=True)
        return cls(encoder, opened, _layout_of(encoder, opened))

    def scope(self, max_length: int | None = None) -> Scope:
        """The inputs of rules on ids besides the rows."""
        EXAMINED_LENGTH.check(max_length)
        # Without tokenizer and layout, evidence shows ids as numbers.
        decode_id: Callable[[int], str] = str
        if self.encoder is not None:
            # 150 000 short byte strings, which are pickled in milliseconds; a tokenizer is not.
            decode_id = TokenTexts(self.encoder.token_bytes(range(self.encoder.vocab_size)))
        elif self.layout is not None:
            names = self.layout.names
            decode_id = TokenTexts([names.get(token, str(token)).encode() for token in range(self.layout.vocab_size)])
        return Scope(self.layout, decode_id, max_length)

    def examination(self, opened: Opened, loss_on: LossOn, max_length: int | None, max_evidence: int) -> Examination:
        """What is sent to workers, to examine slices."""
        # Rows of ids are judged by the layout; workers need the renderer, which is large, for conversations only.
        renderer = self.renderer if opened.kind == "chats" else None
        return Examination(
            opened=opened,
            scope=self.scope(max_length),
            max_evidence=max_evidence,
            renderer=renderer,
            loss_on=loss_on,
            controls=tuple(self.encoder.control_ids) if self.encoder is not None else (),
        )

    def conclude(self, counters: Counters, opened: Opened, *, sampled: bool, max_length: int | None = None) -> None:
        """Run the rules that need counts of the whole input, and those on the tokenizer.

        Args:
            sampled: not all rows were read.
            max_length: the longest row, if the user passed one.
        """
        # First: with a wrong tokenizer most other findings are only its consequences.
        vocabulary.finish(counters, self.encoder, self.layout)
        if vocabulary.all_wrong(counters):
            # With ids of another tokenizer, findings about turns or control tokens only follow from that.
            for name in list(counters.hits):
                rule = RULES.get(name.partition(":")[0])  # also of candidates: `header-drift: ...`
                if rule is not None and {"turns", "controls"} & set(rule.needs) and rule.id not in vocabulary.NAMES:
                    counters.drop(name)
        turns.finish(counters)
        masks.finish(counters, sampled=sampled)
        calls.finish(counters)
        chats.finish(counters)
        contents.finish(counters)
        data.duplicates(counters, opened.name)
        if opened.holds_preferences and opened.dataset is not None:
            if sampled:  # `check_stored` reads every group of the dataset
                return
            preferences.check_stored(opened.dataset, list(opened.splits), max_length, counters)
        preferences.finish(counters, opened.name)
        if masks.share_is_unusual(counters):
            # The share is one number over all rows, so there is no row to show.
            counters.add("loss-share", [], count=counters.sums["plain real tokens"], rows=counters.sums["rows"])
        if self.encoder is not None and self.layout is not None:
            tokenizers.check(self.encoder, self.renderer, self.layout, counters, without_data=False)
        self.check_layout(counters)

    def check_layout(self, counters: Counters) -> None:
        """Report a renderer whose turns could not be found again in its own probes."""
        if self.layout is not None and self.renderer is not None and not self.layout.trusted:
            counters.add("format-not-understood", [], count=1, rows=0)

    def unmet(self, kind: str, counters: Counters) -> dict[Need, str]:
        """Why needs of rules were not met, by need, for a kind of input: chats, tokens, preferences or tokenizer."""
        encoder, layout, found = self.encoder, self.layout, counters.sums
        chats, ids, no_renderer = kind == "chats", kind == "tokens", self.renderer is None
        none = NO_TOKENIZER if encoder is None else NO_TEMPLATE
        untrusted = "" if layout is None else layout.untrusted_because
        no_stop = untrusted or "the template writes no control token after an answer"
        no_turn = "no turn of this format is in any row; check --tokenizer and --renderer"
        distrusted = ids and layout is not None and not layout.trusted
        turnless = ids and layout is not None and layout.trusted and not found["turns found"]
        unknown = not chats and layout is None
        # Labels alone may belong to plain text, all of which is trained: then there is no prompt to find.
        no_prompt = (unknown or distrusted or turnless) and not found["rows with a mask of their own"]
        of_turns = NO_TOKENIZER if unknown else untrusted if distrusted else no_turn
        headless = layout is not None and not layout.preamble and layout.bos is None
        # When, which needs are not met, and why; with sentinels (no encoder), serving stops at eot.
        table: tuple[tuple[bool, tuple[Need, ...], str], ...] = (
            (encoder is None and not self.sentinels, ("tokenizer", "renderer", "stops"), NO_TOKENIZER),
            (encoder is not None and no_renderer, ("renderer", "stops"), NO_TEMPLATE),
            # Without stops in the layout, there is nothing to compare those of serving with.
            (not no_renderer and layout is not None and not layout.stops, ("stops",), no_stop),
            # All that rules about ids need of conversations comes from rendering.
            (chats and no_renderer, ("ids", "turns", "beginnings", "mask", "prompts", "padding"), none),
            (chats and encoder is None, ("controls",), NO_TOKENIZER),
            (unknown, ("vocabulary", "turns", "controls", "beginnings"), NO_TOKENIZER),
            (distrusted or turnless, ("turns", "controls"), of_turns),
            (distrusted and headless, ("beginnings",), untrusted),
            (no_prompt, ("prompts",), of_turns),
            (unknown and not found["rows with an attention mask"], ("padding",), NO_TOKENIZER),
            (ids and not found["rows with a mask"], ("mask",), NO_MASK),
        )
        return {need: reason for holds, needs, reason in table if holds for need in needs}


def _layout_of(encoder: PieceEncoder, renderer: AnyRenderer | None) -> Layout:
    return layout_without_template(encoder) if renderer is None else infer_layout(renderer)


def rules_skipped(
    kinds: Collection[str], unmet: Mapping[Need, str], counters: Counters, unasked: Collection[str] = ()
) -> Skipped:
    """The rules that were not judged, each with the reason, and how many were judged.

    Args:
        kinds: of the input, as in `Rule.applies`; stored preferences are also rows of ids.
        unmet: see `Context.unmet`; needs that are not listed were met.
        unasked: rules that need an option (a longest row, validation data) which the user did not pass; they are not
            listed as skipped.
    """
    wanted = [rule for rule in RULES.values() if {*kinds} & set(rule.applies) and rule.id not in unasked]
    skipped: dict[str, str] = {}
    for rule in wanted:
        # One unmet need is enough to skip a rule; the first is named.
        reason = next((unmet[need] for need in rule.needs if need in unmet), "")
        # A rule may find something in the rows that have what it needs, for example a mask.
        if reason and rule.id not in counters.hits:
            skipped[rule.id] = reason
    return skipped, len(wanted) - len(skipped)


def _check_tokenizer(opened: Opened, encoder: PieceEncoder) -> None:
    """Refuse a tokenizer that a dataset of ours was not built with.

    Raises:
        Mismatch: with the sha256 of both.
    """
    if opened.dataset is None:
        return
    # Another program's episodes record no checksum, so they are taken as they are.
    built, passed = opened.dataset.tokenizer_sha256, encoder.fingerprints["tokenizer"]
    if built is not None and built != passed:
        raise Mismatch(
            f"{opened.name}: built with tokenizer {built[:12]} but examined with {passed[:12]} ({encoder.name}); pass "
            "the tokenizer it was built with"
        )


class TokenTexts:
    """A function from an id to its text. It contains all texts, so that workers need no tokenizer."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = texts

    def __call__(self, token: int) -> str:
        """The text, bytes that are no whole character as `\\xc3`; ids outside the vocabulary as numbers."""
        if not 0 <= token < len(self._texts):
            return f"<{token}?>"
        return self._texts[token].decode("utf-8", "backslashreplace")


def is_renderer(value: Any) -> TypeGuard[AnyRenderer]:
    """Whether a value is a renderer of this package."""
    return isinstance(value, Family | DefaultRenderer)


def renderer_for(
    tokenizer: Any, template: Any, renderer: Any, date: str | None, *, own_template: bool = False
) -> tuple[PieceEncoder, AnyRenderer | None]:
    """The encoder, and the renderer if the tokenizer has a template or a family is named or proven.

    Args:
        renderer: a name, a config, a renderer, or `RendererOptions`, of which only name and options are used.
        own_template: without a named renderer use the tokenizer's own template, even if it is known to be that of a
            family: the template itself is to be examined.

    Raises:
        UsageError: a template for a family. TokenizerError, TemplateError: one of them cannot be used.
    """
    if is_renderer(renderer):
        return renderer.encoder, renderer.lists_unwritten()
    options: Mapping[str, Any] = {}
    if isinstance(renderer, RendererOptions):
        renderer.check()
        renderer, options = None if renderer.name == "auto" else renderer.name, renderer.options
    encoder = open_encoder(tokenizer)
    if renderer is None and template is None and encoder.template is None and encoder.engine != "sentencepiece":
        # Without a template the tokenizer may still be one of a family, by its exact name on the hub.
        try:
            family = create_renderer(encoder)
        except TemplateError:
            return encoder, None
        return family.encoder, family.lists_unwritten()
    if renderer is None and own_template and encoder.template is not None:
        renderer = "template"
    # A date and options belong to `RendererOptions`, which reads the tokenizer by its name.
    if date is not None or options or isinstance(template, Path):
        file = None if template is None else Path(template)
        name = renderer or "auto"
        opened: AnyRenderer = RendererOptions(name, file, date, options).open(str(tokenizer))
    elif template is not None:
        if renderer not in (None, "auto", "template", "default"):
            raise UsageError(f"renderer {renderer} writes by its own grammar; a template is for renderer 'template'")
        # A template may be passed as text or as the name of a file; a name has neither newlines nor braces.
        is_name = "\n" not in template and "{" not in template
        opened = DefaultRenderer(encoder, template=load_template(template) if is_name else template)
    else:
        opened = create_renderer(encoder, renderer or "auto")
    if date is None and isinstance(opened, DefaultRenderer) and "strftime_now" in opened.source:
        # Templates call `strftime_now` for today's date; a report must not depend on the day it is made.
        clock = clock_on(PROBE_DATE)
        opened = DefaultRenderer(opened.encoder, opened.config, template=opened.source, clock=clock)
    return opened.encoder, opened.lists_unwritten()
