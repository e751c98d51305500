"""What command lines say about rendering: which renderer, which tokens count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from niels_gpt.errors import UsageError

if TYPE_CHECKING:
    from niels_gpt.renderers.default import DefaultRenderer
    from niels_gpt.renderers.engine import Family
    from niels_gpt.renderers.loss import LossOn

RendererName = Annotated[
    str | None,
    typer.Option(
        "--renderer",
        help="auto (by the model's name, else its template), template, or a family such as qwen3 (a wrong name lists "
        "all).  \\[default: auto; a spm.model is serialised by its sentinels]",
        show_default=False,
    ),
]
Template = Annotated[Path | None, typer.Option(help="Another chat template than the tokenizer's.")]
Date = Annotated[str | None, typer.Option(help="The day, 2026-01-31, for formats that tell it.")]
Isolate = Annotated[
    bool,
    typer.Option(
        "--isolate",
        help="Run the chat template in a process of its own, with 2 GiB and 10 seconds for a conversation: for a "
        "template from a stranger.",
    ),
]
LossPreset = Annotated[
    str | None,
    typer.Option(
        "--loss-on",
        help="all_assistant_turns, last_assistant_turn, last_message or all_tokens.  \\[default: all_assistant_turns]",
        show_default=False,
    ),
]
ToolBodies = Annotated[
    list[str] | None, typer.Option("--tool-bodies", help="Also train the results of this tool; repeat for more.")
]
AllowPartial = Annotated[
    bool,
    typer.Option(
        "--allow-partial",
        help="Use rows of which a template does not show who wrote every token; masks may train its own framing.",
    ),
]
Unsupported = Annotated[
    Literal["drop", "error"],
    typer.Option(
        "--on-unsupported",
        help="Fields that the format has no place for (reasoning, tools, ...): leave them out and count the rows, or "
        "refuse such rows.",
    ),
]


@dataclass(frozen=True)
class Rendering:
    """The options of a build that concern renderers."""

    name: str | None = None
    template: Path | None = None
    date: str | None = None
    preset: str | None = None
    tool_bodies: tuple[str, ...] = ()
    isolate: bool = False

    def wanted(self, tokenizer: Path) -> bool:
        """A renderer is asked for, or is all that this tokenizer can be used with.

        Raises:
            UsageError: a choice of tokens for our own sentinels, which train every assistant turn.
        """
        hugging_face = (tokenizer / "tokenizer.json").is_file() or tokenizer.name == "tokenizer.json"
        if self.name or self.template or self.isolate or hugging_face:
            return True
        if self.loss_on is not None:
            raise UsageError(
                "--loss-on and --tool-bodies are for renderers; our own sentinels train every assistant turn. Add "
                "--renderer ngpt to choose"
            )
        return False

    def renderer(self, tokenizer: Path) -> Family | DefaultRenderer:
        """See `open_renderer`."""
        from niels_gpt.renderers.opening import open_renderer

        return open_renderer(
            tokenizer, self.name or "auto", template=self.template, date=self.date, isolate=self.isolate
        )

    @property
    def loss_on(self) -> LossOn | None:
        """Which tokens count; `None` where nothing is said.

        Raises:
            UsageError: no such preset.
        """
        from niels_gpt.renderers.loss import LossOn

        if self.preset is None and not self.tool_bodies:
            return None
        preset = self.preset or "all_assistant_turns"
        return LossOn(preset, bodies_of_tools=frozenset(self.tool_bodies))  # type: ignore[arg-type]
