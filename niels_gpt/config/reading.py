"""The `<training>` of an XML file as a `TrainingConfig`, each fault told with its line.

Tags of `<training>` that are not ours may belong to other parts of the program, or be typing errors: a warning in the
log names them, and `strict` refuses them. Those that the caller names with `foreign` are left alone without a word.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, InputSource

from niels_gpt.config.fields import TrainingConfig, check, known_rules, meant
from niels_gpt.errors import InputError, UsageError, shortened, shown, storage_errors

MOST_NAMED = 40  # tags in a warning
SPACE = " \t\r\n"  # what XML calls white space; str.strip would also swallow a non-breaking space

_log = logging.getLogger("niels_gpt.config")


def read_training_config(
    path: str | Path, *, foreign: Collection[str] = (), strict: bool = False, **overrides: object
) -> TrainingConfig:
    """The configuration in the one `<training>` of an XML file, wherever it lies in the tree.

    Args:
        path: the file, UTF-8.
        foreign: tags of other parts of the program; they and all they contain are left alone.
        strict: refuse tags of `<training>` that are neither ours nor `foreign`; else the log warns of them.
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
    reader = _read(_utf8(text, where), where, _foreign(foreign), strict)
    reader.warn_of_unknown()
    try:
        return TrainingConfig(**{**reader.values, **overrides})  # type: ignore[arg-type]
    except UsageError as error:  # each value alone is right, so it is the two modes that do not go together
        pair = ("dataset_mode", "batch_sampling_mode")
        line = reader.lines.get(pair[1], reader.training_line)
        kind = UsageError if any(name in overrides for name in pair) else InputError
        raise kind(f"{where}:{line}: {error}") from error


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


def _read(data: bytes, where: str, foreign: frozenset[str], strict: bool) -> _Reader:
    try:
        from defusedxml.common import DefusedXmlException
        from defusedxml.sax import make_parser
    except ModuleNotFoundError as error:
        raise UsageError("reading XML needs defusedxml, which is not installed: pip install defusedxml") from error
    parser = make_parser()
    parser.forbid_dtd = parser.forbid_entities = parser.forbid_external = True
    reader = _Reader(parser, where, foreign, strict)
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

    def __init__(self, parser: Any, where: str, foreign: frozenset[str], strict: bool) -> None:
        super().__init__()
        self.parser, self.where, self.foreign, self.strict = parser, where, foreign, strict
        self.unknown: dict[str, int] = {}  # tags that are neither ours nor foreign, and their first lines
        self.values: dict[str, object] = {}
        self.lines: dict[str, int] = {}
        self.training_line = 0
        self.inside = False
        self.skipped = 0  # depth inside a tag that is not read
        self.tag: str | None = None
        self.text: list[str] = []

    def error(self, what: str, line: int | None = None) -> InputError:
        return InputError(f"{self.where}:{line or self.parser.getLineNumber()}: {what}")

    def warn_of_unknown(self) -> None:
        """Name every tag that was not read, in one line of the log."""
        if not self.unknown:
            return
        rules = known_rules()
        named = [f"<{tag}> (line {line}){meant(tag, rules)}" for tag, line in self.unknown.items()]
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
        rules = known_rules()
        if name not in rules and not self.strict:
            self.unknown.setdefault(name, self.parser.getLineNumber())
            self.skipped = 1
            return
        if name not in rules:
            raise self.error(
                f"<{name}> is no tag of <training>{meant(name, rules)}; expected one of {', '.join(rules)}; "
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
        rule = known_rules()[name]
        if not text:
            what = f"<{name}> is empty; expected {rule.expected}; take it out for the default ({rule.otherwise})"
            raise self.error(what, self.lines[name])
        value = rule.value_of(text)
        if fault := rule.fault(value):
            what = f"<{name}> is {shown(text)}; {fault}; write it like <{name}>{rule.example}</{name}>"
            raise self.error(what, self.lines[name])
        self.values[name] = value
        self.tag = None

    def characters(self, content: str) -> None:  # a line at a time, never more
        if self.tag:
            self.text.append(content)
        elif self.inside and not self.skipped and content.strip(SPACE):
            what = f"text {shown(content.strip(SPACE))} in <training>; expected tags; put it into a tag or a comment"
            raise self.error(what)
