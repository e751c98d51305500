"""Which files inputs name, on this machine, in a store or on the hub: paths, URLs, directories and patterns.

::

    notes/                                           every file below it that ends in one of the suffixes
    s3://bucket/raw/*.jsonl                          the files that fit, sorted
    hf://datasets/OWNER/NAME[@REVISION][/PATTERN]    files of one commit: the one that the revision names now
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from niels_gpt.errors import InputError, UsageError
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.inputs import expand
from niels_gpt.store.remote import AnyFile, RemoteFile, as_file, file_system, remote_errors, size_at
from niels_gpt.store.retries import repeated

HUB_FORM: Final = "hf://datasets/OWNER/NAME[@REVISION][/PATTERN]"
CARD: Final = "README.md"  # of a data set, which describes it and is none of its texts

# A revision of the hub's own, such as refs/convert/parquet, has slashes.
_HUB = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)


def files_of(inputs: Iterable[str | AnyFile], suffixes: tuple[str, ...]) -> list[AnyFile]:
    """The files that inputs name, in their order without repeats; a directory's or a pattern's are sorted.

    Files on a hub get the address of their commit, which is requested here, once for each input.

    Args:
        suffixes: of the files that are taken from a directory.

    Raises:
        InputError: a path does not exist, a pattern or directory matches nothing. UsageError: a malformed URL.
        SourceError: the hub does not know the data set. StorageError: a store cannot be reached.
    """
    found: dict[AnyFile, None] = {}
    for one in inputs:
        file = as_file(one)
        chosen = _remote_files(file, suffixes) if isinstance(file, RemoteFile) else expand([str(one)], suffixes)
        found.update(dict.fromkeys(chosen))
    return list(found)


def hub_name(url: str) -> str | None:
    """OWNER/NAME of a URL that names a data set of the hub, or a pattern there; `None` for any other URL or a file."""
    match = _HUB.fullmatch(url)
    return match["repo"] if match and (not match["path"] or _is_pattern(url)) else None


def _remote_files(file: RemoteFile, suffixes: tuple[str, ...]) -> Sequence[RemoteFile]:
    """The files that a URL names. Whether a single file exists is not checked; reading it shows that."""
    at_commit = RemoteFile(pinned(file.url))
    names_data_set = file.url.startswith("hf://datasets/") and hub_name(file.url) is not None
    if not (names_data_set or _is_pattern(file.url) or file.url.endswith("/")):
        return [at_commit]
    fs, path = file_system(at_commit.url)
    with remote_errors("listing", file.url):
        if _is_pattern(path):
            if size_at(fs, path) is not None:  # a name that has a bracket in it
                return [at_commit]
            matches = repeated(lambda: fs.glob(path, detail=True))  # directories match, too
            names = [name for name, info in matches.items() if info["type"] == "file"]
        else:
            below = repeated(lambda: fs.find(path))
            names = [name for name in below if name.endswith(suffixes) and name != f"{path}/{CARD}"]
    if not names:
        sought = "no file fits this pattern" if _is_pattern(path) else f"no file below it ends in {', '.join(suffixes)}"
        raise InputError(f"{file}: {sought}; check the URL")
    # What a file system leaves out of its names: "s3://" before "bucket/raw", "ftp://host" before "/raw".
    beginning = at_commit.url.rstrip("/").removesuffix(path)
    return [RemoteFile(beginning + name) for name in sorted(names)]


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
