"""The Jinja environment of chat templates, the same as transformers', and running a template in it.

Like transformers' it is sandboxed, trims blocks and has loop controls, `tojson`, `raise_exception`, `strftime_now` and
`{% generation %}`. Every failure of a template becomes a `MessageError`, where it refuses or fails on a conversation,
or a `TemplateError`, where the template itself cannot be used.

A template cannot reach Python (the sandbox); limits on time and memory are those of `isolation.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import BuiltinMethodType
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from jinja2.filters import do_indent
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from niels_gpt.errors import MessageError, NielsError, TemplateError, shown

LONGEST_SOURCE: Final = 128 * 1024  # characters; the largest official template has 20,000
_LONGEST_ERROR: Final = 2000  # characters of an error of the template's

# Attributes that need no check by the sandbox, which is most of a rendering's time: keys of messages, properties of
# loops, and methods of strings other than `format`, which can reach attributes.
_DICT_NAMES: Final = frozenset(dir(dict))
_TEXT_METHODS: Final = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_LOOP_NAMES: Final = frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"})


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks trained text in some templates; it renders as its content and has no other effect."""

    tags = {"generation"}  # noqa: RUF012 (the library's type)

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        """The statements inside the block."""
        next(parser.stream)
        body: list[jinja2.nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Dict:
    """`dict` for templates: without methods that change a dictionary which is passed to them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """A dictionary of these items."""
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """A dictionary with one value for all keys."""
        return dict.fromkeys(keys, value)


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment in which templates are compiled; `clock` gives the text of `strftime_now(format)`."""

    def __init__(self, clock: Callable[[str], str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.filters |= {"tojson": _tojson, "indent": _indent}
        self.globals |= {"raise_exception": _raise, "strftime_now": lambda form: clock(str(form)), "dict": _Dict()}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it, with shortcuts for what needs no check."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in _TEXT_METHODS) or (kind is LoopContext and attribute in _LOOP_NAMES):
            return getattr(obj, attribute)
        if kind is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:  # the sandbox makes the undefined value
                return super().getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox does it; methods of strings are called directly."""
        if type(obj) is BuiltinMethodType and type(obj.__self__) is str and obj.__name__ in _TEXT_METHODS:
            kwargs.pop("_loop_vars", None)  # the compiler adds these to every call; `Environment.call` removes them
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)


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
        template = ChatEnvironment(clock).from_string(source)
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
        raise TemplateError(f"the chat template cannot be compiled: {reason}; use another template") from error


def run_template(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The output of a template.

    Raises:
        MessageError: the template refused the conversation (`template_raised`), or failed on it (`template_failed`).
        TemplateError: the sandbox forbids what it does, or it calls itself without end.
    """
    try:
        # `root_render_func` is what `Template.render` wraps; called directly, errors keep their type.
        return "".join(template.root_render_func(template.new_context({**variables})))
    except NielsError:
        raise
    except jinja2.exceptions.SecurityError as error:
        raise TemplateError(f"the chat template does what is not allowed: {error}; use another template") from error
    except jinja2.TemplateError as error:
        raise MessageError("template_raised", f"the chat template refuses: {str(error)[:_LONGEST_ERROR]}") from error
    except RecursionError as error:
        raise TemplateError("the chat template calls itself without end; repair it, or pass another one") from error
    except MemoryError as error:
        raise TemplateError("the chat template needs more memory than there is; use another template") from error
    except Exception as error:  # a template calls Python's methods and functions, which raise any kind of error
        problem = f"the chat template fails on it: {str(error)[:_LONGEST_ERROR]}"
        raise MessageError("template_failed", problem) from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # As in transformers: no HTML escapes, and ensure_ascii off.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(s: Any, *args: Any, **kwargs: Any) -> str:
    # Jinja's own begins with `s += "\n"`, which would add to a list of the caller's before it fails on it.
    text: Any = tuple(s) if isinstance(s, list) else s
    return do_indent(text, *args, **kwargs)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
