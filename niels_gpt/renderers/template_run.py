"""Chat templates compiled and run, within bounds: what a template does wrong becomes one clear error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import jinja2

from niels_gpt.errors import MessageError, NielsError, TemplateError, shown
from niels_gpt.renderers.jinja import ENTER, LEAVE, Chunk, Trail, one_compiles
from niels_gpt.renderers.template_bounds import BoundedEnvironment
from niels_gpt.renderers.template_budget import CALL, Budget
from niels_gpt.renderers.traced import NOWHERE

LONGEST_SOURCE: Final = 128 * 1024  # characters; the largest official template has 20,000
RESERVED: Final = "_niels_"

# What errors of Python call our values, and what a template's author calls them.
_PLAIN_NAMES = {
    "Traced": "str",
    "SafeText": "Markup",
    "TracedList": "list",
    "TracedDict": "dict",
    "MessageDict": "dict",
}
_TRACED_NAMES = re.compile(r"\b(?:niels_gpt\.renderers\.\w+\.)?(Traced|SafeText|TracedList|TracedDict|MessageDict)\b")


@lru_cache(maxsize=64)
def compile_template(source: str, clock: Callable[[str], str]) -> jinja2.Template:
    """A template, compiled once.

    Raises:
        TemplateError: it is too long, nested too deeply, or has a syntax error, which is named with its line.
    """
    if len(source) > LONGEST_SOURCE:
        raise TemplateError(
            f"the chat template has {len(source):,} characters; expected at most {LONGEST_SOURCE:,}; pass another one"
        )
    if RESERVED in source:
        raise TemplateError(f"the chat template uses a name with {RESERVED!r}, which is reserved; rename it")
    try:
        with one_compiles():
            return BoundedEnvironment(clock).from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"chat template, line {error.lineno}: {error.message}; repair the template, or pass another one"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("the chat template is nested too deeply to be compiled; pass another one") from error
    except (SyntaxError, ValueError, OverflowError) as error:  # Python's compiler: nested loops, long integers
        raise TemplateError(
            f"the chat template cannot be compiled: {_one_line(error)}; repair the template, or pass another one"
        ) from error


def run_template(template: jinja2.Template, variables: Mapping[str, Any]) -> Iterator[Chunk]:
    """Run a template and hand out what it writes, piece by piece.

    Raises:
        MessageError: the template refused the conversation (`template_raised`), or failed on it (`template_failed`).
        TemplateError: it does what is not allowed, or far more than its conversation needs.
    """
    trail = Trail()
    context: Any = template.new_context({**variables, ENTER: trail.enter, LEAVE: trail.leave})
    budget = context.budget = Budget(list(variables.values()), len(variables.get("messages", ())))
    total = 0
    try:
        for text in template.root_render_func(context):
            total += len(text)
            budget.spend(CALL)
            if total > budget.size:
                budget.check(total)
            yield Chunk(text, trail.owner)
    except NielsError:
        raise
    except jinja2.exceptions.SecurityError as error:
        raise TemplateError(f"the chat template does what is not allowed: {error}; use another template") from error
    except jinja2.TemplateError as error:
        raise MessageError("template_raised", f"{_where(trail)}the chat template refuses: {_plainly(error)}") from error
    except RecursionError as error:
        raise TemplateError("the chat template calls itself without end; repair it, or pass another one") from error
    except MemoryError as error:
        raise TemplateError("the chat template needs more memory than there is; use another template") from error
    except Exception as error:  # a template can raise whatever Python's methods and functions raise
        raise MessageError(
            "template_failed", f"{_where(trail)}the chat template fails on it: {_plainly(error)}"
        ) from error


def _where(trail: Trail) -> str:
    return "" if trail.owner == NOWHERE else f"message {trail.owner}: "


def _plainly(error: Exception) -> str:
    """An error of a template in the words that its author knows."""
    return _TRACED_NAMES.sub(lambda found: _PLAIN_NAMES[found[1]], str(error)[:2000])


def _one_line(error: Exception) -> str:
    return shown(str(error.args[0] if error.args else error), 200)
