"""The Jinja environment of chat templates: the one that transformers uses, with provenance.

Like transformers' it is sandboxed, trims blocks and has loop controls, `tojson`, `raise_exception`, `strftime_now` and
`{% generation %}`. Four things are added:

* The compiler writes every string constant of the template as a `TrackedStr` of origin LITERAL.
* Everything that joins or writes text (`~`, output, macros, set blocks, filters) keeps origins.
* Every `for` loop over plain items reports its item to a `MessageStack`, so that scaffold written in the loop over the
  messages is attributed to the message of that iteration.
* The output is handed out in chunks, each with the message whose iteration wrote it.

What this guarantees: the rendered characters are those of transformers' environment, and a template cannot reach the
attributes that our subclasses add to `str`, `dict` and `list`. What it does not: limits on work and memory
(`bounds.py`), or origins through operations that are not implemented; their result is LOST.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import BuiltinMethodType, MethodType
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.sandbox
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.runtime import Context, LoopContext
from jinja2.utils import Namespace
from markupsafe import Markup

from niels_gpt.renderers.template.execution.filters import TrackedMarkup, TrackingFormatter, safe, tracking_filters
from niels_gpt.renderers.template.execution.provenance import (
    LABEL,
    LITERAL,
    NO_MESSAGE,
    MessageDict,
    TrackedDict,
    TrackedList,
    TrackedStr,
    as_text,
    joined,
    tracked_text,
)

# Attribute access on these needs no check by the sandbox, which is most of a rendering's time: keys of messages, and
# methods of strings other than `format`, which can reach attributes.
_DICT_NAMES = frozenset(dir(dict))
_TEXT_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_TRACKED_DICTS = frozenset({MessageDict, TrackedDict})
# For a template, our subclasses have the attributes of the plain classes and no others.
_PLAIN_CLASSES: dict[type, type] = {
    MessageDict: dict,
    TrackedDict: dict,
    TrackedList: list,
    TrackedStr: str,
    TrackedMarkup: Markup,
}
_MARKUP_METHODS = frozenset({*vars(TrackedStr), *vars(TrackedMarkup)}) - {"cut", "runs"}
_SAFE_ATTRIBUTES = {LoopContext: frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"})}


class Chunk(NamedTuple):
    """A piece of a template's output, and the message whose loop iteration wrote it (`NO_MESSAGE` outside of loops)."""

    text: str
    message: int


class MessageStack:
    """The message that the running template is at: a stack with one entry per nested loop.

    ::

        {% for m in messages %} ... {% for c in m.tool_calls %} ...     at message 2, in its calls:  stack [2, 2]

    Attributes:
        message: that of the innermost loop, or `NO_MESSAGE`.
    """

    def __init__(self) -> None:
        self.message = NO_MESSAGE
        self._stack: list[int] = []

    def enter(self, depth: int, item: object) -> None:
        """The loop at this depth starts an iteration; a loop over anything but messages keeps the message around it."""
        stack = self._stack
        del stack[depth:]
        around = stack[-1] if stack else NO_MESSAGE
        # A loop that is not over a plain name reports nothing, so levels above this one may be missing.
        stack += [around] * (depth - len(stack))
        self.message = item.index if isinstance(item, MessageDict) else around
        stack.append(self.message)

    def leave(self, depth: int) -> None:
        """The loop at this depth has ended."""
        del self._stack[depth:]
        self.message = self._stack[-1] if self._stack else NO_MESSAGE


class TrackingContext(Context):
    """A rendering's variables, and the message that it is at. Compiled templates call `enter` and `leave`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.report_to(MessageStack())

    def report_to(self, stack: MessageStack) -> None:
        """Set where loops report their items."""
        self.stack, self.enter, self.leave = stack, stack.enter, stack.leave

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """The context of a block, which is at the same message."""
        context = super().derived(locals)
        assert isinstance(context, TrackingContext)
        context.report_to(self.stack)
        return context


class TrackingCodeGenerator(CodeGenerator):
    """Compiles constants to LITERAL texts, and `a ~ b` and output to calls that keep runs.

    A plain `str` in the generated code's output can then only be template data, so it counts as LITERAL too.
    """

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802 (the library's name)
        self._literals: dict[tuple[type, str], str] = {}
        super().visit_Template(node, frame)
        # One module-level variable per distinct constant, so that a rendering makes no new strings for them.
        for (kind, text), name in self._literals.items():
            function = "safe_literal" if kind is Markup else "literal"
            self.writeline(f"{name} = environment.{function}({str(text)!r})")
        self.writeline("niels_text, niels_join = environment.as_text, environment.joined_values")
        self.writeline("niels_message = environment.message_class")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        self.write(self._source(node.as_const(frame.eval_ctx)))

    def _source(self, value: Any) -> str:
        """The Python source of a constant, with the strings in it replaced by their variables."""
        if isinstance(value, str):
            return self._literals.setdefault((type(value), value), f"niels_{len(self._literals)}")
        if isinstance(value, list):
            return f"[{', '.join(map(self._source, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(self._source(item) + ', ' for item in value)})"
        if isinstance(value, dict):
            pairs = (f"{self._source(key)}: {self._source(item)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
        return str(value) if isinstance(value, float) else repr(value)

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        """Constants that are only compared stay plain strings, which compare faster."""
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

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802
        """A field of a message, or a property of a loop, is looked up in place; anything else by the environment.

        ::

            message.role  ->  (l_1_message['role'] if type(l_1_message) is niels_message and 'role' in l_1_message
                               else environment.getattr(l_1_message, 'role'))
        """
        found = ""
        if isinstance(node.node, nodes.Name):
            name, key = frame.symbols.ref(node.node.name), repr(node.attr)
            if node.node.name == "loop" and node.attr in _SAFE_ATTRIBUTES[LoopContext]:
                found = f"{name}.{node.attr} if type({name}) is LoopContext"
            elif node.attr not in _DICT_NAMES:
                found = f"{name}[{key}] if type({name}) is niels_message and {key} in {name}"
        self.write(f"({found} else " if found else "(")
        super().visit_Getattr(node, frame)
        self.write(")")

    # In place of Jinja's `str(...)`, and around its `escape(...)`: a plain string in the output would count as LITERAL.

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("niels_text(")
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_post(node, frame, finalize)
        self.write(")")

    def start_write(self, frame: Frame, node: nodes.Node | None = None) -> None:
        """The results of call blocks, filter blocks and recursive loops are written as expressions are."""
        super().start_write(frame, node)
        self.write("niels_text(")

    def end_write(self, frame: Frame) -> None:
        """See `start_write`."""
        self.write(")")
        super().end_write(frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """Calls on the context (`context_call`) are compiled to direct calls, without the sandbox's check."""
        function = node.node
        if not isinstance(function, nodes.Getattr) or not isinstance(function.node, nodes.ContextReference):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"context.{function.attr}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks trained text in some templates; it renders as its content and has no other effect."""

    tags = {"generation"}  # noqa: RUF012 (the library's type)

    def parse(self, parser: Any) -> list[nodes.Node]:
        """The statements inside the block."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class TrackingEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment in which templates are compiled; see the module's docstring.

    Args:
        clock: the text of `strftime_now(format)`.
    """

    code_generator_class = TrackingCodeGenerator
    context_class: type[Context] = TrackingContext

    def __init__(self, clock: Callable[[str], str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.concat = _concat  # type: ignore[method-assign] # joins the output of macros and set blocks
        self.filters |= tracking_filters()
        self.globals |= {
            "raise_exception": _raise,
            "strftime_now": lambda form: tracked_text(clock(str(form)), LABEL),
        }

    as_text = staticmethod(as_text)
    message_class = MessageDict

    @staticmethod
    def joined_values(values: Iterable[Any]) -> TrackedStr:
        """`a ~ b ~ c`."""
        return joined(map(as_text, values))

    @staticmethod
    def literal(text: str) -> TrackedStr:
        """A string constant of a template."""
        return tracked_text(text, LITERAL)

    @staticmethod
    def safe_literal(text: str) -> TrackedMarkup:
        """A string constant that the compiler marked as safe."""
        return safe(tracked_text(text, LITERAL))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it, with shortcuts for what needs no check, and without attributes of our subclasses.

        `message.index` must be the message's key "index" or undefined, never our attribute `MessageDict.index`.
        """
        kind = type(obj)
        # A field of a message, which is most of all look-ups. Names that `dict` has are methods first (`m.items`).
        if kind in _TRACKED_DICTS and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        open_names = _TEXT_METHODS if isinstance(obj, str) else _SAFE_ATTRIBUTES.get(kind, ())
        if attribute in open_names and kind is not TrackedMarkup:
            return getattr(obj, attribute)
        if kind is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:  # the sandbox makes the undefined value
                return super().getattr(obj, attribute)
        return super().getattr(self._plain_of(obj, attribute), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """As the sandbox does it, without the attributes of our subclasses."""
        if type(obj) in _PLAIN_CLASSES and isinstance(argument, str):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                obj = self._plain_of(obj, argument)
        return super().getitem(obj, argument)

    def _plain_of(self, obj: Any, attribute: str) -> Any:
        """The value whose attribute the sandbox looks up: a plain one if only our subclass has this attribute."""
        kind = _PLAIN_CLASSES.get(type(obj))
        if kind is Markup and attribute not in _MARKUP_METHODS:
            return Markup(str.__str__(obj))
        return obj if kind is None or hasattr(kind, attribute) else kind()

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's replacement of `str.format`, with origins."""
        text = getattr(value, "__self__", None)
        if isinstance(text, TrackedStr) and getattr(value, "__name__", "") in ("format", "format_map"):
            return TrackingFormatter(self).method(text, value.__name__)
        return super().wrap_str_format(value)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox does it; methods of strings are called directly."""
        is_method = type(obj) in (MethodType, BuiltinMethodType) and isinstance(obj.__self__, str)
        if is_method and obj.__name__ in _TEXT_METHODS:
            kwargs.pop("_loop_vars", None)  # the compiler adds these to every call; `Environment.call` removes them too
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _add_loop_calls(template, depth=0)
        template.set_environment(self)  # again, for the nodes that were added
        return template


def _add_loop_calls(node: nodes.Node, depth: int) -> None:
    """Add calls to every `for` loop that report its item at each iteration, and its end.

    ::

        {% for m in messages %}X{% endfor %}
        ->  {% for m in messages %}{% do context.enter(0, m) %}X{% endfor %}{% do context.leave(0) %}

    Loops in macros are left out: a macro runs inside whatever loop calls it and returns its output as one text. Loops
    over pairs (`for k, v in ...`) report no item.
    """
    if isinstance(node, nodes.Macro | nodes.CallBlock):
        return
    # Not by `NodeTransformer`: the depth is that of the loops around a node, and `leave` comes after the loop, where a
    # `break` arrives, too.
    for name in node.fields:
        value = getattr(node, name)
        if isinstance(value, nodes.Node):
            _add_loop_calls(value, depth)
        if not isinstance(value, list):
            continue
        children: list[Any] = []
        for child in value:
            if isinstance(child, nodes.For):
                _add_loop_calls(child, depth + 1)
                if isinstance(child.target, nodes.Name):  # first in the body, before anything is written
                    item = nodes.Name(child.target.name, "load", lineno=child.lineno)
                    child.body.insert(0, context_statement("enter", nodes.Const(depth), item))
                children += [child, context_statement("leave", nodes.Const(depth))]
            else:
                if isinstance(child, nodes.Node):
                    _add_loop_calls(child, depth)
                children.append(child)
        if any(isinstance(child, nodes.For) for child in value):
            setattr(node, name, children)


def context_call(method: str, *arguments: Any, lineno: int = 1) -> nodes.Call:
    """`context.method(...)`, which no template can write."""
    function = nodes.Getattr(nodes.ContextReference(), method, "load")
    return nodes.Call(function, [*arguments], [], None, None, lineno=lineno)


def context_statement(method: str, *arguments: nodes.Expr, lineno: int = 1) -> nodes.ExprStmt:
    """`context.method(...)` as a statement."""
    return nodes.ExprStmt(context_call(method, *arguments, lineno=lineno), lineno=lineno)


def _concat(parts: Iterable[str]) -> TrackedStr:
    """Join the output of a macro or a set block; plain strings in it are LITERAL (see `TrackingCodeGenerator`)."""
    return joined(part if isinstance(part, TrackedStr) else tracked_text(part, LITERAL) for part in parts)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
