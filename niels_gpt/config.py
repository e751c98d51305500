"""`TrainingConfig`, the settings of a loader, and its XML form.

The model's fields are the only list of settings: checking a keyword, reading an XML tag and writing the example file
all follow from them.

`read_training_config` reads the `<training>` element of an XML file; errors name the line. Unknown tags in it may
belong to other parts of the program, or be typing errors: by default a warning in the log names them, `strict` refuses
them, and those listed in `foreign` are skipped silently.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, Field, ValidationError

from niels_gpt.errors import InputError, UsageError, nearest, shortened, shown, storage_errors
from niels_gpt.seeds import DEFAULT_SEED

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

INTEGER = re.compile(r"[+-]?[0-9]{1,640}")  # Python can be configured to convert at most 640 digits
DOCUMENT_SEED = 1337  # of a file that names none, as document 002 has it
FLAGS = {"true": True, "1": True, "false": False, "0": False}
MOST_NAMED = 40  # tags in a warning
SPACE = " \t\r\n"  # white space in XML; str.strip() would also remove a non-breaking space

_log = logging.getLogger("niels_gpt.config")

Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class _Fields(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The fields; each one's first example is its value in the example file."""

    dataset_mode: Literal["token_stream", "sft_episode"] = Field(
        "token_stream", description="windows of one stream (token_stream), or whole episodes (sft_episode)"
    )
    batch_sampling_mode: Literal["random", "epoch"] | None = Field(
        None,
        description="random or epoch, which sees each episode once; default: epoch for sft_episode, else random",
        examples=["random"],  # valid with both dataset modes
    )
    epoch_shuffle: bool = Field(True, description="another order of the episodes in every epoch")
    epoch_drop_last: bool = Field(True, description="leave out the last batch of an epoch where it is not full")
    epoch_seed: Natural = Field(
        DEFAULT_SEED,
        description="with the number of the epoch, decides the order of the episodes",
        examples=[DOCUMENT_SEED],
    )
    pad_token_id: Natural | None = Field(
        None, description="fills rows whose episode is short; default: the tokenizer's eos", examples=[50256]
    )
    episode_min_tokens: Positive = Field(2, description="shorter episodes are left out")
    batch_size: Positive | None = Field(None, description="rows in a batch", examples=[32])
    block_size: Positive | None = Field(None, description="tokens in a row", examples=[512])
    device: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(:[0-9]+)?$")] = Field(
        "cpu", description="where batches are put, such as cpu or cuda:1"
    )
    use_loss_mask: bool | None = Field(
        None,
        description="train on the assistant's tokens only; default: true if the dataset has masks",
        examples=[True],
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            fault = error.errors()[0]
            name = str(fault["loc"][0])
            if fault["type"] == "extra_forbidden":
                known = ", ".join(_Fields.model_fields)
                what = f"{name!r} is no field{suggestion(name)}; expected one of {known}"
            else:  # `Input should be a valid integer` becomes `expected a valid integer`
                expected = re.sub(r"^(Input|String) should (be )?", "expected ", fault["msg"])
                what = f"{name} is {shown(fault['input'])}; {expected}"
            raise UsageError(f"TrainingConfig: {what}") from None


class TrainingConfig(_Fields, frozen=True):
    """The settings of a loader, each checked; `example_xml` explains them.

    Raises:
        UsageError: a value is of another type or out of range, or token_stream is to be sampled by epochs.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
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
    for name, field in TrainingConfig.model_fields.items():
        tag = f"<{name}>{str(_example(name)).lower()}</{name}>"
        lines.append(f"    <!-- {field.description} -->")
        is_needed = field.default is not None or name in ("batch_size", "block_size")
        lines.append(f"    {tag}" if is_needed else f"    <!-- {tag} -->")
    return "\n".join([*lines, "  </training>", "</config>", ""])


def _example(name: str) -> Any:
    """A valid value of a field that is not `None`."""
    field = TrainingConfig.model_fields[name]
    return field.examples[0] if field.examples else field.default


def suggestion(name: str) -> str:
    """The most similar field, for the middle of a message; empty if none is similar."""
    near = nearest(name, TrainingConfig.model_fields)
    return f" (did you mean {near}?)" if near else ""


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
    _Fields(**overrides)  # the caller's mistakes come before the file's
    if isinstance(foreign, str):  # a text is a collection, too: of its characters
        raise UsageError(
            f"foreign is the text {foreign!r}; expected a collection of tags: write foreign=({foreign!r},)"
        )
    if "training" in foreign:
        raise UsageError("foreign names 'training', which is read here; expected tags of other parts: leave it out")
    file = _File(text.encode(errors="surrogatepass") if isinstance(text, str) else text, where, frozenset(foreign))
    training = file.training()
    values = file.values(training, strict)
    try:
        return TrainingConfig(**{"epoch_seed": DOCUMENT_SEED, **values, **overrides})
    except UsageError as error:  # each value is valid, so the two modes contradict each other
        # Whose fault it is decides the exit code: the caller's where an override takes part, else the file's.
        kind = UsageError if {"dataset_mode", "batch_sampling_mode"} & overrides.keys() else InputError
        raise kind(f"{where}:{file.lines[training]}: {error}") from error


class _File:
    """The elements of an XML file and their lines; `root` is the tree."""

    def __init__(self, data: bytes, where: str, foreign: frozenset[str]) -> None:
        self.where, self.foreign = where, foreign
        self.lines: dict[Element, int] = {}
        bad = data.find(0)  # XML has no NUL byte, but UTF-16 without a byte order mark does, which expat would decode
        try:
            data.decode()
        except UnicodeDecodeError as error:
            bad = error.start
        if bad >= 0:
            what = f"{where}:{1 + data.count(10, 0, bad)}: invalid UTF-8 at byte {bad} (0x{data[bad]:02x}); expected"
            raise InputError(f"{what} text; save the file as UTF-8, for example with: iconv -f ORIGINAL -t UTF-8")
        if not data.strip():
            raise InputError(f"{where}: the file is empty; expected XML with a <training>; example_xml() writes one")
        self.root = self._parsed(data)

    def _parsed(self, data: bytes) -> Element:
        try:
            from defusedxml.common import DefusedXmlException
            from defusedxml.ElementTree import DefusedXMLParser, ParseError
        except ModuleNotFoundError as error:
            raise UsageError("reading XML needs defusedxml, which is not installed: pip install defusedxml") from error
        from xml.etree.ElementTree import Element, TreeBuilder
        from xml.parsers.expat.errors import messages

        def element(tag: str, attributes: dict[str, str]) -> Element:
            found = Element(tag.rpartition("}")[2], attributes)  # a namespace says nothing here
            self.lines[found] = parser.parser.CurrentLineNumber
            return found

        # Entities could expand to gigabytes or read other files. The declared encoding is ignored: it is UTF-8.
        parser = DefusedXMLParser(target=TreeBuilder(element), encoding="utf-8", forbid_dtd=True)
        try:
            parser.feed(data)
            return cast("Element", parser.close())
        except ParseError as error:
            line, column = error.position  # lines count from 1, columns from 0
            place = f"{self.where}:{line}:{1 + column}"
            raise InputError(f"{place}: {messages[error.code]}; expected well-formed XML; repair it there") from error
        except DefusedXmlException as error:
            place = f"{self.where}:{parser.parser.CurrentLineNumber}"
            raise InputError(
                f"{place}: a DTD (<!DOCTYPE ...>); expected none, entities are not read; take it out"
            ) from error

    def error(self, at: Element, what: str) -> InputError:
        """An error that names the line of an element."""
        return InputError(f"{self.where}:{self.lines[at]}: {what}")

    def _own(self) -> Iterator[Element]:
        """The elements in the order of the file, without foreign ones and what is in them."""
        waiting = [self.root]
        while waiting:
            one = waiting.pop()
            if one.tag not in self.foreign:
                yield one
                waiting += reversed(one)

    def training(self) -> Element:
        """The one `<training>`."""
        found = [one for one in self._own() if one.tag == "training"]
        if not found:
            raise InputError(
                f"{self.where}: no <training>; expected one anywhere in the tree; example_xml() writes one"
            )
        first, *others = found
        if others:
            line = self.lines[first]
            raise self.error(others[0], f"a second <training>, the first is on line {line}; expected one; join them")
        for key in sorted({*first.attrib} - self.foreign):
            if "}" not in key:  # xml:lang and others of a namespace carry no setting
                raise self.error(first, f"<training> has the attribute {key!r}; expected none; write a tag <{key}>")
        return first

    def values(self, training: Element, strict: bool) -> Mapping[str, object]:
        """The values of the tags in `<training>`, each checked."""
        values: dict[str, object] = {}
        unknown: dict[str, int] = {}  # tags that are neither fields nor foreign, and their first lines
        text = " ".join(part or "" for part in (training.text, *(one.tail for one in training))).strip(SPACE)
        if text:
            what = f"text {shown(text)} in <training>; expected tags; put it into a tag or a comment"
            raise self.error(training, what)
        for one in training:
            if one.tag in self.foreign:
                continue
            if one.tag in values:
                raise self.error(one, f"<{one.tag}> a second time; expected once; take one out")
            if one.tag in TrainingConfig.model_fields:
                values[one.tag] = self._value(one)
            elif strict:
                raise self.error(
                    one,
                    f"<{one.tag}> is no tag of <training>{suggestion(one.tag)}; expected one of "
                    f"{', '.join(TrainingConfig.model_fields)}; if another part of the program reads it, pass "
                    f"foreign=({one.tag!r},)",
                )
            else:
                unknown.setdefault(one.tag, self.lines[one])
        self._warn_of(unknown)
        return values

    def _value(self, one: Element) -> object:
        if len(one):
            raise self.error(one[0], f"<{one[0].tag}> inside <{one.tag}>; expected only a value; close <{one.tag}>")
        if one.attrib:
            what = f"<{one.tag}> has the attribute {next(iter(one.attrib))!r}; expected none"
            raise self.error(one, f"{what}; write the value between the tags: <{one.tag}>...</{one.tag}>")
        text = (one.text or "").strip(SPACE)
        if not text:
            raise self.error(one, f"<{one.tag}> is empty; expected a value; take it out for the default")
        value: object = text
        if isinstance(_example(one.tag), bool):
            value = FLAGS.get(text.lower(), text)
        elif isinstance(_example(one.tag), int) and INTEGER.fullmatch(text):  # `int` also accepts 1_000
            value = int(text)
        try:
            _Fields(**{one.tag: value})
        except UsageError as error:
            raise self.error(one, f"<{one.tag}> is {shown(text)}; {str(error).partition('; ')[2]}") from error
        return value

    def _warn_of(self, unknown: Mapping[str, int]) -> None:
        """Name every unknown tag in one warning."""
        if not unknown:
            return
        named = [f"<{tag}> (line {line}){suggestion(tag)}" for tag, line in unknown.items()]
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        _log.warning(
            "%s: <training> has tags that are not read here: %s%s; if other parts of the program read them, pass "
            "foreign=(...); strict=True refuses them",
            self.where,
            shortened(", ".join(named[:MOST_NAMED]), 1000),
            more,
        )
