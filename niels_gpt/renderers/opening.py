"""A renderer from what a command line says."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from niels_gpt.errors import UsageError
from niels_gpt.renderers.configs import AutoRendererConfig, DefaultRendererConfig, config_from_name
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.isolation import Isolation
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.renderers.template import load_template, no_clock


def open_renderer(
    tokenizer: str | Path,
    renderer: str = "auto",
    *,
    template: Path | None = None,
    date: str | None = None,
    isolate: bool = False,
) -> Family | DefaultRenderer:
    """A renderer from what a command line says.

    Args:
        template: a file with the chat template to use.
        isolate: run the chat template in a process of its own; see `Isolation`.
        date: the day that templates are told which ask for it, and families that tell it, as 2026-01-31.

    Raises:
        UsageError: not a date, or a template, date or isolation for a family that takes none. Else as
            `create_renderer`.
    """
    clock = clock_on(date)
    if template is None and date is None and not isolate:
        return create_renderer(str(tokenizer), renderer)
    config = config_from_name(renderer)
    if isinstance(config, AutoRendererConfig | DefaultRendererConfig):
        source = None if template is None else load_template(template)
        return DefaultRenderer(str(tokenizer), template=source, clock=clock, isolate=Isolation() if isolate else None)
    option, form = config.day
    if template is not None or isolate or not option:
        raise UsageError(
            f"renderer {renderer} writes by its own grammar; a template, date or isolation is for --renderer template"
        )
    return create_renderer(str(tokenizer), {"name": renderer, option: clock(form)})


def clock_on(date: str | None) -> Callable[[str], str]:
    """The clock of a day like 2026-01-31; without one, a clock that refuses.

    Raises:
        UsageError: not a date.
    """
    try:
        return no_clock if date is None else datetime.date.fromisoformat(date).strftime
    except ValueError as error:
        raise UsageError(f"the date is {date!r}; expected a day like 2026-01-31") from error
