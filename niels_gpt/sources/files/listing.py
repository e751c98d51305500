"""`list_files`: which files inputs name, on this machine, in a store or on the hub, and which are passed over and why.

::

    notes/                                           every file below it whose name says one of the wanted formats
    s3://bucket/raw/*.jsonl                          the files that fit, sorted
    hf://datasets/OWNER/NAME[@REVISION][/PATTERN]    files of one commit: the one that the revision names now

Files that are named are always taken. Below a directory hidden and temporary files, folders of other programs, links to
folders and files with other names are passed over; so are, anywhere, empty files among others and a file that is there
twice. All of them are listed with the reason, so that nothing is left out without a word.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import InputError, UsageError, storage_errors
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.files.formats import NAMES, Name
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.inputs import existing_file, size_of
from niels_gpt.store.remote import AnyFile, RemoteFile, as_file, file_system, remote_errors, size_at
from niels_gpt.store.retries import repeated

HUB_FORM: Final = "hf://datasets/OWNER/NAME[@REVISION][/PATTERN]"
CARD: Final = "README.md"  # of a data set, which describes it and is none of its texts

ROW_NAMES: Final = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
MARKDOWN_NAMES: Final = (".md", ".markdown")
# Without .json, which is most often a configuration in a folder of texts; one that is named is read.
TEXT_NAMES: Final = (".txt", *MARKDOWN_NAMES, ".jsonl", ".ndjson", ".parquet")

# A revision of the hub's own, such as refs/convert/parquet, has slashes.
_HUB = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
_HIDDEN, _EMPTY, _LINKED, _DEAD = "hidden", "empty", "a link to a folder", "a link to nothing"
_CHECKPOINT = re.compile(r"checkpoint-\d+")  # a folder in which a trainer stores its state
_FOREIGN: Final = ("__MACOSX", "__pycache__", "_temporary")  # folders that other programs leave
# What `save_to_disk`, trainers and our own exports write beside the data; `datasets` stores results of `map` there.
_SIDE_FILES: Final = ("dataset_info.json", "state.json", "dataset_dict.json", "export.json")
_MOST_SHOWN: Final = 3  # names of each reason, in a line for people


@dataclass(frozen=True)
class FileList:
    """The files of inputs, in their order; those of a directory or a pattern are sorted.

    Attributes:
        taken: each once.
        passed_over: path -> why it is not read; a folder stands for all that is in it.
    """

    taken: tuple[AnyFile, ...]
    passed_over: Mapping[str, str] = field(default_factory=dict)

    def recorded(self, progress: Progress = SILENT) -> dict[str, Any]:
        """`passed_over`, reason -> how many, as manifests record it; nothing where no file was. Noted for people."""
        if not self.passed_over:
            return {}
        progress.note(self.describe())
        return {"passed_over": self.counts()}

    def counts(self) -> dict[str, int]:
        """Reason -> how many were passed over for it; the same reason for all copies."""
        return dict(Counter(reason.partition(" as ")[0] for reason in self.passed_over.values()))

    def describe(self) -> str:
        """A line for people: `passed over 3: hidden (.cache); empty (a.jsonl, b.jsonl)`."""
        parts = []
        for reason, number in self.counts().items():
            names = [Path(path).name for path, why in self.passed_over.items() if why.partition(" as ")[0] == reason]
            more = f" and {number - _MOST_SHOWN} more" if number > _MOST_SHOWN else ""
            parts.append(f"{reason} ({', '.join(names[:_MOST_SHOWN])}{more})")
        return f"passed over {len(self.passed_over)}: {'; '.join(parts)}"


def list_files(inputs: Iterable[str | AnyFile], names: Sequence[str]) -> FileList:
    """The files that paths, directories, patterns and URLs name.

    Files on a hub get the address of their commit, which is requested here, once for each input.

    Args:
        names: ends of the names that are taken from a directory, of `formats.NAMES`, in small letters.

    Raises:
        InputError: a path does not exist, or a pattern or directory matches nothing. UsageError: a malformed URL.
        SourceError: the hub does not know the data set. StorageError: a directory or a store cannot be read.
    """
    passed: dict[str, str] = {}
    found: list[AnyFile] = []
    for one in inputs:
        file = as_file(one)
        chosen = _remote_files(file, names, passed) if isinstance(file, RemoteFile) else _local(file, names, passed)
        if not chosen:
            below = {path: why for path, why in passed.items() if path.startswith(str(file).rstrip("/*"))}
            more = f" ({FileList((), below).describe()})" if below else ""
            raise InputError(f"{one}: no file there ends in {', '.join(names)}{more}; nothing to read")
        found += chosen
    taken = _each_once(found, passed)
    # Files in stores that were listed have been judged; one that is named is not asked for until it is read.
    empty = [file for file in taken if isinstance(file, Path) and not size_of(file)]
    if taken and len(empty) == len(taken):
        existing_file(empty[0])  # this raises
    passed |= {str(file): _EMPTY for file in empty}
    return FileList(tuple(file for file in taken if file not in empty), passed)


def _each_once(files: Sequence[AnyFile], passed: dict[str, str]) -> list[AnyFile]:
    """The files without those that come again: named twice, or by another name or link."""
    known: dict[Any, AnyFile] = {}
    for file in files:
        key: Any = file
        if isinstance(file, Path) and file.exists():
            found = file.stat()
            key = (found.st_dev, found.st_ino)
        if key in known:
            passed[str(file)] = f"the same file as {known[key]}"
        else:
            known[key] = file
    return list(known.values())


# ---- on this machine


def _local(path: Path, names: Sequence[str], passed: dict[str, str]) -> list[Path]:
    pattern = str(path)
    if pattern == ".":  # what an empty text becomes as a path is refused before; "." itself is a directory
        return _below(path, names, passed)
    # Existing paths before patterns, so that a file whose name contains [ or ? can be named.
    if path.is_dir():
        return _below(path, names, passed)
    if path.exists() or not glob.has_magic(pattern):
        return [existing_file(path) if not path.is_file() else path]  # raises where there is none, or a device
    matches = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207 (patterns may be absolute)
    if not matches:
        raise InputError(f"{pattern}: no file fits this pattern; check the path (it is relative to {Path.cwd()})")
    found: list[Path] = []
    for match in matches:
        if match.is_dir():
            found += _below(match, names, passed)
        elif (why := _why_not(match, None)) is not None:
            passed[str(match)] = why
        else:
            found.append(match)
    return found


def _below(folder: Path, names: Sequence[str], passed: dict[str, str]) -> list[Path]:
    """The files below a directory that are read, sorted by path. Links to folders are not followed.

    Raises:
        StorageError: one of the directories cannot be read. (`Path.rglob` leaves such a one out without a word.)
    """

    def refuse(error: OSError) -> None:
        with storage_errors("listing the directory", error.filename):
            raise error

    found: list[Path] = []
    for root, folders, files in os.walk(folder, onerror=refuse):
        for name in sorted(folders):
            path = Path(root, name)
            why = _LINKED if path.is_symlink() else _why_not_folder(name)
            if why is not None:
                passed[str(path)] = why
                folders.remove(name)
        for name in sorted(files):
            path = Path(root, name)
            why = _why_not(path, names)
            if why is None:
                found.append(path)
            else:
                passed[str(path)] = why
    return sorted(found)


def _why_not_folder(name: str) -> str | None:
    if name.startswith("."):
        return _HIDDEN
    if _CHECKPOINT.fullmatch(name):
        return "a trainer's checkpoint"
    return "a folder of another program" if name in _FOREIGN else None


def _why_not(path: Path, names: Sequence[str] | None) -> str | None:
    """Why a file is passed over; `None` if it is read. `names`: those that are taken; `None` for any."""
    if not path.exists():
        return _DEAD
    if not path.is_file():
        return "a pipe or device"
    return _why_not_named(path.name, names)


def _why_not_named(name: str, names: Sequence[str] | None) -> str | None:
    if name.startswith("."):
        return _HIDDEN
    if name.endswith(("~", ".tmp", ".part", ".partial", ".crdownload", ".lock")):
        return "temporary"
    if name in _SIDE_FILES or (name.startswith("cache-") and name.endswith(".arrow")):
        return "written beside the data"
    ending = Name.of(name).ending
    if names is None or ending in names:
        return None
    return "not a data file by its name" if ending not in NAMES else f"{ending} in a folder; name it if it is data"


# ---- in a store


def hub_name(url: str) -> str | None:
    """OWNER/NAME of a URL that names a data set of the hub, or a pattern there; `None` for any other URL or a file."""
    match = _HUB.fullmatch(url)
    return match["repo"] if match and (not match["path"] or _is_pattern(url)) else None


def _remote_files(file: RemoteFile, names: Sequence[str], passed: dict[str, str]) -> Sequence[RemoteFile]:
    """The files that a URL names. Whether a single file exists is not checked; reading it shows that."""
    at_commit = RemoteFile(pinned(file.url))
    names_data_set = file.url.startswith("hf://datasets/") and hub_name(file.url) is not None
    if not (names_data_set or _is_pattern(file.url) or file.url.endswith("/")):
        return [at_commit]
    fs, path = file_system(at_commit.url)
    # What a file system leaves out of its names: "s3://" before "bucket/raw", "ftp://host" before "/raw".
    beginning = at_commit.url.rstrip("/").removesuffix(path)
    with remote_errors("listing", file.url):
        if _is_pattern(path):
            if size_at(fs, path) is not None:  # a name that has a bracket in it
                return [at_commit]
            matches = repeated(lambda: fs.glob(path, detail=True))
            listed = {name: info for name, info in matches.items() if info["type"] == "file"}  # directories also match
            if not listed:
                raise InputError(f"{file}: no file fits this pattern; check the URL")
        else:
            listed = repeated(lambda: fs.find(path, detail=True))
    found: list[RemoteFile] = []
    for name, info in sorted(listed.items()):
        why = _EMPTY if info.get("size") == 0 else None
        if why is None and not _is_pattern(path):
            why = why_not_below(name.removeprefix(f"{path}/"), names, is_card=name == f"{path}/{CARD}")
        if why is None:
            found.append(RemoteFile(beginning + name))
        else:
            passed[str(RemoteFile(beginning + name))] = why
    return found


def why_not_below(below: str, names: Sequence[str] | None, *, is_card: bool = False) -> str | None:
    """The same as for a file on this machine, from its path below the directory."""
    if is_card:
        return "the card of the data set"
    *folders, name = below.split("/")
    return next(filter(None, map(_why_not_folder, folders)), None) or _why_not_named(name, names)


def _is_pattern(url: str) -> bool:
    """Whether a text is a glob pattern. In a URL a `?` begins the query and is no sign of one."""
    return not url.startswith(("http://", "https://")) and any(sign in url for sign in "*[")


def pinned(url: str) -> str:
    """The URL with the commit in place of a branch, a tag or nothing, if it is of a data set on the hub.

    Raises:
        UsageError: it begins like one and has another form.
    """
    if not url.startswith("hf://datasets/"):
        return url
    match = _HUB.fullmatch(url)
    if match is None:
        raise UsageError(f"{url}: expected {HUB_FORM}")
    # With a slash, which ends the commit; a URL that names all files of a commit may have none.
    if RemoteFile(f"{url}/").is_immutable:
        return url
    commit = HubDataset(match["repo"], revision=match["revision"]).sha
    return f"hf://datasets/{match['repo']}@{commit}" + (f"/{match['path']}" if match["path"] else "")
