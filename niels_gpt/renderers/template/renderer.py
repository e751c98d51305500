"""`TemplateRenderer`: renders conversations through any Jinja chat template, with attribution for every token."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from niels_gpt.errors import MessageError, TemplateError, did_you_mean
from niels_gpt.messages import Messages, normalise
from niels_gpt.renderers.base_renderer import BaseRenderer
from niels_gpt.renderers.conversation import tools_of
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.notes import OnUnwritten, check_on_unwritten
from niels_gpt.renderers.options import FamilyConfig, with_options
from niels_gpt.renderers.parsers import dialect_of, reasoning_tags_of
from niels_gpt.renderers.template.attributor import Attributor
from niels_gpt.renderers.template.bridge import bridge_by_rendering
from niels_gpt.renderers.template.controls import KNOWN_ROLES, ControlTokens
from niels_gpt.renderers.template.environment import compile_template, run_template
from niels_gpt.renderers.template.isolation import Isolation, TemplateProcess
from niels_gpt.renderers.template.letters import Writer
from niels_gpt.renderers.template.proofs.proof import Proof
from niels_gpt.renderers.template.proofs.stops import check_final_stop
from niels_gpt.renderers.template.strings import template_strings, variables_of
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.sources.files.inputs import read_text
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.load import open_encoder

_NO_IMAGES = (
    "a template says where an image is, and not how many tokens it takes. Name a family with images, or use text(), "
    "which shows what the template writes"
)

# Names that cannot be template variables: rendering sets them itself.
_NO_VARIABLES = {"tokenizer", "template", "clock", "stops", "messages", "tools", "documents", "add_generation_prompt"}


def no_clock(form: str) -> str:
    """The default clock, which raises `MessageError`: a rendering must not depend on when it is made."""
    raise MessageError(
        "no_clock",
        f"the chat template asks for the date ({form!r}); pass clock=, for example lambda form: '01 Jan 2026'",
    )


class TemplateRenderer(BaseRenderer):
    """Renders conversations through a chat template, with the text that serving renders, and attributes every token.

    Instances pickle and are thread-safe.

    Args:
        tokenizer: anything that `open_encoder` accepts: a hub name, a directory, a tokenizer object, an encoder.
        template: the template's text; default the tokenizer's own.
        clock: the function that `strftime_now(format)` calls; a renderer never reads the real clock.
        stops: spellings that end a turn besides the tokenizer's eos, for formats whose stop is ordinary text.
        final_stop: the control token that the model should emit after an answer where the template writes no stop. It
            is written there, and is a stop; see docs/attribution.md. Default none.
        tool_parser, reasoning_parser: names in `TOOL_PARSERS` and `REASONING_PARSERS`; default: completions are text.
        roles: roles that the template may write into its control tokens, in addition to `KNOWN_ROLES`.
        isolate: run the template in a process with these limits; for templates from untrusted sources.
        on_unwritten: whether conversations are refused with a text that the template passes over (`notes.py`).
        variables: further variables of the template, such as `enable_thinking=False`. Values of variables named
            `..._token` become control tokens where the template writes them, like the tokenizer's own `bos_token`;
            other values never do.

    Attributes:
        controls: the spellings of the control tokens.
        stop_tokens: the spellings that end a turn: those of eos, of the stops of generation_config.json, and `stops`.

    Raises:
        TemplateError: no template, or a syntax error. TokenizerError: the tokenizer cannot be used.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        clock: Callable[[str], str] = no_clock,
        stops: Sequence[str] = (),
        final_stop: str = "",
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        roles: Sequence[str] = (),
        isolate: Isolation | None = None,
        on_unwritten: OnUnwritten = "content",
        **variables: Any,
    ) -> None:
        self.on_unwritten = on_unwritten
        check_on_unwritten(on_unwritten)
        self.encoder = open_encoder(tokenizer)
        if isinstance(self.encoder, TokenizerAdapter):  # so that content can never contain a stop
            named = [text for text, token in self.encoder.added_ids.items() if token in self.encoder.stop_ids]
            self.encoder = self.encoder.with_controls([*stops, *named])  # Laguna's `</assistant>` is not special
        source = self.encoder.template if template is None else template
        if source is None:
            raise TemplateError(
                f"{self.encoder.name}: no chat template; pass template=, the text of a Jinja template (commands: "
                "--template FILE), or name a renderer such as chatml (--renderer NAME; see `niels-gpt renderers`)"
            )
        self.source, self._clock = source, clock
        self._variables = {**self.encoder.special_tokens, **variables}
        # Sorted, so that a pickle, and with it the fingerprint of `datasets`, is the same in every process.
        self._roles, self._isolate = sorted(KNOWN_ROLES.union(roles)), isolate
        self._stops = list(stops)
        self._end_with(final_stop)
        self.calls = None if tool_parser is None else dialect_of(tool_parser)
        self.has_reasoning = reasoning_parser is not None
        if reasoning_parser is not None:
            self.reasoning_tags = reasoning_tags_of(reasoning_parser)

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of the tokenizer's bytes, the template's text and its variables, as datasets record them."""
        named = {**self._variables, **({"final_stop": self.final_stop} if self.final_stop else {})}
        variables = json.dumps(named, sort_keys=True, default=repr)  # a variable may be any Python object
        return {
            "tokenizer_sha256": self.encoder.fingerprints["tokenizer"],
            "template_sha256": hashlib.sha256(self.source.encode()).hexdigest(),
            "template_variables_sha256": hashlib.sha256(variables.encode()).hexdigest(),
        }

    def text(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> str:
        """The rendered text, without `final_stop` also of conversations with images, which `render` refuses."""
        if self.final_stop:  # where it is written is only known after the attribution
            return "".join(self.emit(messages, tools=tools, add_generation_prompt=add_generation_prompt).texts)
        adapted, _ = self._attributor.reads.adapted(normalise(messages))
        return self._attributor.text(adapted, _listed(tools), add_generation_prompt)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Messages,
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """The next prompt, if rendering proves that the template only appends to what it wrote; see `bridge.py`."""
        return bridge_by_rendering(self, previous_prompt_ids, previous_completion_ids, new_messages, tools=tools)

    def emit(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> Emitter:
        """The rendering as pieces with their kinds, before it is encoded; the arguments are those of `render`."""
        normalised = normalise(messages)
        refuse_images(normalised, "unsupported_content", _NO_IMAGES)
        adapted, changes = self._attributor.reads.adapted(normalised)
        out = self._attributor.attribute([*adapted], _listed(tools), add_generation_prompt)
        if changes:
            out.messages, out.notes = normalised, out.notes._replace(changes=changes)
        return out

    def _with_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        read = variables_of(self.source) - _NO_VARIABLES - {"raise_exception", "strftime_now"}
        known = sorted(name for name in read if not name.endswith("_token"))
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None:
            raise MessageError(
                "unknown_option",
                f"chat_template_kwargs has {unknown!r}, which the chat template does not read; expected some of "
                f"{', '.join(known) or 'none'}{did_you_mean(unknown, known)}. Drop it",
            )
        other = copy.copy(self)  # shallow, so that both share the encoder
        other._variables = {**self._variables, **kwargs}
        other._attributor = other._attribution()
        return other

    def proof(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> Proof:
        """What the oracle proves of a rendering, whatever is remembered; `Unproven` if that is nothing."""
        adapted, _ = self._attributor.reads.adapted(normalise(messages))
        return self._attributor.proof([*adapted], _listed(tools), add_generation_prompt)

    def with_final_stop(self, final_stop: str) -> TemplateRenderer:
        """The same with this `final_stop`; `UsageError` if it is no control token of the tokenizer."""
        other = copy.copy(self)  # shallow, so that both share the encoder
        other._end_with(final_stop)
        return other

    def _end_with(self, final_stop: str) -> None:
        """Set what ends turns: the arguments `stops` and `final_stop`, eos, and the stops of the generation config."""
        encoder, self.final_stop = self.encoder, final_stop
        if final_stop:
            check_final_stop(final_stop, encoder)
        stops = [*self._stops, *filter(None, [final_stop])]
        own = [encoder.added_ids[stop] for stop in stops if stop in encoder.added_ids]
        self._stop_ids = list(dict.fromkeys([*own, *encoder.stop_ids]))
        eos = [text for text, token in encoder.control_ids.items() if token in encoder.stop_ids]
        self.stop_tokens = tuple(dict.fromkeys([*eos, *stops]))
        self.controls = ControlTokens([*encoder.control_ids, *stops], self.stop_tokens, final_stop)
        self._attributor = self._attribution()

    def _attribution(self) -> Attributor:
        """What runs the template, in this process or in one of its own, and remembers."""
        if self._isolate is not None:
            run = TemplateProcess(self.source, self._clock, self._isolate).render
        else:
            compile_template(self.source, self._clock)  # reports an error at once
            run = partial(_run, self._clock)
        writer = Writer(template_strings(self.source), self.controls, frozenset(self._roles))
        return Attributor(run, self.source, writer, self._variables, self.final_stop)

    def __getstate__(self) -> dict[str, Any]:
        """All but the compiled template, which does not pickle, and what is remembered; both are computed again.

        So a renderer has the same pickle before and after it was used, and in every process.
        """
        return {key: value for key, value in self.__dict__.items() if key != "_attributor"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._attributor = self._attribution()


def _run(clock: Callable[[str], str], variables: Mapping[str, Any], source: str) -> str:
    return run_template(compile_template(source, clock), variables)


def load_template(path: str | Path) -> str:
    """The text of a template file; `TemplateError` if it is missing or empty, `InputError` if it is not UTF-8 text."""
    file = Path(path)
    text = read_text(file) if file.is_file() else ""
    if not text.strip():
        problem = "the file is empty" if file.is_file() else "no such file"
        raise TemplateError(f"{file}: {problem}; expected a Jinja chat template")
    return text


def _listed(tools: Any) -> list[dict[str, Any]] | None:
    """The tools in the shape of the OpenAI chat format; `None` if there are none."""
    found = tools_of(tools)
    return None if found is None else list(found)


class DefaultRendererConfig(BaseModel):
    """The tokenizer's own chat template. Fields that are not declared here are passed to the template as variables.

    Attributes:
        tool_parser, reasoning_parser: how completions are read: names in `TOOL_PARSERS` and `REASONING_PARSERS`.
        final_stop: the control token that ends an answer where the template writes no stop, such as `</s>`.
        on_unwritten: see `TemplateRenderer`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Literal["default", "template"] = "default"
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    final_stop: str = ""
    on_unwritten: OnUnwritten = "content"

    @model_validator(mode="after")
    def _check_variables(self) -> Self:
        for name in self.model_extra or {}:
            if name in FamilyConfig.model_fields:
                raise ValueError(f"{name} is an option of families, and not of templates; name a family, or drop it")
            if name in _NO_VARIABLES:
                raise ValueError(f"{name} cannot be a variable of the template: rendering sets it. Drop it")
        return self

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the template: all fields that are not declared."""
        return dict(self.model_extra or {})


class DefaultRenderer(TemplateRenderer):
    """A `TemplateRenderer` whose parsers and variables come from a config.

    Args:
        options: fields that replace the config's: `DefaultRenderer(tokenizer, tool_parser="qwen3")`.

    Raises:
        TemplateError: the tokenizer has no template. TokenizerError: it cannot be used. UsageError: no such parser.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: DefaultRendererConfig | None = None,
        *,
        template: str | None = None,
        clock: Callable[[str], str] = no_clock,
        isolate: Isolation | None = None,
        **options: Any,
    ) -> None:
        config = DefaultRendererConfig() if config is None else config
        # Checked again as a whole: an option may be a variable of the template.
        self.config = with_options(config, options) if options else config
        super().__init__(
            tokenizer,
            template=template,
            clock=clock,
            isolate=isolate,
            **{option: value for option, value in self.config if option != "name"},
        )
