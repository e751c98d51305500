"""Random templates whose facts are known by construction, and the pieces of a rendering as runs of equal facts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from niels_gpt.renderers.template.renderer import TemplateRenderer

Messages = list[dict[str, Any]]
Run = tuple[str, int, bool, bool]  # text, message, whether the model emits it, whether it is content


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
