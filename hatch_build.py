"""The build hook that puts the manual page into wheels, where `make dist` has written it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MAN_PAGE = "docs/niels-gpt.1"


class ManPageHook(BuildHookInterface):  # type: ignore[type-arg]
    """`man` finds the page in an environment, as everywhere else."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before each build; `version` is "editable" or "standard"."""
        page = Path(self.root) / MAN_PAGE
        if self.target_name == "wheel" and page.is_file() and version == "standard":
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"
