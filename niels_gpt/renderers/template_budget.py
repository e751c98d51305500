"""How much a chat template may do: one budget of work for each rendering, and a largest size for each value.

A chat template is a program, and the sandbox only forbids it to reach Python's internals: it may still double a text
sixty times. So everything that makes or reads a value pays for it before it happens. The unit is about one byte made
or read; a list's element, a node of the template and a call cost what they take in memory and time.

Both limits grow with the conversation, so that no long conversation is refused for its length; how much a conversation
allows is only computed when the base is used up, so ordinary renderings do not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final
from weakref import WeakKeyDictionary

from jinja2.runtime import Context
from jinja2.utils import Namespace

from niels_gpt.errors import TemplateError

BASE_WORK: Final = 256 * 1024 * 1024
BASE_SIZE: Final = 8 * 1024 * 1024
WORK_PER_INPUT: Final = 512  # more units of work for each unit of the conversation, and again for each message
WORK_PER_MESSAGE: Final = 16
WORK_PER_PAIR: Final = 8192  # some templates look at all messages for each message
SIZE_PER_INPUT: Final = 64

NODE: Final = 64
CALL: Final = 2048
ELEMENT: Final = 64
ASKED_ELEMENT: Final = 512  # one that a filter looks at with a function
TRACED_ELEMENT: Final = 256  # a text of its own in a list, with its runs
LONGEST_CHAIN: Final = 50  # of filters that hand out elements one by one
MAX_BITS: Final = 16_384  # of an integer, about 4,900 digits

_VIEWS: Final[tuple[type[Any], ...]] = (type({}.keys()), type({}.values()), type({}.items()))
SEQUENCES: Final[tuple[type[Any], ...]] = (list, tuple, set, frozenset, *_VIEWS)
_SMALL = frozenset({bool, float, type(None)})


def runs_in(text: Any) -> int:
    """How many stretches of one origin a text has; none if it is an ordinary one."""
    return len(getattr(text, "runs", ()))


def text_size(text: str | bytes) -> int:
    """Bytes that a text takes, runs included; at most four for a character."""
    if type(text) is str:
        return len(text) if text.isascii() else 4 * len(text)
    if isinstance(text, bytes):
        return len(text)
    return (len(text) if text.isascii() else 4 * len(text)) + ELEMENT * runs_in(text)


def is_sequence(value: Any) -> bool:
    """A list, a tuple, a set, or a view of a mapping."""
    return isinstance(value, SEQUENCES)


def size_of(value: Any) -> int:
    """The size of a value without what its elements hold."""
    if isinstance(value, str | bytes):
        return text_size(value)
    if is_sequence(value) or isinstance(value, dict | range):
        return ELEMENT * len(value)
    return value.bit_length() // 8 if isinstance(value, int) else 0


def weight_of(value: Any, most: int) -> int:
    """The size of a value with everything in it, each element counted as often as it appears.

    A list that holds a list twice, which holds another twice, and so on, takes little memory and an endless time to
    compare or to write. Counting stops above `most`.
    """
    total, waiting = 0, [value]
    while waiting and total <= most:
        held = waiting.pop()
        kind = type(held)
        if kind is int:
            total += held.bit_length() // 8
        elif kind in _SMALL:
            continue
        elif isinstance(held, str):
            total += text_size(held)
        elif isinstance(held, dict):
            total += ELEMENT * len(held)
            if total <= most:
                waiting.extend(held.keys())
                waiting.extend(held.values())
        elif is_sequence(held):
            total += ELEMENT * len(held)
            if total <= most:
                waiting.extend(held)
        elif kind is Namespace:
            waiting.append(held._Namespace__attrs)  # what its `repr` writes
            total += CALL
        else:
            total += size_of(held)
    return total


class Budget:
    """What is left of one rendering's work.

    Args:
        given: what the template is given (messages, tools and variables), by which both limits grow.
        messages: how many messages there are.
    """

    def __init__(self, given: Any = (), messages: int = 0) -> None:
        self.left = BASE_WORK
        self.size = BASE_SIZE  # of one value
        self._given, self._messages = given, messages
        self._grown = False
        self._depths: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def spend(self, units: int) -> bool:
        """Pay for work; `True`, so that it can stand in a condition.

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

    def room(self, size: int) -> None:
        """Pay for a value of this size before it is made.

        Raises:
            TemplateError: no value may be so large.
        """
        if size > self.size:
            self.check(size)
        self.left -= size
        if self.left < 0:
            self.spend(0)

    def check(self, size: int) -> None:
        """Refuse a value, or an output, that is too large.

        Raises:
            TemplateError: no value may be so large.
        """
        if size > self.size:
            self._grow()
            if size > self.size:
                raise TemplateError(
                    f"the chat template makes a value larger than {self.size:,} bytes, far larger than its "
                    "conversation; repair it, or use another template"
                )

    def made(self, value: Any) -> Any:
        """Pay for a value that has just been made."""
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TemplateError(f"the chat template makes an integer of more than {MAX_BITS:,} bits")
        self.room(size_of(value) + ELEMENT)
        return value

    def chained(self, made: Any, source: Any) -> None:
        """A generator reads another one, which may read another: too long a chain overflows the system's stack.

        Raises:
            TemplateError: it is too long.
        """
        depth = 1 + self._depths.get(source, 0) if isinstance(source, GeneratorType) else 1
        if depth > LONGEST_CHAIN:
            raise TemplateError(f"the chat template chains more than {LONGEST_CHAIN} filters; use another template")
        self._depths[made] = depth

    def weigh(self, value: Any) -> int:
        """Pay for work that goes through all of a value; its weight."""
        weight = weight_of(value, self.size)
        if weight > self.size:
            self._grow()
            weight = weight_of(value, self.size)
        self.room(weight)
        return weight

    def _grow(self) -> None:
        """Add what the conversation allows, once."""
        if self._grown:
            return
        self._grown = True
        most = 1 << 40
        given, messages = weight_of(self._given, most), self._messages
        self.size += SIZE_PER_INPUT * given
        self.left += given * (WORK_PER_INPUT + WORK_PER_MESSAGE * messages) + WORK_PER_PAIR * messages * messages


class BoundedContext(Context):
    """A rendering's variables with its budget; compiled templates call its methods (see `template_bounds`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = Budget()

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """The context of a block: the same budget."""
        made = super().derived(locals)
        made.budget = self.budget  # type: ignore[attr-defined]
        return made

    def bounded_concat(self, concat: Callable[[list[str]], str]) -> Callable[[list[str]], str]:
        """What joins the output of a macro or a set block, paid for."""

        def bounded(parts: list[str]) -> str:
            self.budget.room(sum(map(text_size, parts)) + ELEMENT * len(parts))
            return concat(parts)

        return bounded

    def looped(self, value: Any) -> Any:
        """What a loop goes through: the characters of a text are texts of their own."""
        if isinstance(value, str):
            self.budget.spend(len(value) * TRACED_ELEMENT)
        return value

    def charge(self, units: int) -> bool:
        """The template takes a step: a loop's body, a macro."""
        return self.budget.spend(units)

    def made(self, value: Any) -> Any:
        """A slice, or texts joined by `~`."""
        return self.budget.made(value)

    def written(self, value: Any) -> Any:
        """A value that becomes text."""
        if not isinstance(value, str):
            self.budget.weigh(value)
        return value

    def compared(self, value: Any) -> Any:
        """A value that is compared with another, or looked up."""
        if isinstance(value, str):
            self.budget.spend(len(value))
        elif type(value) not in _SMALL:
            self.budget.weigh(value)
        return value

    def searched(self, value: Any) -> Any:
        """What is behind `in`. Searching a text may read it more than once."""
        if isinstance(value, str):
            self.budget.spend(4 * len(value))
        elif not isinstance(value, dict):
            self.budget.weigh(value)
        return value
