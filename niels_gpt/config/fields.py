"""The fields of a training configuration: what each may hold, and the example file that shows them all.

The fields of `TrainingConfig` are the only list of tags: what checks a keyword, reads a tag and writes the example
file goes by them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from niels_gpt.errors import UsageError, nearest, shown

INTEGER = re.compile(r"[+-]?[0-9]{1,640}")  # Python may be set to refuse to read integers of more than 640 digits
DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")
BY_CALL = "what the loader's call says"
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Rule:
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

    def fault(self, value: object) -> str | None:
        """What was expected in place of `value`; None where it is right."""
        if value is None:
            right = self.default is None
        elif self.kind == "flag":
            right = isinstance(value, bool)
        elif self.kind == "integer":
            right = isinstance(value, int) and not isinstance(value, bool) and value >= self.minimum
        elif self.kind == "choice":
            right = isinstance(value, str) and value in self.choices
        else:
            right = isinstance(value, str) and DEVICE.fullmatch(value) is not None
        near = meant(value, self.choices) if isinstance(value, str) else ""
        return None if right else f"expected {self.expected}{near}"

    def value_of(self, text: str) -> object:
        """The value that a tag's text writes, or the text itself, which `fault` then refuses where it must."""
        if self.kind == "flag":
            return FLAGS.get(text.lower(), text)
        return int(text) if self.kind == "integer" and INTEGER.fullmatch(text) else text


def _tag(default: Any, kind: Any, comment: str, **more: Any) -> Any:
    return field(default=default, metadata={"rule": Rule(default, kind, comment, **more)})


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
        check(vars(self), of="TrainingConfig")
        if self.dataset_mode == "token_stream" and self.batch_sampling_mode == "epoch":
            raise UsageError(
                "batch_sampling_mode is 'epoch' while dataset_mode is 'token_stream'; epochs need episodes: "
                "set dataset_mode to sft_episode, or batch_sampling_mode to random"
            )

    @property
    def sampling_mode(self) -> str:
        """`batch_sampling_mode`, or the mode's own: "epoch" for sft_episode, "random" for token_stream."""
        return self.batch_sampling_mode or ("epoch" if self.dataset_mode == "sft_episode" else "random")


def example_xml() -> str:
    """A whole configuration file with every tag, its default and its meaning; read it back as any other.

    Tags without a default value are commented out, save `batch_size` and `block_size`, which every loader needs.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<!-- Any tag may be left out: its default then holds. -->"]
    lines += ["<config>", "  <training>"]
    for name, rule in known_rules().items():
        tag = f"<{name}>{rule.example}</{name}>"
        lines.append(f"    <!-- {rule.comment}: {rule.expected}; default: {rule.otherwise} -->")
        lines.append(f"    {tag}" if rule.live or rule.default is not None else f"    <!-- {tag} -->")
    return "\n".join([*lines, "  </training>", "</config>", ""])


def known_rules() -> dict[str, Rule]:
    """The rule of every field, by its name."""
    return {each.name: each.metadata["rule"] for each in fields(TrainingConfig)}


def check(values: Mapping[str, object], *, of: str) -> None:
    """Raise `UsageError` for the first of these fields that is unknown or wrong; `of` is what holds them."""
    rules = known_rules()
    for name, value in values.items():
        if name not in rules:
            raise UsageError(f"{of}: {name!r} is no field{meant(name, rules)}; expected one of {', '.join(rules)}")
        if fault := rules[name].fault(value):
            none = f"; None stands for {rules[name].unset}" if rules[name].unset else ""
            raise UsageError(f"{of}: {name} is {shown(value)}; {fault}{none}")


def meant(given: str, known: Collection[str]) -> str:
    """What may have been meant, for the middle of a message."""
    near = nearest(given, known)
    return f" (did you mean {near}?)" if near else ""
