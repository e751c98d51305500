"""The budget of one rendering: a limit on the template's work, and a largest size for each value.

A chat template is a program. The sandbox keeps it from Python's internals, but not from doubling a text sixty times.
So every operation that reads or creates a value is charged to a budget before it happens. The unit is about one byte
read or created; an element of a list, a node of the template and a call are charged what they take in memory and time.

Both limits grow with the conversation, so that none is refused for its length. How much a conversation adds is only
computed once the base is used up; ordinary renderings never need it::

    3 messages, 10 kB in all: work  256 Mi + 10 000 * (512 + 16 * 3) + 8192 * 3 * 3     size  8 Mi + 64 * 10 000

What this guarantees: a rendering ends with a `TemplateError` after a bounded amount of work, some seconds at most.
What it does not: exact figures. Charges are estimates, and one native operation (a regular expression, a sort) can take
longer than its charge; `isolation.py` has limits that the operating system enforces.

`bounds.py` decides when something is charged, `sizes.py` how much. Where compiled code does not call the environment,
`ChargeInserter` adds charges to the template's syntax tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import jinja2.nodes as nodes
from jinja2.runtime import Context
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from niels_gpt.errors import TemplateError
from niels_gpt.renderers.template.execution.jinja import TrackingContext, context_call, context_statement
from niels_gpt.renderers.template.execution.reads import Reads

BASE_WORK: Final = 256 * 1024 * 1024
BASE_SIZE: Final = 8 * 1024 * 1024
# What a conversation adds to the base. Work per unit of input is allowed once more for each message, since templates
# may read the whole conversation for every message; the pair term covers doing so for short messages.
WORK_PER_INPUT: Final = 512
WORK_PER_MESSAGE: Final = 16
WORK_PER_PAIR: Final = 8192
SIZE_PER_INPUT: Final = 64

# Charges, in units of about one byte.
NODE: Final = 64  # one node of the template's syntax tree, executed once
CALL: Final = 2048
ELEMENT: Final = 64  # of a list or a mapping
ASKED_ELEMENT: Final = 1024  # an element to which a filter applies a function
TRACKED_ELEMENT: Final = 256  # a `TrackedStr` of its own in a list, with its runs

LONGEST_CHAIN: Final = 50  # generators that read generators; each level uses the C stack
MAX_BITS: Final = 16_384  # of an integer, about 4,900 digits

_VIEWS: Final[tuple[type[Any], ...]] = (type({}.keys()), type({}.values()), type({}.items()))
SEQUENCES: Final[tuple[type[Any], ...]] = (list, tuple, set, frozenset, *_VIEWS)
_SMALL = frozenset({bool, float, type(None)})

DEEPEST: Final = 40  # statements nested in statements; compiling takes time in proportion to the depth
_RECORDED: Final = frozenset(["eq", "ne", "in", "notin"])
_EMPTY_OR_NOT: Final = (("gt", 0), ("eq", 0), ("ne", 0), ("gteq", 1), ("lt", 1))  # comparisons of a length
_BODIES: Final = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)


def text_size(text: str | bytes) -> int:
    """Bytes of memory of a text, at most four per character, and its runs."""
    if isinstance(text, bytes):
        return len(text)
    size = len(text) if text.isascii() else 4 * len(text)
    return size if type(text) is str else size + ELEMENT * len(getattr(text, "runs", ()))


def is_sequence(value: Any) -> bool:
    """Whether a value is a list, a tuple, a set, or a view of a mapping."""
    return isinstance(value, SEQUENCES)


def size_of(value: Any) -> int:
    """The size of a value without the contents of its elements."""
    if isinstance(value, str | bytes):
        return text_size(value)
    if is_sequence(value) or isinstance(value, dict | range):
        return ELEMENT * len(value)
    return value.bit_length() // 8 if isinstance(value, int) else 0


def weight_of(value: Any, most: int) -> int:
    """The size of a value with its contents at all depths, each element counted as often as it appears.

    A list that contains a list twice, which contains another list twice, and so on for sixty levels, needs little
    memory but practically forever to compare or to write. So elements are counted by appearance, and counting stops
    above `most`.
    """
    total, waiting = 0, [value]
    while waiting and total <= most:
        item = waiting.pop()
        kind = type(item)
        if kind is int:
            total += item.bit_length() // 8
        elif kind in _SMALL:
            continue
        elif isinstance(item, str):
            total += text_size(item)
        elif isinstance(item, dict):
            total += ELEMENT * len(item)
            if total <= most:
                waiting.extend(item.keys())
                waiting.extend(item.values())
        elif is_sequence(item):
            total += ELEMENT * len(item)
            if total <= most:
                waiting.extend(item)
        elif kind is Namespace:
            waiting.append(item._Namespace__attrs)  # its `repr` writes them
            total += CALL
        else:
            total += size_of(item)
    return total


class Budget:
    """The remaining work of one rendering, and the largest size of a value.

    Args:
        inputs: the template's inputs (messages, tools and variables), by whose size both limits grow.
        messages: how many messages there are.
        reads: where it is recorded what the template reads (`reads.py`).
    """

    def __init__(self, inputs: Any = (), messages: int = 0, reads: Reads | None = None) -> None:
        self.reads = Reads() if reads is None else reads
        self.left = BASE_WORK
        self.size = BASE_SIZE  # of one value
        self._inputs, self._messages = inputs, messages
        self._grown = False
        # Generator -> length of its chain. Weak, so that the budget keeps no generator alive.
        self._depths: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def spend(self, units: int) -> bool:
        """Charge work. Returns `True`, so that compiled templates can use it in a condition.

        Raises:
            TemplateError: the budget is used up.
        """
        self.left -= units
        if self.left < 0:
            self._grow()
            if self.left < 0:
                raise TemplateError(
                    "the chat template does far more work than its conversation needs (loops, calls or texts without "
                    "end); repair it, or use another template"
                )
        return True

    def reserve(self, size: int) -> None:
        """Charge a value of this size, before it is created.

        Raises:
            TemplateError: the value would be too large, or the budget is used up.
        """
        if size > self.size:
            self.check_size(size)
        self.left -= size
        if self.left < 0:
            self.spend(0)

    def check_size(self, size: int) -> None:
        """Refuse a value, or an output, of this size if it is too large, without charging it.

        Raises:
            TemplateError: it is too large.
        """
        if size > self.size:
            self._grow()
            if size > self.size:
                raise TemplateError(
                    f"the chat template makes a value larger than {self.size:,} bytes, far larger than its "
                    "conversation; repair it, or use another template"
                )

    def charge_result(self, value: Any) -> Any:
        """Charge a value that has just been created, and return it."""
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TemplateError(f"the chat template makes an integer of more than {MAX_BITS:,} bits")
        self.reserve(size_of(value) + ELEMENT)
        return value

    def check_chain(self, generator: Any, source: Any) -> None:
        """Refuse too long a chain of generators that read from each other, which would overflow the C stack.

        Raises:
            TemplateError: the chain is too long.
        """
        depth = 1 + self._depths.get(source, 0) if isinstance(source, GeneratorType) else 1
        if depth > LONGEST_CHAIN:
            raise TemplateError(f"the chat template chains more than {LONGEST_CHAIN} filters; use another template")
        self._depths[generator] = depth

    def weigh(self, value: Any) -> int:
        """Charge work that reads all of a value, and return the value's weight."""
        weight = weight_of(value, self.size)
        if weight > self.size:
            self._grow()
            weight = weight_of(value, self.size)
        self.reserve(weight)
        return weight

    def _grow(self) -> None:
        """Add what the conversation allows to both limits, once."""
        if self._grown:
            return
        self._grown = True
        most = 1 << 40  # as good as no limit: the inputs are in memory already
        weight, messages = weight_of(self._inputs, most), self._messages
        self.size += SIZE_PER_INPUT * weight
        self.left += weight * (WORK_PER_INPUT + WORK_PER_MESSAGE * messages) + WORK_PER_PAIR * messages * messages


class BoundedContext(TrackingContext):
    """A rendering's variables with its budget. Compiled templates call its `charge...` methods (see `bounds.py`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = Budget()

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """The context of a block, with the same budget."""
        context = super().derived(locals)
        context.budget = self.budget  # type: ignore[attr-defined]
        return context

    def bounded_concat(self, concat: Callable[[list[str]], str]) -> Callable[[list[str]], str]:
        """The function that joins the output of a macro or a set block, with its result charged."""

        def bounded(parts: list[str]) -> str:
            self.budget.reserve(sum(map(text_size, parts)) + ELEMENT * len(parts))
            return concat(parts)

        return bounded

    def charge(self, units: int) -> bool:
        """Charge one execution of a loop's or a macro's body."""
        return self.budget.spend(units)

    def charge_loop(self, value: Any) -> Any:
        """Charge what a loop iterates over: each character of a text becomes a string of its own."""
        if isinstance(value, str | bytes):
            self.budget.spend(len(value) * TRACKED_ELEMENT)
            self.budget.reads.note(value)
        return value

    def charge_result(self, value: Any) -> Any:
        """Charge a slice, or texts joined by `~`."""
        return self.budget.charge_result(value)

    def charge_output(self, value: Any) -> Any:
        """Charge a value that is converted to text."""
        if not isinstance(value, str):
            self.budget.weigh(value)
        return value

    def charge_comparison(self, value: Any) -> Any:
        """Charge a value that is compared with another, or hashed."""
        if isinstance(value, str):
            self.budget.spend(len(value))
        elif type(value) not in _SMALL:
            self.budget.weigh(value)
        return value

    def charge_search(self, value: Any) -> Any:
        """Charge the right side of `in`. Searching a text may read it more than once; a mapping looks up a hash."""
        if isinstance(value, str):
            self.budget.spend(4 * len(value))
        elif not isinstance(value, dict):
            self.budget.weigh(value)
        return value

    def length(self, value: Any) -> int:
        """The length of a value, for a template that only asks whether it is empty."""
        if isinstance(value, bytes):
            self.budget.reads.note(value)
        return len(value)

    # ---- what is read (`reads.py`)

    def note(self, value: Any) -> Any:
        """Record that a text is read, for example one of its characters, and return it."""
        return self.budget.reads.note(value)

    def equal(self, left: Any, right: Any) -> bool:
        """`left == right`, recorded."""
        result: bool = left == right
        if result:
            self.budget.reads.equal(left, right)
        return result

    def contains(self, left: Any, right: Any) -> bool:
        """`left in right`, recorded."""
        result: bool = left in right
        if result:
            self.budget.reads.contained(left, right)
        return result


class ChargeInserter(NodeTransformer):
    """Adds calls that charge, and calls that record what is read (`reads.py`).

    ::

        {% for m in xs %}{{ m }}{% endfor %}
        ->  {% for m in context.charge_loop(xs) %}{% do context.charge(192) %}{{ context.charge_output(m) }}{% endfor %}
    """

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 (the library's names)
        """Every iteration is charged the loop's body, and every element the loop's condition."""
        # Before the calls below are added, which are no work of the template's.
        cost = _cost(node.body)
        test_cost = 0 if node.test is None else _cost([node.test])
        self.generic_visit(node)
        node.iter = context_call("charge_loop", node.iter, lineno=node.lineno)
        node.body.insert(0, context_statement("charge", nodes.Const(cost), lineno=node.lineno))
        if node.test is not None:  # it runs for the elements that it leaves out, too
            node.test = nodes.And(context_call("charge", nodes.Const(test_cost)), node.test, lineno=node.lineno)
        return node

    def _body(self, node: Any) -> Any:
        """Every execution of a macro, a call block or a block is charged its body."""
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, context_statement("charge", nodes.Const(cost), lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _body  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        """Output converts values to text."""
        self.generic_visit(node)
        node.nodes = [_unless_constant("charge_output", child) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        """`a ~ b`: each part is charged, then the result."""
        self.generic_visit(node)
        if all(isinstance(part, nodes.Const) for part in node.nodes):
            return node
        node.nodes = [_unless_constant("charge_output", part) for part in node.nodes]
        return context_call("charge_result", node, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """A slice is a new value. Characters of a text are read, and so is a text by which something is looked up."""
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):  # message['content']
            return node
        node.node = _unless_constant("note", node.node)
        if isinstance(node.arg, nodes.Slice):
            return context_call("charge_result", node, lineno=node.lineno)
        node.arg = _unless_constant("note", node.arg)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Call:  # noqa: N802
        """`f(*text)` reads characters."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = context_call("note", node.dyn_args, lineno=node.lineno)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802
        """Both sides are charged, except in a comparison with a constant, which ends at the first difference.

        What is read is recorded, except in comparisons with roles, which are in every template.
        """
        if _asks_whether_empty(node):  # the filter `length` counts as reading, and whether a text is empty does not
            node.expr = context_call("length", cast(nodes.Filter, node.expr).node, lineno=node.lineno)
        self.generic_visit(node)
        sides: list[Any] = [node, *node.ops]
        is_recorded = not any(_is_no_text(side.expr) for side in sides)
        searches = any(operand.op in ("in", "notin") for operand in node.ops)
        if searches or not any(isinstance(side.expr, nodes.Const) for side in sides):
            for side in sides:
                is_searched = isinstance(side, nodes.Operand) and side.op in ("in", "notin")
                side.expr = _unless_constant("charge_search" if is_searched else "charge_comparison", side.expr)
        if not is_recorded:
            return node
        op = node.ops[0].op
        if len(node.ops) > 1 or op not in _RECORDED:  # `a < b`, or a chain such as `a == b == c`
            for side in sides:
                side.expr = _unless_constant("note", side.expr)
            return node
        call = context_call("contains" if "in" in op else "equal", node.expr, node.ops[0].expr, lineno=node.lineno)
        return nodes.Not(call, lineno=node.lineno) if op in ("ne", "notin") else call

    def visit_Dict(self, node: nodes.Dict) -> nodes.Dict:  # noqa: N802
        """The keys of a new mapping are hashed, and found again by what they are."""
        self.generic_visit(node)
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = context_call("note", context_call("charge_comparison", pair.key))
        return node


def _asks_whether_empty(node: nodes.Compare) -> bool:
    """Whether it is `value | length > 0`, or says the same otherwise."""
    length, asked = node.expr, [(operand.op, operand.expr) for operand in node.ops]
    if not isinstance(length, nodes.Filter) or length.name not in ("length", "count") or length.node is None:
        return False
    number = asked[0][1].value if isinstance(asked[0][1], nodes.Const) else None
    has_arguments = length.args or length.kwargs or length.dyn_args or length.dyn_kwargs
    return len(asked) == 1 and not has_arguments and (asked[0][0], number) in _EMPTY_OR_NOT


def _is_no_text(node: nodes.Node) -> bool:
    """Whether an operand is a role or a type, a property of a loop, a number or `none`."""
    if isinstance(node, nodes.Const):
        return not isinstance(node.value, str)
    if isinstance(node, nodes.Getattr):
        return node.attr in ("role", "type") or (isinstance(node.node, nodes.Name) and node.node.name == "loop")
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value in ("role", "type")
    return False


def check_depth(template: nodes.Template) -> None:
    """Refuse statements that are nested deeper than any template needs: compiling takes time in proportion.

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
    parts = (getattr(node, name) for name in ("body", "elif_", "else_") if name in node.fields)
    return [child for part in parts for child in part if not isinstance(child, nodes.Output)]


def _cost(body: Iterable[nodes.Node]) -> int:
    """The charge for executing these nodes once, without the bodies of loops and macros, which charge themselves."""
    # {{ a }}{% for x in y %}{{ b }}{% endfor %}: the output, a, the loop, x and y, but not b.
    count, waiting = 1, list(body)
    while waiting:
        node = waiting.pop()
        count += 1
        waiting.extend(node.iter_child_nodes(exclude=("body",) if isinstance(node, _BODIES) else None))
    return NODE * count


def _unless_constant(method: str, value: Any) -> Any:
    """`context.method(value)`; a constant as it is."""
    return (
        value
        if isinstance(value, nodes.Const | nodes.TemplateData)
        else context_call(method, value, lineno=value.lineno)
    )
