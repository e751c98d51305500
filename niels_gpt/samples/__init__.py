"""Sample data that ships with the package: conversations and notes written for it, free of any licence."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def chats_file() -> Path:
    """A JSON-lines file of 100 conversations."""
    return _HERE / "chats.jsonl"


def notes_dir() -> Path:
    """A directory of 44 markdown notes."""
    return _HERE / "notes"
