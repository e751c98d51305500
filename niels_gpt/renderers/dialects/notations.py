"""Arguments in notations other than JSON.

::

    python_arguments   city='Oslo', at=(1, 2.), x=None)         {"city": "Oslo", "at": [1, 2.0], "x": null}
    gemma_arguments    city:<|"|>Oslo<|"|>,days:[1,2]}          {"city": "Oslo", "days": [1, 2]}
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Final

from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.dialects.base import end_of
from niels_gpt.renderers.dialects.json_values import strict_json

# ---- Python

# A string with its quotes, or what keeps arguments apart; an odd quote is the beginning of a string that does not end.
_TOKEN: Final = re.compile(
    r"""'''(?:[^\\]|\\.)*?'''|\"""(?:[^\\]|\\.)*?\"""|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|[()\[\]{},='"]""",
    re.DOTALL,
)
_KEYWORD: Final = re.compile(r"[^\s(),=\[\]{}\"']+")
# What Python's parser reads otherwise than JSON, or not at all: `\\/` is a slash in JSON, an unknown escape is two
# characters, and no source may hold a zero byte or keep a carriage return.
_ESCAPE: Final = re.compile(r"\\(.)|[\x00\r]", re.DOTALL)
_KNOWN_ESCAPES: Final = frozenset("\\'\"abfnrtvxuUN01234567\n")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_DEEPEST: Final = 200
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


def python_arguments(completion: Completion, at: int) -> tuple[dict[str, Any], int] | None:
    """The keyword arguments after a call's opening bracket, and the character after its closing one; `None` for others.

    Values are strings, numbers, lists, tuples, dicts, `None`; those of JSON too. Tuples are lists, and keys of a dict
    that are no strings become strings, as `json.dumps` does it.
    """
    text, arguments, brackets = completion.text, dict[str, Any](), [")"]
    start, equals = at, -1
    for token in _TOKEN.finditer(text, at):
        char = token.group()
        if char in _CLOSING:
            if (len(brackets) == 1 and equals < 0) or len(brackets) > _DEEPEST:  # no keyword, or too deep for Python
                return None
            brackets.append(_CLOSING[char])
        elif (char in ")]}" and brackets.pop() != char) or (
            char[0] in "'\"" and (len(char) == 1 or text[token.start() - 1].isalnum())
        ):
            return None
        elif char == "=" and len(brackets) == 1 and equals < 0:
            equals = token.start()
        if not brackets or (char == "," and len(brackets) == 1):
            is_empty = equals < 0 and not text[start : token.start()].strip()
            if not (is_empty and not brackets):  # `f()`, and a comma after the last argument
                key = text[start:equals].strip() if equals >= 0 else ""
                if not _KEYWORD.fullmatch(key) or completion.decoded(start, equals).strip() in arguments:
                    return None
                try:
                    value = _python_value(completion.decoded(equals + 1, token.start()))
                except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                    return None
                arguments[completion.decoded(start, equals).strip()] = value
            if not brackets:
                return arguments, token.end()
            start, equals = token.end(), -1
    return None


def _python_value(text: str) -> Any:
    """A literal of Python or JSON as a value that JSON can write.

    Raises:
        ValueError, SyntaxError, TypeError, RecursionError, MemoryError: it is none.
    """
    source = _ESCAPE.sub(_python_escape, text.strip())
    if "#" in source and "#" in _TOKEN.sub("", source):
        raise ValueError("a comment is no part of a value")
    # Through JSON, for tuples, keys and numbers beyond all floats, and pairs of surrogates that become one character.
    return strict_json(json.dumps(_evaluated(ast.parse(source, mode="eval").body), allow_nan=False))


def _python_escape(found: re.Match[str]) -> str:
    char = found[1]
    if char is None:
        return repr(found[0])[1:-1]
    return found[0] if char in _KNOWN_ESCAPES else "/" if char == "/" else "\\\\" + char


def _evaluated(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_evaluated(item) for item in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        value = {_evaluated(key): _evaluated(item) for key, item in zip(node.keys, node.values, strict=True) if key}
        if len(value) == len(node.keys):
            return value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluated(node.operand)
        if type(value) in (int, float) and not isinstance(node.operand, ast.UnaryOp):
            return -value if isinstance(node.op, ast.USub) else value
    raise ValueError(f"{type(node).__name__} is no literal")


# ---- Gemma 4

_QUOTE: Final = '<|"|>'
_KEY: Final = re.compile(r"\s*([^:{}\[\],]+):\s*")
_BARE: Final = re.compile(r"[^{}\[\],<]*")


def gemma_arguments(completion: Completion, at: int) -> tuple[dict[str, Any], int] | None:
    """The arguments after the opening brace of a call of Gemma 4, and the character after its closing one.

    Keys have no quotes, texts are between `<|"|>`, all else is as in JSON, and `None`. `None` is returned for others.
    """
    text, parts, brackets = completion.text, ["{"], ["}"]
    while brackets:
        at = completion.skip_space(at)
        char = text[at : at + 1]
        is_new = parts[-1] in ("{", "[", ",")
        if char == brackets[-1]:
            if parts[-1] == "," and parts[-2] not in ("{", "[", ","):
                parts.pop()
            parts.append(brackets.pop())
            at += 1
        elif char == "," and not is_new:
            parts.append(char)
            at += 1
        elif not char or not is_new:
            return None
        else:
            if brackets[-1] == "}":
                key = _KEY.match(text, at)
                if key is None:
                    return None
                name = completion.decoded(*key.span(1)).strip().removeprefix(_QUOTE).removesuffix(_QUOTE)
                parts += [json.dumps(name), ":"]
                at = key.end()
            if text.startswith(("{", "["), at):
                parts.append(text[at])
                brackets.append(_CLOSING[text[at]])
                at += 1
            elif (read := _gemma_value(completion, at)) is not None:
                parts.append(read[0])
                at = read[1]
            else:
                return None
    try:
        return strict_json("".join(parts)), at
    except ValueError:
        return None


def _gemma_value(completion: Completion, at: int) -> tuple[str, int] | None:
    """A text or another value without brackets as JSON, and the character after it."""
    is_spelled = completion.text.startswith(_QUOTE, at)
    if is_spelled and (not completion.is_control(_QUOTE) or completion.find_id(_QUOTE, at) == at):
        end = completion.find(_QUOTE, at + len(_QUOTE))
        if end < 0:
            return None
        return json.dumps(completion.decoded(at + len(_QUOTE), end)), end + len(_QUOTE)
    end = end_of(_BARE, completion.text, at)
    word = completion.decoded(at, end).strip()
    return ("null" if word == "None" else word), end
