"""`TemplateRenderer`: renders conversations through any Jinja chat template, with attribution for every token."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import jinja2
from pydantic import BaseModel, ConfigDict, model_validator

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import Message, Messages, NoContent, normalise, reasoning_of
from niels_gpt.renderers.base_renderer import BaseRenderer
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.images.loading import refuse_images
from niels_gpt.renderers.options import FamilyConfig, with_options
from niels_gpt.renderers.parsers import dialect_of, reasoning_tags_of
from niels_gpt.renderers.template.attribution import (
    CONTENT_FIELDS,
    KNOWN_ROLES,
    UNKNOWN_ROLE,
    ControlTokens,
    Span,
    attribute_spans,
    check_controls,
)
from niels_gpt.renderers.template.bridge import bridge_by_rendering
from niels_gpt.renderers.template.execution.jinja import Chunk
from niels_gpt.renderers.template.execution.provenance import LABEL, LITERAL, MessageDict, track, tracked_text
from niels_gpt.renderers.template.execution.reads import Reads
from niels_gpt.renderers.template.execution.run import compile_template, run_template
from niels_gpt.renderers.template.execution.static_analysis import (
    fixed_prompt,
    flag_adds_only_the_prompt,
    template_strings,
)
from niels_gpt.renderers.template.isolation import Isolation, TemplateProcess
from niels_gpt.renderers.template.neutral import Neutral, check_chosen_controls
from niels_gpt.renderers.template.proofs.certificate import Certificate
from niels_gpt.renderers.template.proofs.disagreements import disagreement
from niels_gpt.renderers.template.proofs.oracle import Oracle
from niels_gpt.renderers.template.proofs.proof import (
    Proof,
    compared_tokens,
    emit_proof,
    labels_of,
    mark_stops,
    with_final_stops,
    with_proven_literals,
)
from niels_gpt.renderers.template.proofs.stops import check_final_stop
from niels_gpt.renderers.template.proofs.substitution import Unproven
from niels_gpt.renderers.template.tracing import Tracing
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.sources.files.inputs import read_text
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.load import open_encoder

_MESSAGE_FIELDS = CONTENT_FIELDS | {"role", "name", "tool_call_id", "train", "weight"}

_NO_IMAGES = (
    "a template says where an image is, and not how many tokens it takes. Name a family with images, or use text(), "
    "which shows what the template writes"
)

# Names that cannot be template variables: those that rendering sets itself, and options that only families have.
_NO_VARIABLES = {"tokenizer", "template", "clock", "stops", "messages", "tools", "documents", "add_generation_prompt"}
_FAMILY_OPTIONS = set(FamilyConfig.model_fields) - {"name"}


def no_clock(form: str) -> str:
    """The default clock, which raises: a rendering must not depend on the time at which it is made.

    Raises:
        MessageError: always.
    """
    raise MessageError(
        "no_clock",
        f"the chat template asks for the date ({form!r}); pass clock=, for example lambda form: '01 Jan 2026'",
    )


class TemplateRenderer(BaseRenderer):
    """Renders conversations through a chat template, with the text that serving renders, and attributes every token.

    The package's docstring (`renderers/template/__init__.py`) describes how. Instances pickle and are thread-safe.

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
        **variables: Any,
    ) -> None:
        self.encoder = open_encoder(tokenizer)
        if isinstance(self.encoder, TokenizerAdapter):  # so that content can never contain a stop
            named = [text for text, token in self.encoder.added_ids.items() if token in self.encoder.stop_ids]
            self.encoder = self.encoder.with_controls([*stops, *named])  # Laguna's `</assistant>` is not special
        if final_stop:
            check_final_stop(final_stop, self.encoder)
            stops = [*stops, final_stop]
        self.final_stop = final_stop
        source = self.encoder.template if template is None else template
        if source is None:
            name = self.encoder.name
            raise TemplateError(
                f"{name}: no chat template; pass template=, the text of a Jinja chat template (commands: --template "
                "FILE), or name a renderer such as chatml (--renderer NAME; `niels-gpt renderers` lists them)"
            )
        self.source, self._clock = source, clock
        self._variables = {**self.encoder.special_tokens, **variables}
        # Special tokens (`eos_token`) count as the template's own text, other variables are labels.
        self._tracked_variables = {
            name: track(value, LITERAL if isinstance(value, str) and name.endswith("_token") else LABEL)
            for name, value in self._variables.items()
        }
        self._roles = {role: tracked_text(role, LITERAL) for role in sorted(KNOWN_ROLES.union(roles))}
        self._isolate = isolate
        self._compiled = self._compile()
        # An isolated template is analysed in its own process, too: the analysis runs parts of it.
        self._fixed_prompt = (
            self._compiled.fixed_prompt(self._tracked_variables)
            if isinstance(self._compiled, TemplateProcess)
            else fixed_prompt(source, clock, self._tracked_variables)
        )
        self._only_prompt_needs_flag = self._fixed_prompt is not None and flag_adds_only_the_prompt(source)
        strings = self._compiled.strings() if isinstance(self._compiled, TemplateProcess) else template_strings(source)
        self._retained, self._tested = strings.retained, strings.tested
        self._certificate = Certificate(strings.searched)
        argument_stops = [self.encoder.added_ids[stop] for stop in stops if stop in self.encoder.added_ids]
        # Completions end at the arguments `stops` and `final_stop`, at eos, and at the stops of the generation config.
        self._stop_ids = list(dict.fromkeys([*argument_stops, *self.encoder.stop_ids]))
        eos = [text for text, token in self.encoder.control_ids.items() if token in self.encoder.stop_ids]
        self.stop_tokens = tuple(dict.fromkeys([*eos, *stops]))
        self.controls = ControlTokens([*self.encoder.control_ids, *stops], self.stop_tokens, final_stop)
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
        chunks = self._chunks(normalise(messages), tools, add_generation_prompt)
        return "".join(chunk.text for chunk in chunks)

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

    # ---- running the template

    def _chunks(
        self, messages: Sequence[Message], tools: Any, gen: bool, reads: Reads | None = None
    ) -> Iterator[Chunk]:
        """The template's output.

        Args:
            gen: the value of `add_generation_prompt`.
            reads: records which texts the template reads beyond copying them.
        """
        if tools is not None and (not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools)):
            raise MessageError("wrong_tools", f"tools is {str(tools)[:40]!r}; expected a list of objects, or None")
        variables = {
            "messages": [self._tracked_message(message, index) for index, message in enumerate(messages)],
            "tools": track(tools, LABEL),
            "documents": None,  # which transformers passes, too
            "add_generation_prompt": gen,
            **self._tracked_variables,
        }
        if isinstance(self._compiled, TemplateProcess):
            return self._compiled.run(variables, reads)
        return run_template(self._compiled, variables, reads)

    def _compile(self) -> jinja2.Template | TemplateProcess:
        """The compiled template, in this process or in one of its own."""
        if self._isolate is not None:
            return TemplateProcess(self.source, self._clock, self._isolate)
        return compile_template(self.source, self._clock)

    def _tracked_message(self, message: Message, index: int) -> MessageDict:
        """A message as transformers passes it to templates, with provenance.

        Content has the message's index as origin, everything else is a label, except a known role, which counts as the
        template's own text. Reasoning is offered under the names that templates read; a missing content is left out.
        """
        fields: Mapping[str, Any] = message
        reasoning = reasoning_of(message)
        if reasoning is not None:  # gpt-oss reads `thinking`, Qwen3 `reasoning_content`
            fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
        tracked: dict[str, Any] = {}
        for key, value in fields.items():
            if key == "role":  # a known role may become part of a control token: '<|' + message.role + '|>'
                tracked[key] = self._roles.get(value) or tracked_text(value, UNKNOWN_ROLE)
            elif type(value) is not NoContent:
                name = key if key in _MESSAGE_FIELDS else track(key, LABEL)
                tracked[name] = track(value, index if key in CONTENT_FIELDS else LABEL)
        return MessageDict(tracked, index)

    # ---- attribution

    def emit(self, messages: Messages, *, tools: Any = None, add_generation_prompt: bool = False) -> Emitter:
        """The rendering as pieces with their facts, before it is encoded; the arguments are those of `render`.

        Tracing attributes the conversation if the certificate trusts it for this kind; otherwise `oracle.py` does.
        """
        messages, gen, reads = normalise(messages), add_generation_prompt, Reads()
        refuse_images(messages, "unsupported_content", _NO_IMAGES)
        verdict = self._certificate.trusts(self, messages, tools, gen=gen and not self._only_prompt_needs_flag)
        out = proof = None
        if verdict.outcome == "agrees":
            out = self._tracing(tools, reads).emit(messages, gen, verdict.stops)
        # The certificate was found with probes; a conversation may still contain what tracing cannot follow, or an
        # answer of which the template writes nothing, so that its header seems to be of the next message.
        if out is None or out.attribution != "full" or _is_unseen(out, messages, verdict.written):
            out, proof = self._emit_proven(messages, tools, gen, reads)
        # Before `final_stop` is written: the template's own control tokens are compared.
        neutral = Neutral((self.source, messages, tools), self._tested, self.controls)
        check_chosen_controls(out, reads, neutral, partial(self._spans, gen=gen), (messages, tools))
        return mark_stops(out if proof is None else with_final_stops(out, proof, self.final_stop), self.controls)

    def _spans(self, messages: list[Message], tools: Any, gen: bool, reads: Reads | None = None) -> list[Span]:
        """The template's output as spans, each with its message as tracing knows it."""
        chunks = list(self._chunks(messages, tools, gen, reads))
        return attribute_spans(chunks, [message["role"] for message in messages], self.controls)

    @property
    def certificate(self) -> Certificate:
        """The verdicts on the template so far; `certificate.full(renderer)` computes the others."""
        return self._certificate

    def traced(self, messages: list[Message], tools: Any, gen: bool) -> Emitter:
        """The rendering with its attribution by tracing, whether that is trusted or not."""
        return self._tracing(tools).emit(messages, gen)

    def proof(self, messages: list[Message], tools: Any, gen: bool, rendered: dict[bytes, str] | None = None) -> Proof:
        """The attribution of a rendering by `oracle.py`.

        Args:
            rendered: texts that are known already, by what they are rendered from; those that are rendered here are
                put there, too.

        Raises:
            Unproven: the origin of the contents cannot be proven. MessageError: the template refuses the messages.
        """

        def text_once(messages: Sequence[Message], gen: bool) -> str:
            # Pickled, since "" and a missing content are equal and have the same `repr`.
            key = pickle.dumps((messages, tools, gen))
            if (found := known.get(key)) is None:
                found = known[key] = "".join(chunk.text for chunk in self._chunks(messages, tools, gen))
            return found

        known = {} if rendered is None else rendered
        oracle = Oracle(text_once, self.controls, self._retained, self.source)
        return oracle.prove(messages, add_generation_prompt=gen)

    def _emit_proven(
        self, messages: list[Message], tools: Any, gen: bool, reads: Reads
    ) -> tuple[Emitter, Proof | None]:
        """The rendering with the attribution that the oracle proves, and the proof.

        Without a proof it is that of tracing, restricted to what is certain, and `attribution` is "partial: ...".
        """
        spans = self._spans(messages, tools, gen, reads)
        try:
            proof = self.proof(messages, tools, gen)
        except Unproven as error:
            check_controls(spans, messages, (tools, self._variables), self.controls)
            out = self._tracing(tools).emit(messages, gen, cautious=True)
            out.attribution = f"partial: {error}"
            return out, None
        if not proof.problems:  # a kind of conversation that the probes do not cover, most often
            # The facts of tracing, if they are the proven ones: it may also know whose the scaffold of empty turns is.
            try:
                traced = self.traced(messages, tools, gen)
            except TemplateError:  # tracing loses the origin of a control token
                pass
            else:
                if not disagreement(traced, proof, messages, self.controls):
                    return traced, proof
        # Tracing is wrong here, and the template's own text may have lost its origin: the proof restores it.
        labels = labels_of(messages, tools, self._variables)
        labels |= compared_tokens(messages, self._retained, self.controls)
        spans = with_proven_literals(spans, proof, labels, self.controls)
        check_controls(spans, messages, (tools, self._variables), self.controls)
        return emit_proof(proof, spans, messages), proof

    def _tracing(self, tools: Any, reads: Reads | None = None) -> Tracing:
        return Tracing(
            partial(self._chunks, tools=tools, reads=reads),
            self.controls,
            self._fixed_prompt,
            (tools, self._variables),
        )

    def __getstate__(self) -> dict[str, Any]:
        """All but compiled templates, which do not pickle, and verdicts on probes; both are computed again.

        So a renderer has the same pickle before and after it was used, and in every process.
        """
        state = {key: value for key, value in self.__dict__.items() if key != "_compiled"}
        return state | {"_certificate": Certificate(self._certificate.literals)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._compiled = self._compile()


def load_template(path: str | Path) -> str:
    """The text of a template file.

    Raises:
        TemplateError: the file is missing or empty. InputError: it is not UTF-8 text.
    """
    file = Path(path)
    if not file.is_file():
        raise TemplateError(f"{file}: no such file; expected a Jinja chat template")
    text = read_text(file)
    if not text.strip():
        raise TemplateError(f"{file}: the file is empty; expected a Jinja chat template")
    return text


def _is_unseen(out: Emitter, messages: Sequence[Message], written: Set[str]) -> bool:
    """Whether a rendering has no text of some message, though the template writes messages of its role.

    Those with instructions do not count: templates merge them.

    Args:
        written: see `Verdict`. Phi-3's template writes no results of tools, on the probes either.
    """
    seen = {fact >> 4 for fact in out.facts}
    expected = written - {"system", "developer"}
    return any(index not in seen and message["role"] in expected for index, message in enumerate(messages))


class DefaultRendererConfig(BaseModel):
    """The tokenizer's own chat template. Fields that are not declared here are passed to the template as variables.

    Attributes:
        tool_parser, reasoning_parser: how completions are read: names in `TOOL_PARSERS` and `REASONING_PARSERS`.
        final_stop: the control token that ends an answer where the template writes no stop, such as `</s>`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Literal["default", "template"] = "default"
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    final_stop: str = ""

    @model_validator(mode="after")
    def _check_variables(self) -> Self:
        for name in self.model_extra or {}:
            if name in _FAMILY_OPTIONS:
                raise ValueError(
                    f"{name} is an option of families; a chat template has none. Name a family, or drop it"
                )
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
            tool_parser=self.config.tool_parser,
            reasoning_parser=self.config.reasoning_parser,
            final_stop=self.config.final_stop,
            **self.config.variables,
        )
