"""`TrainingConfig`, the settings of a loader, and `read_training_config`, which reads them from XML.

The model's fields are the only list of settings: checking a keyword and reading a tag both follow from them.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from niels_gpt.errors import InputError, UsageError, nearest, shortened, shown, storage_errors
from niels_gpt.seeds import DEFAULT_SEED

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

INTEGER = re.compile(r"[+-]?[0-9]{1,640}")  # Python can be configured to convert at most 640 digits
DOCUMENT_SEED = 1337  # of a file that names none, as document 002 has it
FLAGS = {"true": True, "1": True, "false": False, "0": False}
FLAG_FIELDS = ("epoch_shuffle", "epoch_drop_last", "use_loss_mask")

_log = logging.getLogger("niels_gpt.config")

Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class TrainingConfig(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The settings of a loader, each checked.

    Attributes:
        dataset_mode: windows of one stream (token_stream), or whole episodes (sft_episode).
        batch_sampling_mode: "random", or "epoch", which sees each episode once; default: "epoch" for sft_episode,
            "random" for token_stream.
        epoch_shuffle: another order of the episodes in every epoch.
        epoch_drop_last: leave out the last batch of an epoch where it is not full.
        epoch_seed: with the number of the epoch, decides the order of the episodes.
        pad_token_id: fills rows whose episode is short; default: the tokenizer's eos.
        episode_min_tokens: shorter episodes are left out.
        batch_size, block_size: rows in a batch, tokens in a row.
        device: where batches are put, such as cpu or cuda:1.
        use_loss_mask: train on the assistant's tokens only; default: true if the dataset has masks.

    Raises:
        UsageError: a value is of another type or out of range, or token_stream is to be sampled by epochs.
    """

    dataset_mode: Literal["token_stream", "sft_episode"] = "token_stream"
    batch_sampling_mode: Literal["random", "epoch"] | None = None
    epoch_shuffle: bool = True
    epoch_drop_last: bool = True
    epoch_seed: Natural = DEFAULT_SEED
    pad_token_id: Natural | None = None
    episode_min_tokens: Positive = 2
    batch_size: Positive | None = None
    block_size: Positive | None = None
    device: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(:[0-9]+)?$")] = "cpu"
    use_loss_mask: bool | None = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            fault = error.errors()[0]
            name = str(fault["loc"][0])
            if fault["type"] == "extra_forbidden":
                what = f"{name!r} is no field{suggestion(name)}; expected one of {', '.join(type(self).model_fields)}"
            else:  # `Input should be a valid integer` becomes `expected a valid integer`
                expected = re.sub(r"^(Input|String) should (be )?", "expected ", fault["msg"])
                what = f"{name} is {shown(fault['input'])}; {expected}"
            raise UsageError(f"TrainingConfig: {what}") from None
        if self.dataset_mode == "token_stream" and self.batch_sampling_mode == "epoch":
            raise UsageError(
                "batch_sampling_mode is 'epoch' while dataset_mode is 'token_stream'; epochs need episodes: "
                "set dataset_mode to sft_episode, or batch_sampling_mode to random"
            )

    @property
    def sampling_mode(self) -> str:
        """`batch_sampling_mode`, or the dataset mode's default: "epoch" for sft_episode, "random" for token_stream."""
        return self.batch_sampling_mode or ("epoch" if self.dataset_mode == "sft_episode" else "random")


def suggestion(name: str) -> str:
    """The most similar field, for the middle of a message; empty if none is similar."""
    near = nearest(name, TrainingConfig.model_fields)
    return f" (did you mean {near}?)" if near else ""


def read_training_config(path: str | Path, **overrides: object) -> TrainingConfig:
    """The configuration in the one `<training>` element of an XML file, anywhere in its tree.

    Tags in it that are no settings may belong to other parts of the program: a warning in the log names them.

    Args:
        path: the file, UTF-8.
        overrides: fields of `TrainingConfig`; they win over the file.

    Raises:
        InputError: the file is missing, not well-formed, has a DTD, or something in `<training>` is invalid.
        UsageError: an override is invalid, or contradicts the file, or defusedxml is missing.
        StorageError: the file system refused.
    """
    file = Path(path)
    with storage_errors("reading", file):
        if not file.is_file():
            raise InputError(f"{file}: no such file; expected an XML file (the path is relative to {Path.cwd()})")
        data = file.read_bytes()
    found = [one for one in _parsed(data, file).iter() if _name(one) == "training"]
    if len(found) != 1:
        raise InputError(f"{file}: {len(found)} elements <training>; expected one anywhere in the tree")
    values = _values(found[0], file)
    try:
        return TrainingConfig(**{"epoch_seed": DOCUMENT_SEED, **values, **overrides})
    except UsageError as error:  # whose fault it is decides the exit code
        raise (UsageError if overrides else InputError)(f"{file}: {error}") from error


def _name(one: Element) -> str:
    return str(one.tag).rpartition("}")[2]  # a namespace says nothing here


def _parsed(data: bytes, file: Path) -> Element:
    try:
        from defusedxml.common import DefusedXmlException
        from defusedxml.ElementTree import ParseError, fromstring
    except ModuleNotFoundError as error:
        raise UsageError("reading XML needs defusedxml, which is not installed: pip install defusedxml") from error
    try:
        # Entities could expand to gigabytes or read other files.
        root: Element = fromstring(data.decode(), forbid_dtd=True)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}: invalid UTF-8 at byte {error.start} (0x{data[error.start]:02x}); expected text; save the file as "
            "UTF-8, for example with: iconv -f ORIGINAL -t UTF-8"
        ) from error
    except DefusedXmlException as error:
        raise InputError(
            f"{file}: a DTD (<!DOCTYPE ...>); expected none, entities are not read; take it out"
        ) from error
    except (ParseError, ValueError) as error:  # the message has line and column
        raise InputError(f"{file}: {error}; expected well-formed XML with a <training>; repair it there") from error
    return root


def _values(training: Element, file: Path) -> dict[str, object]:
    """The values of the tags in `<training>`."""
    values: dict[str, object] = {}
    unknown: dict[str, None] = {}  # each once, in the order of the file
    for one in training:
        name, text = _name(one), (one.text or "").strip()
        if name not in TrainingConfig.model_fields:
            unknown[name] = None
            continue
        if name in values:
            raise InputError(f"{file}: <{name}> a second time; expected once; take one out")
        if len(one) or one.attrib or not text:
            raise InputError(f"{file}: <{name}> holds no plain value; write it between the tags: <{name}>...</{name}>")
        values[name] = text
        if name in FLAG_FIELDS:
            values[name] = FLAGS.get(text.lower(), text)
        elif INTEGER.fullmatch(text):  # `int` also accepts 1_000
            values[name] = int(text)
    if unknown:
        named = ", ".join(f"<{name}>{suggestion(name)}" for name in unknown)
        _log.warning("%s: <training> has tags that are not read here: %s", file, shortened(named, 1000))
    return values
