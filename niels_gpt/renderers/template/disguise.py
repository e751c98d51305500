"""Shows whose a control token is where the template looks for it in texts.

A template may search an answer for a control token and write its own in its place, or copy the answer. The output does
not show which of the two it does. So the token gets another spelling in the caller's texts, and in what the template
compares texts with, but not in what it writes. Then the output shows whose each one is::

    template    {% if '</think>' in m.content %}{{ '</think>' + m.content.split('</think>')[1] }}{% endif %}
    disguised   {% if '①/think>' in m.content %}{{ '</think>' + m.content.split('①/think>')[1] }}{% endif %}
    text        "Hm.</think>4"      "Hm.①/think>4"       ①: a private-use character in the place of `<`
    output      "</think>4"         "</think>4"           the token is the template's

So a token that has its own spelling in the disguised output was written by the template, unless that cuts a text at
its tokens and puts its own between the parts (`split`, then `join`): `writes_them_again` says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import nodes

from niels_gpt.renderers.template.controls import ControlTokens
from niels_gpt.renderers.template.strings import any_of, literals, parsed, searching, strings_in

_FIRST: Final = 0x100000  # private-use characters that `letters.py` does not use


@dataclass(frozen=True)
class Disguise:
    """A template with other spellings of the control tokens that it looks for.

    Attributes:
        source: the template's text.
        tokens: control token -> its other spelling, which is as long.
    """

    source: str
    tokens: Mapping[str, str]

    def hidden(self, value: Any) -> Any:
        """A value with the other spellings in its texts, at any depth; roles stay."""
        return respelled(self.tokens, value)

    def writes_them_again(
        self, controls: ControlTokens, output: str, messages: list[Any], render: Callable[[list[Any]], str]
    ) -> bool:
        """Whether the disguised template may write tokens for those of the caller.

        It may if it writes more of any token where texts have each of theirs twice, or fewer of a caller's token where
        the texts that are no answers have none. In an answer, `</think>` once for those of the text is its own.

        Args:
            output: the disguised template's on the messages.
            messages: with the other spellings.
            render: the disguised template's output on other messages.

        Raises:
            MessageError: the template refuses them.
        """
        count = controls.count(output)
        twice = {other: f"{other}-{other}" for other in self.tokens.values()}
        if controls.count(render(respelled(twice, messages))) - count:
            return True
        none = dict.fromkeys(self.tokens.values(), "-")
        without = [one if one["role"] == "assistant" else respelled(none, one) for one in messages]
        read = "".join(text for one in messages if one["role"] != "assistant" for text in strings_in(one))
        spelled = {token for token, other in self.tokens.items() if other in read}
        return bool(spelled) and bool(spelled & (count - controls.count(render(without))).keys())

    def parts(self, text: str) -> list[str]:
        """A text cut at the other spellings, which are every second part."""
        return re.split(f"({any_of(self.tokens.values()).pattern})", text)

    def shown(self, text: str) -> str:
        """A text with the tokens' own spellings."""
        return text.translate({ord(other[0]): token[0] for token, other in self.tokens.items()})


def disguise_of(source: str, controls: ControlTokens) -> Disguise | None:
    """The disguise of a template that can be parsed; `None` if it looks for no control token."""
    source = re.sub("\r\n|\r", "\n", source)  # as Jinja does it
    places = [place for place in literals(source) if controls.first(source[slice(*place)])]
    # Neighbours are one constant. Each literal gets a number in its place, so that the tree says which ones search.
    numbered = _replaced(source, places, [f"'\ue000{number}\ue000'" for number in range(len(places))])
    tree = parsed(numbered)
    sides = [side for one in tree.find_all(nodes.Compare) for side in (one.expr, *(other.expr for other in one.ops))]
    constants = [*searching(tree), *(one for side in sides for one in (side, *side.find_all(nodes.Const)))]
    found = {int(one) for const in constants if isinstance(const, nodes.Const) for one in _numbers(const.value)}
    spelled = [source[slice(*places[number])] for number in sorted(found)]
    tokens = sorted({text[start:stop] for text in spelled for start, stop in controls.places(text)})
    if not tokens:
        return None
    disguise = Disguise(source, {token: chr(_FIRST + number) + token[1:] for number, token in enumerate(tokens)})
    hidden = _replaced(source, [places[number] for number in sorted(found)], [*map(disguise.hidden, spelled)])
    return Disguise(hidden, disguise.tokens)


def respelled(spellings: Mapping[str, str], value: Any) -> Any:
    """A value with other spellings in its texts, at any depth; roles stay."""
    if isinstance(value, str):
        for one, other in spellings.items():
            if one in value:  # a text without any stays the object that it is
                value = value.replace(one, other)
        return value
    if isinstance(value, Mapping):
        items = value.items()
        return {respelled(spellings, key): item if key == "role" else respelled(spellings, item) for key, item in items}
    return [respelled(spellings, item) for item in value] if isinstance(value, list | tuple) else value


def _numbers(value: Any) -> list[str]:
    return re.findall("\ue000(\\d+)\ue000", value) if isinstance(value, str) else []


def _replaced(source: str, places: list[tuple[int, int]], texts: list[str]) -> str:
    """The source with these texts in these places, which are ascending."""
    parts, at = list[str](), 0
    for (start, stop), text in zip(places, texts, strict=True):
        parts += source[at:start], text
        at = stop
    return "".join([*parts, source[at:]])
