"""Chat templates, run as Transformers runs them, with every character's origin kept.

The environment is the one that templates are written for: sandboxed, trimmed blocks, loop controls, `tojson`,
`raise_exception`, `strftime_now`, `{% generation %}`. Three things are added, none of which changes a character: what
joins text keeps its runs (`traced.Traced`); each `for` says which message it is on; the pieces of the output are handed
out one by one with both facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import BuiltinMethodType, MethodType
from typing import Any, Final, NamedTuple

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.sandbox
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.forks import new_lock
from niels_gpt.renderers.traced import NOWHERE, MessageDict, Traced, TracedDict, joined, origin_of

MAX_CHARACTERS: Final = 64 * 1024 * 1024
MAX_STEPS: Final = 2_000_000  # turns of all loops of one rendering
MAX_INDENT: Final = 1000

_ENTER, _LEAVE, _STEP, _JOIN = "_niels_enter", "_niels_leave", "_niels_step", "_niels_join"
_ANNOUNCEMENTS = (_ENTER, _LEAVE, _STEP)

# What the sandbox need not be asked: keys of messages, and methods of texts that neither change nor format them.
_DICT_NAMES = frozenset(dir(dict))
_TEXT_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_OURS = frozenset({MessageDict, TracedDict})
_OPEN = {LoopContext: frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"})}


# What errors of Python call our values, and what a template's author calls them.
_PLAIN_NAMES = {"Traced": "str", "TracedList": "list", "TracedDict": "dict", "MessageDict": "dict"}
_TRACED_NAMES = re.compile(r"\b(Traced|TracedList|TracedDict|MessageDict)\b")


class Chunk(NamedTuple):
    """A piece of a template's output and the message whose loop it was written in (`NOWHERE` outside)."""

    text: str
    owner: int


@dataclass
class Trail:
    """Which messages the running template is on: a stack, because loops nest."""

    stack: list[int] = field(default_factory=list)
    steps: int = 0

    def step(self) -> None:
        """One more turn of a loop.

        Raises:
            TemplateError: there have been too many.
        """
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TemplateError(
                f"the chat template took more than {MAX_STEPS:,} loop steps; is there a loop without end?"
            )

    def enter(self, depth: int, item: object) -> None:
        """The loop at this depth goes on to its next item; a loop over something else keeps the message around it."""
        self.step()
        stack = self.stack
        del stack[depth:]
        around = stack[-1] if stack else NOWHERE
        stack += [around] * (depth - len(stack))
        stack.append(item.index if isinstance(item, MessageDict) else around)

    def leave(self, depth: int) -> None:
        """The loop at this depth has ended."""
        del self.stack[depth:]

    @property
    def owner(self) -> int:
        """The message of the innermost loop over messages."""
        return self.stack[-1] if self.stack else NOWHERE


class _Generator(CodeGenerator):
    """Compiles `a ~ b` to a join that keeps runs."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (the library's name)
        self.write(f"environment.globals['{_JOIN}']((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """Our own announcements are called at once, without the sandbox's questions."""
        if not isinstance(node.node, nodes.Name) or node.node.name not in _ANNOUNCEMENTS:
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.visit(node.node, frame)
        self.write("(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what some templates call trained; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 (the library's type)

    def parse(self, parser: Any) -> list[nodes.Node]:
        """The statements inside."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class TracingEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment; `trail` is set for the time of one rendering."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, clock: Callable[[str], str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.concat = _concat  # type: ignore[method-assign]
        self.filters |= {
            "tojson": _tojson,
            "join": _join,
            "indent": _indent,
            "safe": _same,
            "replace": _replace,
            "title": lambda value: str(value).title(),
        }
        self.globals |= {"raise_exception": _raise, "strftime_now": clock, _JOIN: _concat_values}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it, but a message's keys come before the attributes of our own classes."""
        kind = type(obj)
        if kind in _OURS and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in (_TEXT_METHODS if isinstance(obj, str) else _OPEN.get(kind, ())):
            return getattr(obj, attribute)
        if kind is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:  # the sandbox knows what to say
                return super().getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox does it, methods of texts at once."""
        is_method = type(obj) in (MethodType, BuiltinMethodType) and isinstance(obj.__self__, str)
        if is_method and obj.__name__ in _TEXT_METHODS:
            kwargs.pop("_loop_vars", None)  # the compiler's, which the sandbox takes out as well
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiply, but no text or list beyond what may be written.

        Raises:
            TemplateError: it would be larger.
        """
        sizes = [len(side) if isinstance(side, str | list | tuple) else abs(side) for side in (left, right)]
        long = sizes[0] * sizes[1] > MAX_CHARACTERS if operator == "*" else sizes[0] > 1 and sizes[1] > 64
        if long and (operator == "**" or not isinstance(left, int | float) or not isinstance(right, int | float)):
            raise TemplateError(f"the chat template makes something larger than {MAX_CHARACTERS:,} by {operator}")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _announce_loops(template, depth=0)
        template.set_environment(self)
        return template


def _announce_loops(node: nodes.Node, depth: int) -> None:
    """Make every `for` over a plain name say on which item it is, and when it has ended.

    Not in macros: they run inside whatever loop calls them, and hand back what they wrote as one text. Their loops, and
    those over pairs, are only counted.
    """
    if isinstance(node, nodes.Macro | nodes.CallBlock):
        for loop in node.find_all(nodes.For):
            loop.body.insert(0, _call(_STEP))
        return
    for name in node.fields:
        held = getattr(node, name)
        if isinstance(held, nodes.Node):
            _announce_loops(held, depth)
        if not isinstance(held, list):
            continue
        made: list[Any] = []
        for child in held:
            if isinstance(child, nodes.For):
                _announce_loops(child, depth + 1)
                _announce(child, depth)
                made += [child, _call(_LEAVE, nodes.Const(depth))]
            else:
                if isinstance(child, nodes.Node):
                    _announce_loops(child, depth)
                made.append(child)
        if any(isinstance(child, nodes.For) for child in held):
            setattr(node, name, made)


def _announce(loop: nodes.For, depth: int) -> None:
    if isinstance(loop.target, nodes.Name):
        item = nodes.Name(loop.target.name, "load", lineno=loop.lineno)
        loop.body.insert(0, _call(_ENTER, nodes.Const(depth), item))
    else:
        loop.body.insert(0, _call(_STEP))


def _call(name: str, *arguments: nodes.Expr) -> nodes.ExprStmt:
    """`name(...)` as a statement; the trail comes with the rendering's variables."""
    function = nodes.Name(name, "load", lineno=1)
    return nodes.ExprStmt(nodes.Call(function, [*arguments], [], None, None, lineno=1), lineno=1)


def _concat(parts: Iterable[str]) -> str:
    """What macros and set blocks join with."""
    held = list(parts)
    return joined(held) if any(isinstance(part, Traced) for part in held) else "".join(held)


def _concat_values(values: Iterable[Any]) -> str:
    return _concat(str(value) for value in values)


def _same(value: Any) -> Any:
    return value


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON of a message's data is wholly that message's."""
    if isinstance(indent, int) and indent > MAX_INDENT:
        raise TemplateError(f"the chat template indents by {indent:,}; expected at most {MAX_INDENT:,}")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    origin = origin_of(value)
    return text if origin == NOWHERE else Traced(text, ((len(text), origin),))


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    parts = [str(part) for part in value]
    traced = isinstance(d, Traced) or any(isinstance(part, Traced) for part in parts)
    return joined(parts, str(d)) if traced else str(d).join(parts)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    if isinstance(new, Traced) and not isinstance(text, Traced):
        text = Traced(text)
    return text.replace(str(old), str(new), -1 if count is None else count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """As Jinja's filter: lines after the first are indented, blank ones only on request."""
    indention = width if isinstance(width, str) else " " * width
    lines = (str(s) + "\n").splitlines()
    after = [indention + line if line or blank else line for line in lines[1:]]
    text = _concat_values([lines[0], *("\n" + line for line in after)])
    return indention + text if first else text


@cache
def _one_compiles() -> Any:
    """A fork waits for a thread that compiles, since Jinja keeps its lexers under a lock of its own."""
    return new_lock()


@lru_cache(maxsize=64)
def compile_template(source: str, clock: Callable[[str], str]) -> jinja2.Template:
    """A template, compiled once.

    Raises:
        TemplateError: a syntax error, with its line.
    """
    try:
        with _one_compiles():
            return TracingEnvironment(clock).from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"chat template, line {error.lineno}: {error.message}; repair the template, or pass another one"
        ) from error


def run_template(template: jinja2.Template, variables: dict[str, Any]) -> Iterator[Chunk]:
    """Run a template and hand out what it writes, piece by piece.

    Raises:
        MessageError: the template refused the conversation (`template_raised`), or failed on it (`template_failed`).
        TemplateError: the output is longer than 64 Mi characters.
    """
    trail = Trail()
    context = template.new_context({**variables, _ENTER: trail.enter, _LEAVE: trail.leave, _STEP: trail.step})
    total = 0
    try:
        for text in template.root_render_func(context):
            total += len(text)
            if total > MAX_CHARACTERS:
                raise TemplateError(
                    f"the chat template wrote more than {MAX_CHARACTERS:,} characters; is there a loop without end?"
                )
            yield Chunk(text, trail.owner)
    except jinja2.exceptions.SecurityError as error:
        raise TemplateError(f"the chat template does what is not allowed: {error}; use another template") from error
    except jinja2.TemplateError as error:
        where = "" if trail.owner == NOWHERE else f"message {trail.owner}: "
        raise MessageError("template_raised", f"{where}the chat template refuses: {error}") from error
    except RecursionError as error:
        raise TemplateError("the chat template calls itself without end; repair it, or pass another one") from error
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, TemplateError):
            raise
        where = "" if trail.owner == NOWHERE else f"message {trail.owner}: "
        said = _TRACED_NAMES.sub(lambda found: _PLAIN_NAMES[found.group()], str(error))
        raise MessageError("template_failed", f"{where}the chat template fails on it: {said}") from error
