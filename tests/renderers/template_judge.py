"""An independent judge of template renderings, and random templates whose facts are known by construction.

The judge shares no code with the package: it puts its own letters (private use) in the place of contents, runs
transformers' Jinja environment, and compares what it sees with the pieces of a rendering.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from niels_gpt.renderers.template.renderer import TemplateRenderer

Messages = list[dict[str, Any]]
Run = tuple[str, int, bool, bool]  # text, message, whether the model emits it, whether it is content
FIRST = 0xF0000  # the private-use letters of message i are FIRST + 256 * i + ...


def runs(renderer: TemplateRenderer, messages: Any, **options: Any) -> list[Run]:
    """The pieces of a rendering, neighbours with equal facts joined."""
    pieces = renderer.pieces(messages, **options)
    return joined([(piece.text, piece.msg, piece.sampled, piece.content) for piece in pieces])


def joined(pieces: list[Run]) -> list[Run]:
    """Neighbours with equal facts as one."""
    found: list[Run] = []
    for piece in pieces:
        if found and found[-1][1:] == piece[1:]:
            found[-1] = (found[-1][0] + piece[0], *piece[1:])
        elif piece[0]:
            found.append(piece)
    return found


@cache
def plain_template(source: str) -> jinja2.Template:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template: jinja2.Template = _compile_jinja_template(source)
    template.globals["strftime_now"] = lambda form: "2026-01-01"
    return template


def as_given(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates get it: without keys that hold `None`, reasoning under both names in use."""
    given = {key: value for key, value in message.items() if value is not None}
    if "reasoning_content" in given:
        given = {"thinking": given["reasoning_content"], **given}
    return given


def plainly(renderer: TemplateRenderer, messages: Messages, tools: Any, gen: bool) -> str | None:
    """The text of transformers' environment; `None` where the template refuses or fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain_template(renderer.source).render(
                messages=[as_given(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=gen,
                **renderer._variables,
            )
    except Exception:  # whatever a template fails with
        return None


def lettered(messages: Messages, keep: tuple[str, ...] = ()) -> Messages:
    """The messages with private letters in contents and reasoning."""

    def replaced(text: str, index: int) -> str:
        if any(word in text for word in keep):
            return text
        return "".join(chr(FIRST + 256 * index + n % 256) if c.isalpha() else c for n, c in enumerate(text))

    return [
        {
            key: replaced(value, index) if key in ("content", "reasoning_content") and isinstance(value, str) else value
            for key, value in message.items()
        }
        for index, message in enumerate(messages)
    ]


def owner_of(character: str) -> int:
    return (ord(character) - FIRST) // 256 if ord(character) >= FIRST else -1


def faults(renderer: TemplateRenderer, messages: Messages, tools: Any, eos: str) -> Iterator[str]:
    """What is wrong with a rendering that claims full attribution; nothing if it says "partial"."""
    pieces = renderer.emit(messages, tools=tools).pieces()
    attribution = renderer.emit(messages, tools=tools).attribution
    text = "".join(piece.text for piece in pieces)
    facts = [piece for piece in pieces for _ in piece.text]
    expected = plainly(renderer, messages, tools, False)
    if text != expected:
        yield f"the text differs: {text[-60:]!r}, transformers {(expected or '')[-60:]!r}"
        return
    seen = plainly(renderer, lettered(messages), tools, False)
    if seen is None or len(seen) != len(text):
        return  # this judge cannot tell
    owners = [owner_of(character) for character in seen]
    roles = [message["role"] for message in messages]
    for at, fact in enumerate(facts):
        if fact.sampled and owners[at] not in (-1, fact.msg):
            yield f"message {fact.msg} is sampled over data of message {owners[at]}"  # partial or not
    if attribution != "full":
        return
    for at, (owner, fact) in enumerate(zip(owners, facts, strict=True)):
        if owner >= 0 and roles[owner] != "assistant" and not (fact.msg == owner and fact.content):
            yield f"{text[at : at + 9]!r} is content of {owner}; found {fact}"
        # The header of a turn names its role; without a name (Mistral, Llama 2) nobody can say whose a gap is.
        header = len(text[:at].rstrip()) - 1
        gap = text[max((n + 1 for n in range(at) if owners[n] >= 0), default=0) : at]
        named = roles[owner] in gap.lower() if owner >= 0 else False
        shared = (owner, -1, owner + 1 if roles[owner] == "system" else owner)  # a system text in the first user's turn
        if named and not facts[header].content and facts[header].msg not in shared:
            earlier = plainly(renderer, messages[:owner], tools, False)
            if earlier is not None and text.startswith(earlier) and header < len(earlier):
                continue  # the turn before ends with it (DeepSeek R1 as vLLM writes it)
            yield f"the header before {text[at : at + 9]!r} is of {owner}; found {facts[header].msg}"
    yield from _wrong_spans(renderer, messages, tools, eos, text, owners, facts)


def _wrong_spans(
    renderer: TemplateRenderer, messages: Messages, tools: Any, eos: str, text: str, owners: list[int], facts: list[Any]
) -> Iterator[str]:
    for index, message in enumerate(messages):
        sampled = [at for at, fact in enumerate(facts) if fact.sampled and fact.msg == index]
        if message["role"] != "assistant":
            if sampled:
                yield f"message {index} is {message['role']} and sampled"
            continue
        served = plainly(renderer, messages[:index], tools, True)
        before = served is not None and text.startswith(served)
        # An answer that comes first, where a loop over no messages writes no prompt: no server starts a turn there, and
        # its header is not the model's.
        before &= index > 0 or served != plainly(renderer, [], tools, False)
        if not sampled:
            if before and index in owners[len(served or "") :]:
                yield f"nothing of message {index} is sampled"
            continue
        start, stop = sampled[0], sampled[-1] + 1
        if len(sampled) != stop - start:
            yield f"the sampled span of message {index} has holes"
        if before and start != len(served or ""):
            yield f"message {index} is sampled from character {start}; serving ends at {len(served or '')}"
        if not text[start:stop].endswith(eos) and text[stop:].lstrip().startswith(eos) and index in owners[start:stop]:
            yield f"the stop of message {index} is not sampled"


# ---- random templates


@dataclass(frozen=True)
class Known:
    """A template, and for each message the text of its turn in three parts: header, sampled or content, rest."""

    source: str
    think: bool  # assistants write their reasoning between tags
    prompt: str
    bos: str
    stop: str
    after: str
    written: str = "always"  # where the template writes the stop, one of WRITTEN

    def expected(self, messages: Messages, final_stop: str = "") -> list[tuple[str, int, bool, bool]]:
        """`(text, message, sampled, content)` of each run of characters; `final_stop` ends answers without a stop."""
        runs = [(self.bos, -1, False, False)] if self.bos else []
        for index, message in enumerate(messages):
            header = f"<|im_start|>{message['role']}\n"
            stop, after = self._end(is_last=index + 1 == len(messages))
            if message["role"] != "assistant":
                runs += [(header, index, False, False), (message["content"], index, False, True)]
                runs.append((stop + after, index, False, False))
                continue
            thought = f"<think>\n{message.get('reasoning_content', '')}\n</think>\n" if self.think else ""
            whole = header + thought + message["content"] + (stop or final_stop)
            runs += [(self.prompt, index, False, False), (whole[len(self.prompt) :], index, True, True)]
            runs.append((after, index, False, False))
        return [run for run in runs if run[0]]

    def _end(self, *, is_last: bool) -> tuple[str, str]:
        """The stop and the text after it that the template writes after a turn."""
        if self.written == "newline":
            return "", self.after
        is_here = {"always": True, "between": not is_last, "once": is_last, "never": False}[self.written]
        return (self.stop, self.after) if is_here else ("", "")


# Where random templates write the stop: after every turn; after every turn but the last; once, after the last; nowhere;
# nowhere, with a newline in its place.
WRITTEN = ("always", "between", "once", "never", "newline")


CONTENTS = (
    "m.content",
    "m['content']",
    "m.content | trim",
    "m.content ~ ''",
    "'%s' % m.content",
    "'{}'.format(m.content)",
    "{'c': m.content}['c']",
    "[m.content] | join",
    "(m.content.split(' ') | join(' '))",
    "m.content | string",
    "(m.content | list | join)",
    "[m.content] | first",
    "(m | tojson | length and m.content)",
    "namespace(c=m.content).c",
    "m.content | replace('\\x00', '')",
    "(m.content, 1)[0]",
    "m.content.removesuffix('\\x00')",
    "(m.items() | list | selectattr('0', 'equalto', 'content') | first)[1]",
)
LOOPS = (
    "{% for m in messages %}TURN{% endfor %}",
    "{% for i in range(messages | length) %}{% set m = messages[i] %}TURN{% endfor %}",
    "{% macro one(m) %}TURN{% endmacro %}{% for x in messages %}{{ one(x) }}{% endfor %}",
    "{% macro all(ms) %}{% for m in ms %}TURN{% endfor %}{% endmacro %}{{ all(messages) }}",
    "{% set ns = namespace(ms=[]) %}{% for m in messages %}{% set ns.ms = ns.ms + [dict(m, extra=1)] %}{% endfor %}"
    "{% for m in ns.ms %}TURN{% endfor %}",
    "{% set ns = namespace(o='') %}{% for m in messages %}{% set t %}TURN{% endset %}{% set ns.o = ns.o + t %}"
    "{% endfor %}{{ ns.o }}",
    "{% set ns = namespace(o=[]) %}{% for m in messages %}{% set t %}TURN{% endset %}{% set ns.o = ns.o + [t] %}"
    "{% endfor %}{{ ns.o | join }}",
    "{% for ms in messages | batch(1) %}{% for m in ms %}TURN{% endfor %}{% endfor %}",
    "{% for m in messages | reverse | list | reverse %}TURN{% endfor %}",
    "{% macro go(i) %}{% if i < messages | length %}{% set m = messages[i] %}TURN{{ go(i + 1) }}{% endif %}"
    "{% endmacro %}{{ go(0) }}",
    "{% for m in messages recursive %}TURN{% endfor %}",
    "{% set keep %}{% for m in messages %}TURN{% endfor %}{% endset %}{{ keep }}",
)


def random_template(rng: random.Random, written: str = "always") -> Known:
    """A template of a random nesting of loops, macros, namespaces and filters, whose output and facts are known.

    Args:
        written: where it writes stops, one of WRITTEN.
    """
    think = rng.random() < 0.4
    bos = rng.choice(["", "<s>"])
    after = rng.choice(["", "\n"])
    body = "{{ " + rng.choice(CONTENTS) + " }}"
    thought = "{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n' }}"
    said = f"{{% if m.role == 'assistant' %}}{thought}{{% endif %}}{body}" if think else body
    header = rng.choice(
        [
            "{{ '<|im_start|>' + m.role + '\\n' }}",
            "<|im_start|>{{ m.role }}{{ '\\n' }}",
            "{{ '<|im_start|>%s\\n' % m.role }}",
        ]
    )
    newline = "{{ '\\n' }}" if after else ""
    end = rng.choice(["<|im_end|>", "{{ '<|im_end|>' }}"]) + newline
    loop = rng.choice(LOOPS)
    if written in ("never", "newline"):
        turn = header + said + ("{{ '\\n' }}" if written == "newline" else "")
        after = "\n" if written == "newline" else ""
    elif written == "between":  # the next turn writes it
        turn = header + said
        loop = "{% for m in messages %}{% if not loop.first %}" + end + "{% endif %}TURN{% endfor %}"
    elif written == "once":
        turn = header + said
        loop += "{% if not add_generation_prompt %}" + end + "{% endif %}"
    elif rng.random() < 0.2:  # the next turn writes the stop, and the end the last one
        turn = header + said
        loop = "{% for m in messages %}{% if not loop.first %}" + end + "{% endif %}TURN{% endfor %}" + end
    else:
        turn = header + said + end
    prefill = "<think>\\n" if think and rng.random() < 0.5 else ""
    prompt = f"{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n{prefill}' }}}}{{% endif %}}"
    source = ("{{ bos_token }}" if bos else "") + loop.replace("TURN", turn) + prompt
    shown = "<|im_start|>assistant\n" + ("<think>\n" if prefill else "")
    return Known(source, think, shown, bos, "<|im_end|>", after, written)
