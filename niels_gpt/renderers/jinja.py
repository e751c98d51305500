"""Chat templates, run as Transformers runs them, with every character's origin kept.

The environment is the one that templates are written for: sandboxed, trimmed blocks, loop controls, `tojson`,
`raise_exception`, `strftime_now`, `{% generation %}`. Four things are added, none of which changes a character: the
string constants of the template are marked as its literals (`traced.NOWHERE`), which makes them the only text that can
become control tokens; what joins text keeps its runs (`traced.Traced`); each `for` says which message it is on; the
pieces of the output are handed out one by one with both facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from types import BuiltinMethodType, MethodType
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.sandbox
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace
from markupsafe import Markup

from niels_gpt.forks import new_lock
from niels_gpt.renderers.safe_text import SafeText, safe
from niels_gpt.renderers.template_filters import TracingFormatter, tracing_filters
from niels_gpt.renderers.traced import (
    LABEL,
    NOWHERE,
    MessageDict,
    Traced,
    TracedDict,
    TracedList,
    as_text,
    joined,
    wholly,
)

ENTER, LEAVE = "_niels_enter", "_niels_leave"
_ANNOUNCEMENTS = (ENTER, LEAVE)

# What the sandbox need not be asked: keys of messages, and methods of texts that neither change nor format them.
_DICT_NAMES = frozenset(dir(dict))
_TEXT_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_OURS = frozenset({MessageDict, TracedDict})
# Our own classes have the attributes of these for a template, and no others.
_PLAIN_CLASSES: dict[type, type] = {
    MessageDict: dict,
    TracedDict: dict,
    TracedList: list,
    Traced: str,
    SafeText: Markup,
}
_SAFE_METHODS = frozenset({*vars(Traced), *vars(SafeText)}) - {"cut", "runs"}
_OPEN = {LoopContext: frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"})}


class Chunk(NamedTuple):
    """A piece of a template's output and the message whose loop it was written in (`NOWHERE` outside)."""

    text: str
    owner: int


@dataclass
class Trail:
    """Which messages the running template is on: a stack, because loops nest."""

    stack: list[int] = field(default_factory=list)

    def enter(self, depth: int, item: object) -> None:
        """The loop at this depth goes on to its next item; a loop over something else keeps the message around it."""
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


class Generator(CodeGenerator):
    """Compiles string constants to literals, `a ~ b` to a join that keeps runs, and what is written to texts with runs.

    What a template function yields as a plain string is then a literal of the template: nothing else is left plain.
    """

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802 (the library's name)
        self._literals: dict[tuple[type, str], str] = {}
        super().visit_Template(node, frame)
        for (kind, text), name in self._literals.items():
            made = "safe_literal" if kind is Markup else "literal"
            self.writeline(f"{name} = environment.{made}({str(text)!r})")
        self.writeline("niels_text, niels_join = environment.as_text, environment.joined_values")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        self.write(self._source(node.as_const(frame.eval_ctx)))

    def _source(self, value: Any) -> str:
        """The Python source of a constant, whose texts are literals."""
        if isinstance(value, str):
            return self._literals.setdefault((type(value), value), f"niels_{len(self._literals)}")
        if isinstance(value, list):
            return f"[{', '.join(map(self._source, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(self._source(held) + ', ' for held in value)})"
        if isinstance(value, dict):
            pairs = (f"{self._source(key)}: {self._source(held)}" for key, held in value.items())
            return f"{{{', '.join(pairs)}}}"
        return str(value) if isinstance(value, float) else repr(value)

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        """What is only compared is left as it is."""
        if isinstance(node.expr, nodes.Const) and isinstance(node.expr.value, str):
            self.write(f" {operators[node.op]} {node.expr.value!r}")
        else:
            super().visit_Operand(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("niels_join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("niels_text(")
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_post(node, frame, finalize)
        self.write(")")

    def start_write(self, frame: Frame, node: nodes.Node | None = None) -> None:
        """What calls, filter blocks and recursive loops hand back is written as an expression is."""
        super().start_write(frame, node)
        self.write("niels_text(")

    def end_write(self, frame: Frame) -> None:
        """See `start_write`."""
        self.write(")")
        super().end_write(frame)

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

    code_generator_class = Generator

    def __init__(self, clock: Callable[[str], str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.concat = _concat  # type: ignore[method-assign]
        self.filters |= tracing_filters()
        self.globals |= {
            "raise_exception": _raise,
            "strftime_now": lambda form: wholly(clock(str(form)), LABEL),
        }

    as_text = staticmethod(as_text)

    @staticmethod
    def joined_values(values: Iterable[Any]) -> Traced:
        """`a ~ b ~ c`."""
        return joined(map(as_text, values))

    @staticmethod
    def literal(text: str) -> Traced:
        """A string constant of a template."""
        return wholly(text, NOWHERE)

    @staticmethod
    def safe_literal(text: str) -> SafeText:
        """A string constant that the compiler marked as safe."""
        return safe(wholly(text, NOWHERE))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it, but a message's keys come before the attributes of our own classes."""
        kind = type(obj)
        if kind in _OURS and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in (_TEXT_METHODS if isinstance(obj, str) else _OPEN.get(kind, ())) and kind is not SafeText:
            return getattr(obj, attribute)
        if kind is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:  # the sandbox knows what to say
                return super().getattr(obj, attribute)
        return super().getattr(self._plain_of(obj, attribute), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """As the sandbox does it, without the attributes of our own classes."""
        if type(obj) in _PLAIN_CLASSES and isinstance(argument, str):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                obj = self._plain_of(obj, argument)
        return super().getitem(obj, argument)

    def _plain_of(self, obj: Any, attribute: str) -> Any:
        """The value to ask for an attribute: a plain one where ours has it and the plain class does not."""
        kind = _PLAIN_CLASSES.get(type(obj))
        if kind is Markup and attribute not in _SAFE_METHODS:
            return Markup(str.__str__(obj))
        return obj if kind is None or hasattr(kind, attribute) else kind()

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's `format` of texts, with origins."""
        text = getattr(value, "__self__", None)
        if isinstance(text, Traced) and getattr(value, "__name__", "") in ("format", "format_map"):
            return TracingFormatter(self).method(text, value.__name__)
        return super().wrap_str_format(value)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox does it, methods of texts at once."""
        is_method = type(obj) in (MethodType, BuiltinMethodType) and isinstance(obj.__self__, str)
        if is_method and obj.__name__ in _TEXT_METHODS:
            kwargs.pop("_loop_vars", None)  # the compiler's, which the sandbox takes out as well
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _announce_loops(template, depth=0)
        template.set_environment(self)
        return template


def _announce_loops(node: nodes.Node, depth: int) -> None:
    """Make every `for` over a plain name say on which item it is, and when it has ended.

    Not in macros: they run inside whatever loop calls them, and hand back what they wrote as one text. Nor those over
    pairs.
    """
    if isinstance(node, nodes.Macro | nodes.CallBlock):
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
                made += [child, _call(LEAVE, nodes.Const(depth))]
            else:
                if isinstance(child, nodes.Node):
                    _announce_loops(child, depth)
                made.append(child)
        if any(isinstance(child, nodes.For) for child in held):
            setattr(node, name, made)


def _announce(loop: nodes.For, depth: int) -> None:
    if isinstance(loop.target, nodes.Name):
        item = nodes.Name(loop.target.name, "load", lineno=loop.lineno)
        loop.body.insert(0, _call(ENTER, nodes.Const(depth), item))


def _call(name: str, *arguments: nodes.Expr) -> nodes.ExprStmt:
    """`name(...)` as a statement; the trail comes with the rendering's variables."""
    function = nodes.Name(name, "load", lineno=1)
    return nodes.ExprStmt(nodes.Call(function, [*arguments], [], None, None, lineno=1), lineno=1)


def _concat(parts: Iterable[str]) -> Traced:
    """What macros and set blocks join: plain strings among their parts are literals (see `Generator`)."""
    return joined(part if isinstance(part, Traced) else wholly(part, NOWHERE) for part in parts)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


@cache
def one_compiles() -> Any:
    """A fork waits for a thread that compiles, since Jinja keeps its lexers under a lock of its own."""
    return new_lock()
