"""Files -> a dataset of any kind: what `ng.build` and `niels-gpt build` do.

::

    kind_of(inputs)     episodes, preferences, sft or pretrain, by the shape of the rows where it is not named
    open_source(...)    the rows, which are looked at before a tokenizer is loaded: that takes seconds
    write(...)          ids, masks, files
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.encoder_protocol import CacheTokenizer
from niels_gpt.builds.renderer_encoder import RenderingPolicy, Samples
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.cache.formats import DEFAULT_SHARD_BYTES, DEFAULT_VAL_FRAC, MAX_TRAIN_TOKENS, MAX_VAL_TOKENS
from niels_gpt.errors import InputError, UsageError, did_you_mean
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.progress import Progress
from niels_gpt.renderers.loss import LossOn, Preset
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.chat_files import ChatFiles, chat_files, describe_dialects
from niels_gpt.sources.files.formats import format_of
from niels_gpt.sources.files.listing import ROW_NAMES, TEXT_NAMES, list_files
from niels_gpt.sources.files.records import first_objects
from niels_gpt.sources.mapping import NO_MAPPING, RowMapping
from niels_gpt.sources.preference_files import PreferenceFiles, preference_files
from niels_gpt.sources.rows.shapes import FORMS, detect_form
from niels_gpt.sources.text_files import TextFiles, text_files
from niels_gpt.store.remote import AnyFile

Kind = Literal["episodes", "preferences", "sft", "pretrain"]
KINDS: Final = get_args(Kind)
Inputs: TypeAlias = Sequence[str | AnyFile]
AnySource: TypeAlias = ChatFiles | PreferenceFiles | TextFiles

# What the build functions ask for and `build` may leave out.
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "sft": {"val_frac": DEFAULT_VAL_FRAC, "seed": DEFAULT_SEED},
    "pretrain": {
        "max_train_tokens": MAX_TRAIN_TOKENS,
        "max_val_tokens": MAX_VAL_TOKENS,
        "shard_bytes": DEFAULT_SHARD_BYTES,
        "seed": DEFAULT_SEED,
        "shuffle_buffer": None,
    },
}


@dataclass(frozen=True)
class Encoding:
    """How conversations become ids and masks.

    Attributes:
        loss_on, policy, samples, images: for renderers, see `as_encoder`.
        default_system: with sentinels, the system message of conversations without one; `None`: that of the format.
        max_message_bytes: with sentinels, a longer message makes its row unusable.
        threads: with sentinels and of texts, the threads that encode.
    """

    loss_on: LossOn | Preset | None = None
    policy: RenderingPolicy = field(default_factory=RenderingPolicy)
    samples: Samples = "per-conversation"
    images: str | Path | None = None
    default_system: str | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES
    threads: int | None = None

    def check(self, kind: str) -> None:
        """Raise `UsageError` for what datasets of this kind have no place for."""
        none, given = Encoding(), [each.name for each in fields(self) if each.name not in _USED[kind]]
        for name in given:
            if getattr(self, name) != getattr(none, name):
                raise UsageError(f"{name} is not for datasets of kind {kind}; leave it out")


_USED: Final[dict[str, set[str]]] = {
    "episodes": {each.name for each in fields(Encoding)},
    "sft": {"loss_on", "policy", "default_system", "max_message_bytes", "threads"},
    "preferences": {"policy", "threads"},
    "pretrain": {"threads"},
}


def kind_of(inputs: Inputs, kind: str | None = None, form: str | None = None, mapping: RowMapping = NO_MAPPING) -> str:
    """The kind of dataset that files become: the one that is named, else by the shape of their rows.

    ::

        a text file, or rows with nothing but a text     pretrain
        rows with chosen and rejected                    preferences
        conversations                                    episodes; the other kind of the same rows, sft, has to be named

    Raises:
        UsageError: no such kind, or files of several. InputError: a file that is missing or cannot be read.
    """
    if kind is not None:
        if kind not in KINDS:
            raise UsageError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
        return kind
    if form is not None or mapping:
        # With a mapping the caller says what the columns are: those of conversations.
        return "preferences" if form in FORMS else "episodes"
    found: dict[str, AnyFile] = {}
    for file in _files(inputs):
        found.setdefault(_kind_of_file(file), file)
    if len(found) > 1:
        both = ", and ".join(f"{file} is of {kind}" for kind, file in found.items())
        raise UsageError(f"{both}; expected files of one kind. Name it with --kind, or build them one by one")
    return next(iter(found))


def _files(inputs: Inputs) -> tuple[AnyFile, ...]:
    """The files by which the kind is decided. In a folder of texts a .json is most often a configuration."""
    try:
        return list_files(inputs, (*TEXT_NAMES, ".arrow")).taken
    except InputError:
        return list_files(inputs, ROW_NAMES).taken


def _kind_of_file(file: AnyFile) -> str:
    if format_of(file) == "text":
        return "pretrain"
    # Rows may hold a conversation beside two sides (UltraFeedback's `messages`): then the kind has to be named.
    if chat_files([file]).shape_of(file) is None:
        objects = [record.value for record in first_objects(file)]
        if next(filter(None, map(detect_form, objects)), None) == "preference":
            return "preferences"
        if any(isinstance(row.get("text"), str) for row in objects):
            return "pretrain"
    return "episodes"


def open_source(inputs: Inputs, kind: str, form: str | None = None, mapping: RowMapping = NO_MAPPING) -> AnySource:
    """The rows of files, as a dataset of this kind reads them.

    Raises:
        UsageError: no such format. InputError: a pattern matches nothing.
    """
    if kind == "pretrain":
        return text_files(inputs)
    return preference_files(inputs, form) if kind == "preferences" else chat_files(inputs, form, mapping)


def write(
    kind: str,
    source: AnySource,
    out: str | Path,
    open_tokenizer: Callable[[], Any],
    encoding: Encoding,
    progress: Progress,
    **options: Any,
) -> None:
    """Write the rows of a source as a dataset of this kind.

    Args:
        open_tokenizer: gives a renderer, or a tokenizer with our sentinels; for texts what `build_pretrain_cache`
            takes. It is called when the rows have been looked at.
        options: of `build_episodes`, `build_preferences`, `build_sft_cache` or `build_pretrain_cache`.

    Raises:
        UsageError: an option out of range, or not of this kind. InputError, DataError: rows that cannot be read, or too
            many that cannot be used. OutputExists, Mismatch: `out` is taken. TokenizerError, StorageError.
    """
    encoding.check(kind)
    config = source.config(progress)  # reads every file once: its checksum, and the shape of its rows
    if isinstance(source, PreferenceFiles):
        progress.note(f"{source.name}: read as {config['form']} (override with --format)")
    elif not isinstance(source, TextFiles):
        progress.note(describe_dialects(source, config))
    opened = open_tokenizer()
    options = {**_DEFAULTS.get(kind, {}), **options, "progress": progress}
    options |= {"source_name": source.name, "source_config": config}
    policy = {each.name: getattr(encoding.policy, each.name) for each in fields(RenderingPolicy)}
    rows: Any = source
    if kind == "pretrain":
        from niels_gpt.cache.build_cache import build_pretrain_cache

        build_pretrain_cache(rows, str(out), tokenizer=opened, num_threads=encoding.threads, **options)
        return
    system = DEFAULT_SYSTEM_TEXT if encoding.default_system is None else encoding.default_system
    if kind == "sft":
        from niels_gpt.cache.build_cache import build_sft_cache

        options |= {"loss_on": LossOn.of(encoding.loss_on) if encoding.loss_on else None, **policy}
        options |= {"default_system_text": system, "max_message_bytes": encoding.max_message_bytes}
        options |= {"num_threads": encoding.threads}
        build_sft_cache(rows, str(out), tokenizer=opened, **options)
        return
    if isinstance(opened, CacheTokenizer):
        _refuse_for_sentinels(encoding)
        opened = SentinelEncoder(
            opened,
            default_system_text=system,
            max_message_bytes=encoding.max_message_bytes,
            num_threads=encoding.threads,
        )
    else:
        opened = as_encoder(opened, encoding.loss_on, encoding.policy, encoding.samples, encoding.images)
    if kind == "preferences":
        from niels_gpt.preferences.build import build_preferences

        build_preferences(rows, out, encoder=opened, **options)
    else:
        from niels_gpt.episodes.build import build_episodes

        build_episodes(rows, out, encoder=opened, **options)


def _refuse_for_sentinels(encoding: Encoding) -> None:
    """Raise `UsageError` for what only renderers read: it would be ignored without a word."""
    if encoding.images is not None:
        raise UsageError("images are for renderers; our own sentinels have no place for images. Name a renderer")
    if encoding.samples == "per-turn":
        raise UsageError("samples per-turn are for renderers; our own sentinels make one sample. Add --renderer ngpt")
    if encoding.loss_on is not None:
        raise UsageError("loss_on is for renderers; our own sentinels train every assistant turn. Add --renderer ngpt")
