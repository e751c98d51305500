"""Where a chat template is charged: operators, methods, filters, tests, loops and macros.

`BoundedEnvironment` is the environment of `jinja.py` in which each of these is charged to the rendering's budget
(`budget.py`). An operation whose result can be larger than its inputs is charged before it runs, by an upper bound of
the result's size (`sizes.py`)::

    {{ "ab" * 10**12 }}     call_binop("*"): size 2 * 10**12 > the largest size  ->  TemplateError, nothing is created

There are two ways in: methods that Jinja calls for every operator, call and filter are overridden; for what compiled
templates do by themselves (loops, comparisons, output) `budget.ChargeInserter` adds calls to the syntax tree.

In the same places it is recorded what the template reads of the caller's texts (`reads.py`).

What this guarantees: nothing else changes; a template within its budget writes the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from types import BuiltinMethodType, GeneratorType, MethodDescriptorType, MethodType
from typing import Any, Final

import jinja2
import jinja2.nodes as nodes
import jinja2.sandbox
from jinja2.compiler import Frame
from jinja2.runtime import BlockReference, LoopContext, Macro

from niels_gpt.errors import TemplateError
from niels_gpt.renderers.template.execution.budget import (
    ASKED_ELEMENT,
    CALL,
    ELEMENT,
    MAX_BITS,
    BoundedContext,
    Budget,
    ChargeInserter,
    check_depth,
    size_of,
    text_size,
)
from niels_gpt.renderers.template.execution.jinja import TrackingCodeGenerator, TrackingEnvironment
from niels_gpt.renderers.template.execution.provenance import Run, TrackedStr
from niels_gpt.renderers.template.execution.reads import Reads
from niels_gpt.renderers.template.execution.sizes import FILTER_SIZES, NESTED, format_size, method_size, percent_size

LONGEST_DATE: Final = 1000  # characters of the format of `strftime_now`

# Filters that take the same short time for any value, and of these those that read a text.
_CHEAP: Final = frozenset(["abs", "boolean", "d", "default", "safe"])
_CHEAP_READING: Final = frozenset(["attr", "count", "first", "float", "last", "length", "random"])
# Filters that read only the outermost level of their value, or return a generator over its elements.
_SHALLOW: Final = frozenset(["int", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr"])
_SORTING: Final = frozenset(["dictsort", "groupby", "max", "min", "sort", "unique"])
_ORDERING: Final = frozenset([">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le"])  # tests
_COMPARING: Final = _ORDERING | {"==", "eq", "equalto", "!=", "ne", "in"}
# Methods of strings whose result is never larger than the string.
_NOT_GROWING: Final = frozenset(
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
_DICT_READS: Final = frozenset({"get", "items", "keys", "values"})  # methods of mappings that only look up
_METHODS: Final = (MethodType, BuiltinMethodType)
_NUMBERS: Final = (int, float)  # `isinstance(value, int | float)` makes the union each time
_JINJA_CALLABLES: Final = (Macro, BlockReference, LoopContext)
_COMPILER_ARGUMENTS: Final = frozenset({"_loop_vars", "_block_vars", "caller"})  # which compiled calls add


class BoundedCodeGenerator(TrackingCodeGenerator):
    """Compiles what joins texts to calls that charge it."""

    def write_commons(self) -> None:
        """Replace the function with which macros and set blocks join their output by one that charges it."""
        super().write_commons()
        self.writeline("concat = context.bounded_concat(concat)")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        """`a + b + c` is one call, since templates write most of their output as sums of many texts."""
        terms = [node.right]
        while isinstance(node.left, nodes.Add):
            node = node.left
            terms.append(node.right)
        self.write("environment.sum_of(context, (")
        for term in (node.left, *reversed(terms)):
            self.visit(term, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(TrackingEnvironment):
    """The environment of chat templates, with charges to `context.budget`, which each rendering sets."""

    code_generator_class = BoundedCodeGenerator
    context_class = BoundedContext
    intercepted_binops = frozenset(["*", "**", "+", "-", "%"])

    def __init__(self, clock: Callable[[str], str]) -> None:
        super().__init__(clock)
        self.filters = {
            name: function
            if name in _CHEAP
            else _reading_filter(name, function)
            if name in _CHEAP_READING
            else _bounded_filter(name, function)
            for name, function in {**self.filters, "sum": _sum}.items()
        }
        self.tests |= {name: _bounded_test(self.tests[name], name) for name in _COMPARING}
        self.tests |= {name: _reading_test(self.tests[name]) for name in ("lower", "upper")}
        self.globals["strftime_now"] = _short_format(self.globals["strftime_now"])
        del self.globals["lipsum"]  # it writes random text; a rendering must depend on its inputs only

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        check_depth(template)
        ChargeInserter().visit(template)
        template.set_environment(self)
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """As the sandbox does it, charged before it runs."""
        _charge_operator(context.budget, operator, left, right)
        if operator == "%":  # a text as a format
            context.budget.reads.note(left)
        elif operator == "*" and any(isinstance(value, str) and not value.isspace() for value in (left, right)):
            context.budget.reads.numbers = True  # a text as often as a number says, which may be the caller's
        return self.binop_table[operator](left, right)

    def sum_of(self, context: Any, terms: tuple[Any, ...]) -> Any:
        """`a + b + c`, charged before it runs; texts with origins are joined at once."""
        size, runs = 0, list[Run]()
        for term in terms:
            if type(term) is not TrackedStr:  # numbers, lists, or what cannot be added: one `+` after the other
                return reduce(partial(self.call_binop, context, "+"), terms)
            size += len(term) if term.isascii() else 4 * len(term)  # `text_size` without a call for each term
            runs += term.runs
        context.budget.reserve(size + ELEMENT * len(runs))
        return TrackedStr("".join(terms), tuple(runs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """As the sandbox does it; a key that takes too long to hash is refused."""
        if isinstance(argument, tuple):  # of a new budget, since Jinja passes no context here
            Budget().weigh(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's `str.format`, as an object that `call` recognises."""
        function = super().wrap_str_format(value)
        return None if function is None else _Format(value.__self__, function)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox does it, charged before and after it runs."""
        budget, kind = context.budget, type(obj)
        budget.spend(CALL)
        if kind is MethodDescriptorType:  # `dict.update(message, ...)` would change what `message.update` may not
            raise jinja2.exceptions.SecurityError(f"{obj.__name__} of a type is unsafe")
        own = obj.__self__ if kind in _METHODS else None
        if kind in _JINJA_CALLABLES:
            budget.spend(CALL)  # a second Python frame; the body charges itself
            return super().call(context, obj, *args, **kwargs)
        if isinstance(own, str) and obj.__name__ in _NOT_GROWING:  # the most frequent calls, such as `strip`
            budget.spend(len(own))
            result = super().call(context, obj, *args, **kwargs)
            budget.reads.called(own, obj.__name__, args, result)
            return result
        if isinstance(own, str | bytes) and obj.__name__ == "join" and args:
            args = (_listed(args[0]), *args[1:])
        arguments = {key: kwargs[key] for key in kwargs if key not in _COMPILER_ARGUMENTS}
        _charge_call(budget, obj, own, args, arguments)
        result = budget.charge_result(super().call(context, obj, *args, **kwargs))
        _note_call(budget.reads, obj, own, (*args, *arguments.values()), result)
        return context.charge_output(result) if "caller" in kwargs else result  # a call block writes its result


class _Format:
    """The method `format` or `format_map` of a text. Its fields are not visible to templates."""

    # The sandbox refuses attributes that begin with an underscore.

    def __init__(self, text: str, function: Callable[..., str]) -> None:
        self._text, self._function = text, function

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self._function(*args, **kwargs)


def _charge_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        if isinstance(left, int) and isinstance(right, int):
            # An upper bound of the result's bits: 2 ** 100 has left.bit_length() * 100 = 200 at most.
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS and abs(left) > 1:
                raise TemplateError(
                    f"the chat template makes an integer of more than {MAX_BITS:,} bits by {operator}; repair it, or "
                    "use another template"
                )
    elif operator == "+":
        budget.reserve(size_of(left) + size_of(right))
    elif operator == "%" and isinstance(left, str | bytes):
        budget.reserve(percent_size(budget, left, right))
    elif operator == "*":  # `"ab" * 3` or `3 * "ab"`
        for value, times in ((left, right), (right, left)):
            budget.reserve(size_of(value) * max(0, times) if isinstance(times, int) else 0)
    elif operator == "-":  # views of a mapping's keys are sets
        budget.weigh([left, right])


def _note_call(reads: Reads, obj: Any, own: Any, args: tuple[Any, ...], result: Any) -> None:
    if isinstance(obj, _Format):
        reads.note(obj._text)
        if NESTED.search(obj._text):  # a value of the caller is the format of another one
            reads.note_all(args)
    elif isinstance(own, str | bytes):
        reads.called(own, obj.__name__, args, result)
    elif obj is jinja2.sandbox.safe_range:  # its length may be a number of the caller
        reads.numbers = True
    elif own is not None:
        reads.looked_up(own, obj.__name__, args)


def _charge_call(budget: Budget, obj: Any, own: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Charge a call of anything but Jinja's own callables; `own` is the value whose method is called, or `None`."""
    if isinstance(obj, _Format):
        budget.reserve(format_size(budget, obj._text, args, kwargs))
    elif isinstance(own, str | bytes | int):
        budget.reserve(method_size(budget, own, obj.__name__, args, kwargs))
    elif isinstance(own, dict) and obj.__name__ in _DICT_READS:
        budget.weigh(args[:1])
    else:  # a method of a list or a loop, or a function: `dict`, `range`, `namespace`, a variable of the caller
        weight = budget.weigh(args)
        budget.spend(size_of(own) * (1 + weight // ELEMENT) if own is not None else 0)


def _listed(value: Any) -> Any:
    """A generator's elements as a list, so that they can be counted; each was charged when it was generated."""
    return list(value) if isinstance(value, GeneratorType) else value


def _charged(budget: Budget, values: Iterable[Any]) -> Iterator[Any]:
    """The values, each charged when it is generated."""
    for value in values:
        budget.spend(size_of(value) + ELEMENT)
        yield value


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with charges for what it reads and creates."""
    # The environment, a context or nothing: what the filter wants as its first argument (`jinja2.pass_context`).
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    size = FILTER_SIZES.get(name)
    reads_all = size is None and name not in _SHALLOW | _SORTING

    # It takes the context for its budget; that also keeps Jinja's compiler from running it on constants, uncharged.
    @jinja2.pass_context
    def bounded(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = context.budget
        if reads_all and isinstance(value, str) and not args and not kwargs:  # such as `trim`, the most frequent
            budget.spend(CALL + 4 * text_size(value))
        else:
            value = value if name in _SHALLOW else _listed(value)
            budget.spend(CALL)
            if size is not None:
                budget.reserve(size(budget, value, args, kwargs))
            elif name in _SHALLOW:
                budget.spend(size_of(value) * (ASKED_ELEMENT // ELEMENT))
            else:
                weight = budget.weigh([value, args, *kwargs.values()])
                # A sort compares n * log2(n) times; other filters read a value a few times.
                budget.spend(weight * weight.bit_length() if name in _SORTING else 4 * weight)
        if passed is None:
            result = function(value, *args, **kwargs)
        else:
            first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
            result = function(first[passed], value, *args, **kwargs)
        budget.reads.filtered(name, value, args, kwargs, result)
        if not isinstance(result, GeneratorType):
            return budget.charge_result(result)
        result = _charged(budget, result)
        budget.check_chain(result, value)
        return result

    return bounded


def _reading_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is not charged, and whose reading is recorded."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @jinja2.pass_context
    def reading(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        reads = context.budget.reads
        reads.note(value)
        for given in (*args, *kwargs.values()):
            reads.note_all(given)
        if passed is None:
            return function(value, *args, **kwargs)
        # `attr`, `first` and `last` take the environment, `random` the context.
        return function(context.environment if passed == "environment" else context, value, *args, **kwargs)

    return reading


def _bounded_test(function: Any, name: str) -> Callable[..., bool]:
    is_order = name in _ORDERING

    @jinja2.pass_context
    def bounded(context: Any, value: Any, other: Any) -> bool:
        context.charge_comparison(value)
        context.charge_search(other)
        result = bool(function(value, other))
        if is_order:
            context.budget.reads.note_all([value, other])
        elif name == "in" and result:
            context.budget.reads.contained(value, other)
        elif name != "in" and result != (name in ("!=", "ne")):
            context.budget.reads.equal(value, other)
        return result

    return bounded


def _reading_test(function: Any) -> Callable[..., bool]:
    """`is lower` and `is upper`."""

    @jinja2.pass_context
    def reading(context: Any, value: Any) -> bool:
        context.budget.reads.note(value)
        return bool(function(value))

    return reading


@jinja2.pass_context
def _sum(context: Any, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's filter `sum`, with a `+` that is charged."""
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
