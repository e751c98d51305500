"""`TrainingConfig`, the settings of a loader, and its XML form.

The dataclass' fields are the only list of settings: checking a keyword, reading an XML tag and writing the example file
all follow from a `Rule` in each field's metadata.

`read_training_config` reads the `<training>` element of an XML file; errors name the line. Unknown tags in it may
belong to other parts of the program, or be typing errors: by default a warning in the log names them, `strict` refuses
them, and those listed in `foreign` are skipped silently.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, InputSource

from niels_gpt.errors import InputError, UsageError, nearest, shortened, shown, storage_errors
from niels_gpt.seeds import DEFAULT_SEED

INTEGER = re.compile(r"[+-]?[0-9]{1,640}")  # Python can be configured to convert at most 640 digits
DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")
DOCUMENT_SEED = 1337  # of a file that names none, as document 002 has it
BY_CALL = "as passed to the loader"
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Rule:
    """What a field may hold, and how the example file shows it.

    Attributes:
        unset: what `None` means for the field.
        shown: the example value, if it is not the default.
        live: the tag is not commented out in the example file, although it has no default.
    """

    default: str | int | bool | None
    kind: Literal["choice", "flag", "integer", "device"]
    comment: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    unset: str = ""
    shown: str = ""
    live: bool = False

    @property
    def expected(self) -> str:
        """The valid values of the field, for messages."""
        if self.kind == "choice":
            return " or ".join(self.choices)
        if self.kind == "flag":
            return "true or false"
        return f"an integer of at least {self.minimum}" if self.kind == "integer" else "a device, such as cpu or cuda:1"

    @property
    def example(self) -> str:
        """A valid value as a tag's text."""
        return self.shown or str(self.default).lower()

    @property
    def default_text(self) -> str:
        """The value if the tag is absent, for the example file and messages."""
        return self.unset or self.example

    def fault(self, value: object) -> str | None:
        """The expected value, for messages; `None` if `value` is valid."""
        if value is None:
            valid = self.default is None
        elif self.kind == "flag":
            valid = isinstance(value, bool)
        elif self.kind == "integer":  # `True` is an int in Python, but no number of rows
            valid = isinstance(value, int) and not isinstance(value, bool) and value >= self.minimum
        elif self.kind == "choice":
            valid = isinstance(value, str) and value in self.choices
        else:
            valid = isinstance(value, str) and DEVICE.fullmatch(value) is not None
        near = suggestion(value, self.choices) if isinstance(value, str) else ""
        return None if valid else f"expected {self.expected}{near}"

    def value_of(self, text: str) -> object:
        """The value of a tag's text; text that cannot be converted is returned as it is, and `fault` refuses it."""
        # Not `int` alone, which accepts 1_000 and other digits than 0 to 9.
        if self.kind == "flag":
            return FLAGS.get(text.lower(), text)
        return int(text) if self.kind == "integer" and INTEGER.fullmatch(text) else text


def _tag(default: Any, kind: Any, comment: str, **more: Any) -> Any:
    return field(default=default, metadata={"rule": Rule(default, kind, comment, **more)})


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of a loader, each checked; `example_xml` explains them.

    Raises:
        UsageError: a value is of another type or out of range, or token_stream is to be sampled by epochs.
    """

    dataset_mode: str = _tag(
        "token_stream", "choice", "windows of one stream, or whole episodes", choices=("token_stream", "sft_episode")
    )
    batch_sampling_mode: str | None = _tag(
        None,
        "choice",
        "epoch, for sft_episode only, sees each episode once",
        choices=("random", "epoch"),
        unset="epoch for sft_episode, else random",
        shown="random",  # valid with both dataset modes
    )
    epoch_shuffle: bool = _tag(True, "flag", "another order of the episodes in every epoch")
    epoch_drop_last: bool = _tag(True, "flag", "leave out the last batch of an epoch where it is not full")
    epoch_seed: int = _tag(
        DEFAULT_SEED,
        "integer",
        "with the number of the epoch, decides the order of the episodes",
        shown=str(DOCUMENT_SEED),
    )
    pad_token_id: int | None = _tag(
        None, "integer", "fills rows whose episode is short", unset="the tokenizer's eos", shown="50256"
    )
    episode_min_tokens: int = _tag(2, "integer", "shorter episodes are left out", minimum=1)
    batch_size: int | None = _tag(None, "integer", "rows in a batch", minimum=1, unset=BY_CALL, shown="32", live=True)
    block_size: int | None = _tag(None, "integer", "tokens in a row", minimum=1, unset=BY_CALL, shown="512", live=True)
    device: str = _tag("cpu", "device", "where batches are put")
    use_loss_mask: bool | None = _tag(
        None, "flag", "train on the assistant's tokens only", unset="true if the dataset has masks", shown="true"
    )

    def __post_init__(self) -> None:
        check(vars(self), of="TrainingConfig")
        if self.dataset_mode == "token_stream" and self.batch_sampling_mode == "epoch":
            raise UsageError(
                "batch_sampling_mode is 'epoch' while dataset_mode is 'token_stream'; epochs need episodes: "
                "set dataset_mode to sft_episode, or batch_sampling_mode to random"
            )

    @property
    def sampling_mode(self) -> str:
        """`batch_sampling_mode`, or the dataset mode's default: "epoch" for sft_episode, "random" for token_stream."""
        return self.batch_sampling_mode or ("epoch" if self.dataset_mode == "sft_episode" else "random")


def example_xml() -> str:
    """A configuration file with every tag, its default and its meaning; `read_training_config` can read it.

    Tags without a default are commented out, except `batch_size` and `block_size`, which every loader needs.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<!-- Any tag may be left out: its default then holds. -->"]
    lines += ["<config>", "  <training>"]
    for name, rule in known_rules().items():
        tag = f"<{name}>{rule.example}</{name}>"
        lines.append(f"    <!-- {rule.comment}: {rule.expected}; default: {rule.default_text} -->")
        lines.append(f"    {tag}" if rule.live or rule.default is not None else f"    <!-- {tag} -->")
    return "\n".join([*lines, "  </training>", "</config>", ""])


def known_rules() -> dict[str, Rule]:
    """The rule of every field, by its name."""
    return {each.name: each.metadata["rule"] for each in fields(TrainingConfig)}


def check(values: Mapping[str, object], *, of: str) -> None:
    """Raise `UsageError` for the first of these fields that is unknown or invalid; `of` names their owner."""
    rules = known_rules()
    for name, value in values.items():
        if name not in rules:
            near = suggestion(name, rules)
            raise UsageError(f"{of}: {name!r} is no field{near}; expected one of {', '.join(rules)}")
        if fault := rules[name].fault(value):
            none = f"; None means {rules[name].unset}" if rules[name].unset else ""
            raise UsageError(f"{of}: {name} is {shown(value)}; {fault}{none}")


def suggestion(name: str, names: Collection[str]) -> str:
    """The most similar name, for the middle of a message; empty if none is similar."""
    near = nearest(name, names)
    return f" (did you mean {near}?)" if near else ""


MOST_NAMED = 40  # tags in a warning
SPACE = " \t\r\n"  # white space in XML; str.strip() would also remove a non-breaking space

_log = logging.getLogger("niels_gpt.config")


def read_training_config(
    path: str | Path, *, foreign: Collection[str] = (), strict: bool = False, **overrides: object
) -> TrainingConfig:
    """The configuration in the one `<training>` element of an XML file, anywhere in its tree.

    Args:
        path: the file, UTF-8.
        foreign: tags of other parts of the program, which are skipped with all that they contain.
        strict: refuse unknown tags in `<training>`; else a warning in the log names them.
        overrides: fields of `TrainingConfig`; they win over the file.

    Raises:
        InputError: the file is missing, a directory, empty, not UTF-8, not well-formed, has a DTD, or something in
            `<training>` is invalid (the line is named).
        UsageError: `foreign` or an override is invalid, an override contradicts the file, or defusedxml is missing.
        StorageError: the file system refused.
    """
    file = Path(path)
    with storage_errors("reading", file):
        if file.is_dir():
            raise InputError(f"{file}: this is a directory; expected an XML file")
        if not file.exists():
            raise InputError(f"{file}: no such file; check the path (it is relative to {Path.cwd()})")
        if not file.is_file():
            raise InputError(f"{file}: a pipe or device; expected a regular file. Write it to one")
        data = file.read_bytes()
    return parse_training_config(data, where=str(file), foreign=foreign, strict=strict, **overrides)


def parse_training_config(
    text: str | bytes,
    *,
    where: str = "<string>",
    foreign: Collection[str] = (),
    strict: bool = False,
    **overrides: object,
) -> TrainingConfig:
    """As `read_training_config`, from the text of a file; `where` is its name in errors.

    Raises:
        InputError: as above.
        UsageError: as above.
    """
    check(overrides, of="the overrides")
    if isinstance(foreign, str):  # a text is a collection, too: of its characters
        raise UsageError(
            f"foreign is the text {foreign!r}; expected a collection of tags: write foreign=({foreign!r},)"
        )
    if "training" in foreign:
        raise UsageError("foreign names 'training', which is read here; expected tags of other parts: leave it out")
    reader = _read(_utf8(text, where), where, frozenset(foreign), strict)
    reader.warn_of_unknown()
    try:
        return TrainingConfig(**{"epoch_seed": DOCUMENT_SEED, **reader.values, **overrides})  # type: ignore[arg-type]
    except UsageError as error:  # each value is valid, so the two modes contradict each other
        # Whose fault it is decides the exit code: the caller's where an override takes part, else the file's.
        pair = ("dataset_mode", "batch_sampling_mode")
        line = reader.lines.get(pair[1], reader.training_line)
        kind = UsageError if any(name in overrides for name in pair) else InputError
        raise kind(f"{where}:{line}: {error}") from error


def _utf8(text: str | bytes, where: str) -> bytes:
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    bad = data.find(0)  # XML has no NUL byte, but UTF-16 without a byte order mark does, which expat would decode
    try:
        data.decode()
    except UnicodeDecodeError as error:
        bad = error.start
    if bad >= 0:
        what = f"{where}:{1 + data.count(10, 0, bad)}: invalid UTF-8 at byte {bad} (0x{data[bad]:02x}); expected text"
        raise InputError(f"{what}; save the file as UTF-8, for example with: iconv -f ORIGINAL -t UTF-8")
    if not data.strip():
        raise InputError(f"{where}: the file is empty; expected XML with a <training>; example_xml() writes one")
    return data


def _read(data: bytes, where: str, foreign: frozenset[str], strict: bool) -> _Reader:
    try:
        from defusedxml.common import DefusedXmlException
        from defusedxml.sax import make_parser
    except ModuleNotFoundError as error:
        raise UsageError("reading XML needs defusedxml, which is not installed: pip install defusedxml") from error
    parser = make_parser()
    # Entities could expand to gigabytes or read other files.
    parser.forbid_dtd = parser.forbid_entities = parser.forbid_external = True
    reader = _Reader(parser, where, foreign, strict)
    parser.setContentHandler(reader)
    source = InputSource()
    source.setByteStream(io.BytesIO(data))
    source.setEncoding("utf-8")  # `_utf8` has checked that, whatever the XML declaration says
    try:
        parser.parse(source)
    except SAXParseException as error:
        # expat counts lines from 1 and columns from 0.
        place = f"{where}:{error.getLineNumber()}:{1 + (error.getColumnNumber() or 0)}"
        raise InputError(f"{place}: {error.getMessage()}; expected well-formed XML; repair it there") from error
    except DefusedXmlException as error:
        raise reader.error("a DTD (<!DOCTYPE ...>); expected none, entities are not read; take it out") from error
    if not reader.training_line:
        raise InputError(f"{where}: no <training>; expected one anywhere in the tree; example_xml() writes one")
    return reader


class _Reader(ContentHandler):
    """Collects the values in `<training>` and their lines."""

    def __init__(self, parser: Any, where: str, foreign: frozenset[str], strict: bool) -> None:
        super().__init__()
        self.parser, self.where, self.foreign, self.strict = parser, where, foreign, strict
        self.unknown: dict[str, int] = {}  # tags that are neither fields nor foreign, and their first lines
        self.values: dict[str, object] = {}
        self.lines: dict[str, int] = {}
        self.training_line = 0
        self.inside = False
        self.skipped = 0  # how many tags deep the parser is inside one that is skipped
        self.tag: str | None = None  # the value's tag that is open, and its text so far
        self.text: list[str] = []

    def error(self, what: str, line: int | None = None) -> InputError:
        return InputError(f"{self.where}:{line or self.parser.getLineNumber()}: {what}")

    def warn_of_unknown(self) -> None:
        """Name every unknown tag in one warning."""
        if not self.unknown:
            return
        rules = known_rules()
        named = [f"<{tag}> (line {line}){suggestion(tag, rules)}" for tag, line in self.unknown.items()]
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        _log.warning(
            "%s: <training> has tags that are not read here: %s%s; if other parts of the program read them, pass "
            "foreign=(...); strict=True refuses them",
            self.where,
            shortened(", ".join(named[:MOST_NAMED]), 1000),
            more,
        )

    def startElement(self, name: str, attrs: AttributesImpl) -> None:  # noqa: N802 (the library's name)
        if self.tag:
            raise self.error(f"<{name}> inside <{self.tag}>; expected only a value; close <{self.tag}> before it")
        if self.skipped or name in self.foreign:
            self.skipped += 1
        elif name == "training":
            if self.training_line:
                raise self.error(
                    f"a second <training>, the first is on line {self.training_line}; expected one; join them"
                )
            for key in attrs.getNames():
                # Names that begin with "xml" are reserved by XML: xmlns, xml:lang. They carry no setting.
                if not key.startswith("xml") and key not in self.foreign:
                    raise self.error(f"<training> has the attribute {key!r}; expected none; write a tag <{key}> in it")
            self.training_line = self.parser.getLineNumber()
            self.inside = True
        elif self.inside:
            self._open_value(name, attrs)

    def _open_value(self, name: str, attrs: AttributesImpl) -> None:
        rules = known_rules()
        if name not in rules and not self.strict:
            self.unknown.setdefault(name, self.parser.getLineNumber())
            self.skipped = 1
            return
        if name not in rules:
            raise self.error(
                f"<{name}> is no tag of <training>{suggestion(name, rules)}; expected one of {', '.join(rules)}; "
                f"if another part of the program reads it, pass foreign=({name!r},)"
            )
        if name in self.lines:
            raise self.error(f"<{name}> again, it is on line {self.lines[name]} already; expected once; take one out")
        if attrs.getLength():
            what = f"<{name}> has the attribute {attrs.getNames()[0]!r}; expected none"
            raise self.error(f"{what}; write the value between the tags: <{name}>{rules[name].example}</{name}>")
        self.tag, self.text = name, []
        self.lines[name] = self.parser.getLineNumber()

    def endElement(self, name: str) -> None:  # noqa: N802 (the library's name)
        if self.skipped:
            self.skipped -= 1
        elif self.tag:
            # No tag is open inside of a value's, so this is the end of `self.tag`.
            rule, text = known_rules()[name], "".join(self.text).strip(SPACE)
            if not text:
                what = f"<{name}> is empty; expected {rule.expected}; take it out for the default ({rule.default_text})"
                raise self.error(what, self.lines[name])
            value = rule.value_of(text)
            if fault := rule.fault(value):
                what = f"<{name}> is {shown(text)}; {fault}; write it like <{name}>{rule.example}</{name}>"
                raise self.error(what, self.lines[name])
            self.values[name] = value
            self.tag = None
        elif name == "training":
            self.inside = False

    # Called for at most one line of a text at a time, so the parts are joined at the end of the tag.
    def characters(self, content: str) -> None:
        if self.tag:
            self.text.append(content)
        elif self.inside and not self.skipped and content.strip(SPACE):
            what = f"text {shown(content.strip(SPACE))} in <training>; expected tags; put it into a tag or a comment"
            raise self.error(what)
