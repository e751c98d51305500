"""Compile and run a chat template within its budget; every failure becomes a `TemplateError` or a `MessageError`.

A `MessageError` means that this conversation cannot be rendered (the template refuses it or fails on it); a
`TemplateError` means that the template itself is unusable: a syntax error, a forbidden operation, endless work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import jinja2

from niels_gpt.errors import MessageError, NielsError, TemplateError, shown
from niels_gpt.renderers.template.execution.bounds import BoundedEnvironment
from niels_gpt.renderers.template.execution.budget import CALL, Budget
from niels_gpt.renderers.template.execution.jinja import Chunk, MessageStack
from niels_gpt.renderers.template.execution.provenance import NO_MESSAGE
from niels_gpt.renderers.template.execution.reads import Reads

LONGEST_SOURCE: Final = 128 * 1024  # characters; the largest official template has 20,000

# Python's errors name our classes ("can only concatenate str (not "TrackedList") to str"); a template's author knows
# the plain ones.
_PLAIN_NAMES = {
    "TrackedStr": "str",
    "TrackedMarkup": "Markup",
    "TrackedList": "list",
    "TrackedDict": "dict",
    "MessageDict": "dict",
}
_OUR_NAMES = re.compile(rf"\b(?:niels_gpt\.renderers\.[\w.]+\.)?({'|'.join(_PLAIN_NAMES)})\b")


@lru_cache(maxsize=64)
def compile_template(source: str, clock: Callable[[str], str]) -> jinja2.Template:
    """Compile a template; the last 64 are cached.

    Raises:
        TemplateError: it is too long, nested too deeply, or has a syntax error (the message names the line).
    """
    if len(source) > LONGEST_SOURCE:
        raise TemplateError(
            f"the chat template has {len(source):,} characters; expected at most {LONGEST_SOURCE:,}; pass another one"
        )
    try:
        template = BoundedEnvironment(clock).from_string(source)
        # Every rendering begins with a copy of these. Jinja's `ChainMap` would be copied key by key.
        template.globals = dict(template.globals)
        return template
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"chat template, line {error.lineno}: {error.message}; repair the template, or pass another one"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("the chat template is nested too deeply to be compiled; pass another one") from error
    except (SyntaxError, ValueError, OverflowError) as error:  # Python's compiler: nested loops, long integers
        reason = shown(str(error.args[0] if error.args else error), 200)
        raise TemplateError(
            f"the chat template cannot be compiled: {reason}; repair the template, or pass another one"
        ) from error


def run_template(
    template: jinja2.Template, variables: Mapping[str, Any], reads: Reads | None = None
) -> Iterator[Chunk]:
    """Run a template and yield its output in chunks.

    Args:
        variables: the template's variables, with provenance (`provenance.track`, `MessageDict`).
        reads: where it is recorded what the template reads of the caller's texts.

    Raises:
        MessageError: the template refused the conversation (`template_raised`), or failed on it (`template_failed`).
        TemplateError: the sandbox forbids what it does, or its budget is used up.
    """
    context: Any = template.new_context({**variables})
    stack: MessageStack = context.stack
    budget = context.budget = Budget(list(variables.values()), len(variables.get("messages", ())), reads)
    total = 0
    try:
        # `root_render_func` is what `Template.generate` wraps; called directly, errors keep their type and the context
        # can hold the budget.
        for text in template.root_render_func(context):
            total += len(text)  # of all chunks: many small ones are as large as one large value
            budget.spend(CALL)
            if total > budget.size:
                budget.check_size(total)
            yield Chunk(text, stack.message)
    except NielsError:
        raise
    except jinja2.exceptions.SecurityError as error:
        raise TemplateError(f"the chat template does what is not allowed: {error}; use another template") from error
    except jinja2.TemplateError as error:
        raise MessageError("template_raised", f"{_where(stack)}the chat template refuses: {_plainly(error)}") from error
    except RecursionError as error:
        raise TemplateError("the chat template calls itself without end; repair it, or pass another one") from error
    except MemoryError as error:
        raise TemplateError("the chat template needs more memory than there is; use another template") from error
    except Exception as error:  # a template calls Python's methods and functions, which raise any kind of error
        raise MessageError(
            "template_failed", f"{_where(stack)}the chat template fails on it: {_plainly(error)}"
        ) from error


def _where(stack: MessageStack) -> str:
    return "" if stack.message == NO_MESSAGE else f"message {stack.message}: "


def _plainly(error: Exception) -> str:
    """An error's text, with the plain classes in place of ours."""
    return _OUR_NAMES.sub(lambda found: _PLAIN_NAMES[found[1]], str(error)[:2000])
