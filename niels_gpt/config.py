"""The training configuration of "Episode-Indexed SFT Loader", from keywords or from the `<training>` of an XML file.

The fields of `TrainingConfig` are the only list of tags: what checks a keyword, reads a tag and writes the example
file goes by them. A training job imports this module without an XML library; only reading a file needs defusedxml.

A file may name only these tags inside `<training>`. Others are typing errors, unless the caller says with `foreign`
that they are another part's business; nothing is skipped in silence.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, InputSource

from niels_gpt.errors import InputError, UsageError, storage_errors

SPACE = " \t\r\n"  # what XML calls white space; str.strip would also swallow a non-breaking space
INTEGER = re.compile(r"[+-]?[0-9]{1,640}")  # Python may be set to refuse to read integers of more than 640 digits
DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")
BY_CALL = "what the loader's call says"
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class _Rule:
    """What a field may hold, and how the example file shows it. `unset` says what None stands for.

    `live` keeps a tag that has no default from being commented out there.
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
        if self.kind == "choice":
            return " or ".join(self.choices)
        if self.kind == "flag":
            return "true or false"
        return f"an integer of at least {self.minimum}" if self.kind == "integer" else "a device, such as cpu or cuda:1"

    @property
    def example(self) -> str:
        return self.shown or str(self.default).lower()

    @property
    def otherwise(self) -> str:
        return self.unset or self.example


def _tag(default: Any, kind: Any, comment: str, **more: Any) -> Any:
    return field(default=default, metadata={"rule": _Rule(default, kind, comment, **more)})


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of a loader, each checked; see `example_xml` for what they mean.

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
        shown="random",  # goes with both data set modes
    )
    epoch_shuffle: bool = _tag(True, "flag", "another order of the episodes in every epoch")
    epoch_drop_last: bool = _tag(True, "flag", "leave out the last batch of an epoch where it is not full")
    epoch_seed: int = _tag(1337, "integer", "with the number of the epoch, decides the order of the episodes")
    pad_token_id: int | None = _tag(
        None, "integer", "fills rows whose episode is short", unset="the tokenizer's eos", shown="50256"
    )
    episode_min_tokens: int = _tag(2, "integer", "shorter episodes are left out", minimum=1)
    batch_size: int | None = _tag(None, "integer", "rows in a batch", minimum=1, unset=BY_CALL, shown="32", live=True)
    block_size: int | None = _tag(None, "integer", "tokens in a row", minimum=1, unset=BY_CALL, shown="512", live=True)
    device: str = _tag("cpu", "device", "where batches are put")
    use_loss_mask: bool | None = _tag(
        None, "flag", "train on the assistant's tokens only", unset="as the loader has it", shown="true"
    )

    def __post_init__(self) -> None:
        _check(vars(self), of="TrainingConfig")
        if self.dataset_mode == "token_stream" and self.batch_sampling_mode == "epoch":
            raise UsageError(
                "batch_sampling_mode is 'epoch' while dataset_mode is 'token_stream'; epochs need episodes: "
                "set dataset_mode to sft_episode, or batch_sampling_mode to random"
            )

    @property
    def sampling_mode(self) -> str:
        """`batch_sampling_mode`, or the mode's own: "epoch" for sft_episode, "random" for token_stream."""
        return self.batch_sampling_mode or ("epoch" if self.dataset_mode == "sft_episode" else "random")


def read_training_config(path: str | Path, *, foreign: Collection[str] = (), **overrides: object) -> TrainingConfig:
    """The configuration in the one `<training>` of an XML file, wherever it lies in the tree.

    Args:
        path: the file, UTF-8.
        foreign: tags of other parts of the program; they and all they contain are left alone.
        overrides: fields of `TrainingConfig`; they win over the file.

    Raises:
        InputError: the file is missing, a directory, empty, not UTF-8, not well-formed, has a DTD, or anything in
            `<training>` cannot be used; with the line.
        UsageError: `foreign` or an override is wrong, an override does not go with the file, or defusedxml is missing.
        StorageError: the disk refused.
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
    return parse_training_config(data, where=str(file), foreign=foreign, **overrides)


def parse_training_config(
    text: str | bytes, *, where: str = "<string>", foreign: Collection[str] = (), **overrides: object
) -> TrainingConfig:
    """As `read_training_config`, from the text of a file; `where` is its name in errors.

    Raises:
        InputError: as above.
        UsageError: as above.
    """
    _check(overrides, of="the overrides")
    reader = _read(_utf8(text, where), where, _foreign(foreign))
    try:
        return TrainingConfig(**{**reader.values, **overrides})  # type: ignore[arg-type]
    except UsageError as error:  # each value alone is right, so it is the two modes that do not go together
        pair = ("dataset_mode", "batch_sampling_mode")
        line = reader.lines.get(pair[1], reader.training_line)
        kind = UsageError if any(name in overrides for name in pair) else InputError
        raise kind(f"{where}:{line}: {error}") from error


def example_xml() -> str:
    """A whole configuration file with every tag, its default and its meaning; read it back as any other.

    Tags without a default value are commented out, save `batch_size` and `block_size`, which every loader needs.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<!-- Any tag may be left out: its default then holds. -->"]
    lines += ["<config>", "  <training>"]
    for name, rule in _rules().items():
        tag = f"<{name}>{rule.example}</{name}>"
        lines.append(f"    <!-- {rule.comment}: {rule.expected}; default: {rule.otherwise} -->")
        lines.append(f"    {tag}" if rule.live or rule.default is not None else f"    <!-- {tag} -->")
    return "\n".join([*lines, "  </training>", "</config>", ""])


def _rules() -> dict[str, _Rule]:
    return {each.name: each.metadata["rule"] for each in fields(TrainingConfig)}


def _check(values: Mapping[str, object], *, of: str) -> None:
    rules = _rules()
    for name, value in values.items():
        if name not in rules:
            raise UsageError(f"{of}: {name!r} is no field{_nearest(name, rules)}; expected one of {', '.join(rules)}")
        if fault := _fault(rules[name], value):
            none = f"; None stands for {rules[name].unset}" if rules[name].unset else ""
            raise UsageError(f"{of}: {name} is {_shown(value)}; {fault}{none}")


def _fault(rule: _Rule, value: object) -> str | None:
    """What was expected in place of `value`; None where it is right."""
    if value is None:
        right = rule.default is None
    elif rule.kind == "flag":
        right = isinstance(value, bool)
    elif rule.kind == "integer":
        right = isinstance(value, int) and not isinstance(value, bool) and value >= rule.minimum
    elif rule.kind == "choice":
        right = isinstance(value, str) and value in rule.choices
    else:
        right = isinstance(value, str) and DEVICE.fullmatch(value) is not None
    near = _nearest(value, rule.choices) if isinstance(value, str) else ""
    return None if right else f"expected {rule.expected}{near}"


def _from_text(rule: _Rule, text: str) -> object:
    """The value that a tag's text writes, or the text itself, which `_fault` then refuses where it must."""
    if rule.kind == "flag":
        return FLAGS.get(text.lower(), text)
    return int(text) if rule.kind == "integer" and INTEGER.fullmatch(text) else text


def _nearest(given: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(given.lower(), known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _shown(value: object) -> str:
    try:
        text = " ".join(repr(value).split())
    except ValueError:
        return "an integer too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _foreign(tags: Collection[str]) -> frozenset[str]:
    if isinstance(tags, str):
        raise UsageError(f"foreign is the text {tags!r}; expected a collection of tags: write foreign=({tags!r},)")
    if "training" in tags:
        raise UsageError("foreign names 'training', which is read here; expected tags of other parts: leave it out")
    return frozenset(tags)


def _utf8(text: str | bytes, where: str) -> bytes:
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    bad = data.find(0)  # XML has no NUL, but UTF-16 without a byte order mark does, and expat would follow it
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


def _read(data: bytes, where: str, foreign: frozenset[str]) -> _Reader:
    try:
        from defusedxml.common import DefusedXmlException
        from defusedxml.sax import make_parser
    except ModuleNotFoundError as error:
        raise UsageError("reading XML needs defusedxml, which is not installed: pip install defusedxml") from error
    parser = make_parser()
    parser.forbid_dtd = parser.forbid_entities = parser.forbid_external = True
    reader = _Reader(parser, where, foreign)
    parser.setContentHandler(reader)
    source = InputSource()
    source.setByteStream(io.BytesIO(data))
    source.setEncoding("utf-8")  # it is, whatever the file says of itself
    try:
        parser.parse(source)
    except SAXParseException as error:
        place = f"{where}:{error.getLineNumber()}:{1 + (error.getColumnNumber() or 0)}"
        raise InputError(f"{place}: {error.getMessage()}; expected well-formed XML; repair it there") from error
    except DefusedXmlException as error:
        raise reader.error("a DTD (<!DOCTYPE ...>); expected none, entities are not read; take it out") from error
    if not reader.training_line:
        raise InputError(f"{where}: no <training>; expected one anywhere in the tree; example_xml() writes one")
    return reader


class _Reader(ContentHandler):
    """Collects the values of `<training>` with their lines."""

    def __init__(self, parser: Any, where: str, foreign: frozenset[str]) -> None:
        super().__init__()
        self.parser, self.where, self.foreign = parser, where, foreign
        self.values: dict[str, object] = {}
        self.lines: dict[str, int] = {}
        self.training_line = 0
        self.inside = False
        self.skipped = 0  # depth inside a foreign tag
        self.tag: str | None = None
        self.text: list[str] = []

    def error(self, what: str, line: int | None = None) -> InputError:
        return InputError(f"{self.where}:{line or self.parser.getLineNumber()}: {what}")

    def startElement(self, name: str, attrs: AttributesImpl) -> None:  # noqa: N802 (the library's name)
        if self.tag:
            raise self.error(f"<{name}> inside <{self.tag}>; expected a value alone; close <{self.tag}> before it")
        if self.skipped or name in self.foreign:
            self.skipped += 1
        elif name == "training":
            self._open_training(attrs)
        elif self.inside:
            self._open_value(name, attrs)

    def _open_training(self, attrs: AttributesImpl) -> None:
        if self.training_line:
            raise self.error(f"a second <training>, the first is on line {self.training_line}; expected one; join them")
        for name in attrs.getNames():
            if not name.startswith("xml") and name not in self.foreign:
                raise self.error(f"<training> has the attribute {name!r}; expected none; write a tag <{name}> in it")
        self.training_line = self.parser.getLineNumber()
        self.inside = True

    def _open_value(self, name: str, attrs: AttributesImpl) -> None:
        rules = _rules()
        if name not in rules:
            raise self.error(
                f"<{name}> is no tag of <training>{_nearest(name, rules)}; expected one of {', '.join(rules)}; "
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
            self._close_value(self.tag, "".join(self.text).strip(SPACE))
        elif name == "training":
            self.inside = False

    def _close_value(self, name: str, text: str) -> None:
        rule = _rules()[name]
        if not text:
            what = f"<{name}> is empty; expected {rule.expected}; take it out for the default ({rule.otherwise})"
            raise self.error(what, self.lines[name])
        value = _from_text(rule, text)
        if fault := _fault(rule, value):
            what = f"<{name}> is {_shown(text)}; {fault}; write it like <{name}>{rule.example}</{name}>"
            raise self.error(what, self.lines[name])
        self.values[name] = value
        self.tag = None

    def characters(self, content: str) -> None:  # a line at a time, never more
        if self.tag:
            self.text.append(content)
        elif self.inside and not self.skipped and content.strip(SPACE):
            what = f"text {_shown(content.strip(SPACE))} in <training>; expected tags; put it into a tag or a comment"
            raise self.error(what)
