"""Where a chat template pays for what it makes: operators, methods, filters, tests, loops, macros.

`BoundedEnvironment` is the environment of `jinja.py` with every one of these paid for out of the rendering's budget
(`template_budget.py`), before it is done where the result can be larger than what goes in (`template_sizes.py`).
Nothing else changes: a template within its budget writes the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType, GeneratorType, MethodDescriptorType, MethodType
from typing import Any, Final

import jinja2
import jinja2.nodes as nodes
from jinja2.compiler import Frame
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.visitor import NodeTransformer

from niels_gpt.errors import TemplateError
from niels_gpt.renderers.jinja import Generator, TracingEnvironment
from niels_gpt.renderers.template_budget import (
    ASKED_ELEMENT,
    CALL,
    ELEMENT,
    MAX_BITS,
    NODE,
    BoundedContext,
    Budget,
    size_of,
    text_size,
)
from niels_gpt.renderers.template_sizes import FILTER_SIZES, format_size, method_size, percent_size

DEEPEST: Final = 40  # statements inside statements
LONGEST_DATE: Final = 1000  # characters of a date's format

# Filters that take the same short time whatever their value is.
_CHEAP: Final = frozenset(
    ["abs", "attr", "boolean", "count", "d", "default", "first", "float", "last", "length", "random", "safe"]
)
# Those that look at the outside of their value, or hand out its elements one by one.
_SHALLOW: Final = frozenset(["int", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr"])
_SORTING: Final = frozenset(["dictsort", "groupby", "max", "min", "sort", "unique"])
_COMPARING: Final = frozenset(
    ["==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le", "in"]
)
# Methods of texts and mappings that make nothing larger.
_READING: Final = frozenset(
    [
        "endswith",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "lstrip",
        "removeprefix",
        "removesuffix",
        "rstrip",
        "startswith",
        "strip",
    ]
)
_LOOKING: Final = frozenset({"get", "items", "keys", "values"})
_METHODS: Final = (MethodType, BuiltinMethodType)
_OWN_CALLS: Final = (Macro, BlockReference, LoopContext)


class BoundedGenerator(Generator):
    """Compiles the calls that `_Binder` puts in, which no template can spell: `context.charge(96)`."""

    def write_commons(self) -> None:
        """What macros and set blocks join with is paid for."""
        super().write_commons()
        self.writeline("concat = context.bounded_concat(concat)")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """As ever, and ours."""
        called = node.node
        if not isinstance(called, nodes.Getattr) or not isinstance(called.node, nodes.ContextReference):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"context.{called.attr}(")
        self.visit(node.args[0], frame)
        self.write(")")


class BoundedEnvironment(TracingEnvironment):
    """The environment of chat templates with a budget, which is `context.budget` for the time of one rendering."""

    code_generator_class = BoundedGenerator
    context_class = BoundedContext
    intercepted_binops = frozenset(["*", "**", "+", "-", "%"])

    def __init__(self, clock: Callable[[str], str]) -> None:
        super().__init__(clock)
        self.filters = {
            name: function if name in _CHEAP else _bounded_filter(name, function)
            for name, function in {**self.filters, "sum": _sum}.items()
        }
        self.tests |= {name: _bounded_test(self.tests[name]) for name in _COMPARING}
        self.globals["strftime_now"] = _short_format(self.globals["strftime_now"])
        del self.globals["lipsum"]  # writes random text; a rendering depends on its arguments alone

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _check_depth(template)
        _Binder().visit(template)
        template.set_environment(self)
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """As the sandbox does it, paid for."""
        if operator == "+" and isinstance(left, str) and isinstance(right, str):  # the commonest by far
            context.budget.room(text_size(left) + text_size(right))
        else:
            _pay_for_operator(context.budget, operator, left, right)
        return self.binop_table[operator](left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """As the sandbox does it; a key that takes long to hash is refused."""
        if isinstance(argument, tuple):
            Budget().weigh(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's `format` of texts, which `call` knows again."""
        made = super().wrap_str_format(value)
        return None if made is None else _Format(value.__self__, made)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox does it, paid for."""
        budget, kind = context.budget, type(obj)
        budget.spend(CALL)
        if kind is MethodDescriptorType:  # `dict.update(message, ...)` changes what `message.update` may not
            raise jinja2.exceptions.SecurityError(f"{obj.__name__} of a type is unsafe")
        own = obj.__self__ if kind in _METHODS else None
        if kind in _OWN_CALLS:
            budget.spend(CALL)  # frames of their own
            return super().call(context, obj, *args, **kwargs)
        if isinstance(own, str) and obj.__name__ in _READING:
            budget.spend(len(own))
            return super().call(context, obj, *args, **kwargs)
        if isinstance(own, str | bytes) and obj.__name__ == "join" and args:
            args = (_listed(args[0]), *args[1:])
        _pay_for_call(budget, obj, own, args, {key: kwargs[key] for key in kwargs if key not in _COMPILERS})
        result = budget.made(super().call(context, obj, *args, **kwargs))
        return context.written(result) if "caller" in kwargs else result  # a call block writes it


_COMPILERS: Final = frozenset({"_loop_vars", "_block_vars", "caller"})


class _Format:
    """The method `format` or `format_map` of a text; templates see no attribute of it."""

    def __init__(self, text: str, function: Callable[..., str]) -> None:
        self._text, self._function = text, function

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self._function(*args, **kwargs)


def _pay_for_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS and abs(left) > 1:
                raise TemplateError(
                    f"the chat template makes an integer of more than {MAX_BITS:,} bits by {operator}; repair it, or "
                    "use another template"
                )
    elif operator == "+":
        budget.room(size_of(left) + size_of(right))
    elif operator == "%" and isinstance(left, str | bytes):
        budget.room(percent_size(budget, left, right))
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            budget.room(size_of(value) * max(0, times) if isinstance(times, int) else 0)
    elif operator == "-":  # of sets of keys
        budget.weigh([left, right])


def _pay_for_call(budget: Budget, obj: Any, own: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if isinstance(obj, _Format):
        budget.room(format_size(budget, obj._text, args, kwargs))
    elif isinstance(own, str | bytes | int):
        budget.room(method_size(budget, own, obj.__name__, args, kwargs))
    elif isinstance(own, dict) and obj.__name__ in _LOOKING:
        budget.weigh(args[:1])
    else:  # a method of a list or a loop, or a function: `dict`, `range`, `namespace`, one of the caller's
        weight = budget.weigh(args)
        budget.spend(size_of(own) * (1 + weight // ELEMENT) if own is not None else 0)


def _listed(value: Any) -> Any:
    """What a filter hands out one by one, paid for on the way, as a list."""
    return list(value) if isinstance(value, GeneratorType) else value


def _counted(budget: Budget, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        budget.spend(size_of(value) + ELEMENT)
        yield value


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it reads and makes; taking the context keeps the compiler from running it."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    reads_all = name not in FILTER_SIZES and name not in _SHALLOW | _SORTING

    @jinja2.pass_context
    def bounded(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = context.budget
        if reads_all and isinstance(value, str) and not args and not kwargs:  # `trim` and the like
            budget.spend(CALL + 4 * text_size(value))
        else:
            value = value if name in _SHALLOW else _listed(value)
            _pay_for_filter(budget, name, value, args, kwargs)
        if passed is None:
            made = function(value, *args, **kwargs)
        else:
            first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
            made = function(first[passed], value, *args, **kwargs)
        if not isinstance(made, GeneratorType):
            return budget.made(made)
        made = _counted(budget, made)
        budget.chained(made, value)
        return made

    return bounded


def _pay_for_filter(budget: Budget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    budget.spend(CALL)
    size = FILTER_SIZES.get(name)
    if size is not None:
        budget.room(size(budget, value, args, kwargs))
    elif name in _SHALLOW:
        budget.spend(size_of(value) * (ASKED_ELEMENT // ELEMENT))
    else:
        weight = budget.weigh([value, args, *kwargs.values()])
        budget.spend(weight * weight.bit_length() if name in _SORTING else 4 * weight)


def _bounded_test(function: Any) -> Callable[..., bool]:
    @jinja2.pass_context
    def bounded(context: Any, value: Any, other: Any) -> bool:
        context.compared(value)
        context.searched(other)
        return bool(function(value, other))

    return bounded


@jinja2.pass_context
def _sum(context: Any, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    """As Jinja's filter: with `+`, which pays for what it makes."""
    if isinstance(start, str | bytes):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    if attribute is not None:
        iterable = map(jinja2.filters.make_attrgetter(context.environment, attribute), iterable)
    total = start
    for value in iterable:
        total = context.environment.call_binop(context, "+", total, value)
    return total


def _short_format(clock: Any) -> Callable[[str], Any]:
    def strftime_now(form: str) -> Any:
        if isinstance(form, str) and len(form) > LONGEST_DATE:
            raise TemplateError(
                f"the chat template asks for a date in a format of {len(form):,} characters; expected at most "
                f"{LONGEST_DATE:,}"
            )
        return clock(form)

    return strftime_now


class _Binder(NodeTransformer):
    """Puts calls of the budget into a template's tree, where the environment is not asked."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 (the library's names)
        """Every turn of a loop costs what stands in it; so does every element that its condition leaves out."""
        cost = _cost(node.body)
        looked_at = 0 if node.test is None else _cost([node.test])
        self.generic_visit(node)
        node.iter = _ours("looped", node.iter)
        node.body.insert(0, _charge(cost, node.lineno))
        if node.test is not None:
            node.test = nodes.And(_ours("charge", nodes.Const(looked_at)), node.test, lineno=node.lineno)
        return node

    def _body(self, node: Any) -> Any:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _charge(cost, node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _body  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        """What is written becomes text."""
        self.generic_visit(node)
        node.nodes = [_unless_constant("written", child) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        """`a ~ b`: each part is paid for, then the whole."""
        self.generic_visit(node)
        if all(isinstance(part, nodes.Const) for part in node.nodes):
            return node
        node.nodes = [_unless_constant("written", part) for part in node.nodes]
        return _ours("made", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """A slice is a new value."""
        self.generic_visit(node)
        return _ours("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        """Texts are compared with a constant in no time; two lists are gone through."""
        self.generic_visit(node)
        sides: list[Any] = [node, *node.ops]
        searched = any(operand.op in ("in", "notin") for operand in node.ops)
        if searched or not any(isinstance(side.expr, nodes.Const) for side in sides):
            for side in sides:
                looked_in = isinstance(side, nodes.Operand) and side.op in ("in", "notin")
                side.expr = _unless_constant("searched" if looked_in else "compared", side.expr)
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Dict:  # noqa: N802
        """Keys are hashed."""
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _unless_constant("compared", pair.key)
        return node


def _check_depth(template: nodes.Template) -> None:
    """Refuse what is nested deeper than anyone writes: compiling takes time in proportion to it.

    Raises:
        TemplateError: statements are nested too deeply.
    """
    level: list[nodes.Node] = [template]
    for _ in range(DEEPEST):
        level = [child for node in level for child in _statements(node)]
    if level:
        raise TemplateError(
            f"the chat template nests more than {DEEPEST} statements (line {level[0].lineno}); repair it, or use "
            "another template"
        )


def _statements(node: nodes.Node) -> list[nodes.Node]:
    """The statements directly inside one."""
    held = (getattr(node, name) for name in ("body", "elif_", "else_") if name in node.fields)
    return [child for part in held for child in part if not isinstance(child, nodes.Output)]


_BODIES: Final = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)


def _cost(body: Iterable[nodes.Node]) -> int:
    """What one way through these nodes costs, without the bodies inside, which are paid for by themselves."""
    count, waiting = 1, list(body)
    while waiting:
        node = waiting.pop()
        count += 1
        waiting.extend(node.iter_child_nodes(exclude=("body",) if isinstance(node, _BODIES) else None))
    return NODE * count


def _ours(name: str, value: Any) -> nodes.Call:
    called = nodes.Getattr(nodes.ContextReference(), name, "load")
    return nodes.Call(called, [value], [], None, None, lineno=value.lineno)


def _unless_constant(name: str, value: Any) -> Any:
    return value if isinstance(value, nodes.Const | nodes.TemplateData) else _ours(name, value)


def _charge(cost: int, line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_ours("charge", nodes.Const(cost, lineno=line)), lineno=line)
