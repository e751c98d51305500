"""Writes a `published.Format` down as a Jinja template, in one of the many manners in which people write them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.renderers.published import TODAY, Format

TEXT_MACRO = (
    "{% macro text(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{% if p.type == 'text' %}{{ p.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endmacro %}"
)


@dataclass(frozen=True)
class Names:
    """Expressions that are valid within a loop: the message, its number, the roles before and after it."""

    message: str
    index: str
    first: str
    last: str
    before: str
    after: str


def source_of(form: Format, rng: random.Random) -> str:
    """The template."""
    return _Writer(form, rng).source()


class _Writer:
    def __init__(self, form: Format, rng: random.Random) -> None:
        self.form, self.rng = form, rng
        self.messages = "messages"  # what the loop goes over
        self.name = rng.choice(["m", "message", "msg"])

    def source(self) -> str:
        form = self.form
        start = (TEXT_MACRO if form.parts else "") + self.literal(form.bos, variable="bos_token" if form.bos else "")
        head = self.head()
        if self.rng.random() < 0.2:
            head += self.rebuilt()
        questions = self.questions()
        body = self.loop()
        end = ""
        if form.stop == "next and end":
            end = f"{{% if {self.messages} %}}{self.literal(form.markup.ends['user'])}{{% endif %}}"
        source = start + head + questions + body + end + (self.prompt() if form.prompt != "loop" else "")
        return self.spread(source)

    # ---- pieces

    def literal(self, text: str, variable: str = "") -> str:
        """A text of the template's own: as it is, as a constant, or a variable that holds it."""
        if not text:
            return ""
        if variable == "bos_token" and text == "<s>" and self.rng.random() < 0.7:
            return "{{ bos_token }}"
        if text == text.strip() and "\n" not in text and self.rng.random() < 0.4:
            return text
        return "{{ " + self.constant(text) + " }}"

    def constant(self, text: str) -> str:
        mark = "'" if '"' in text or self.rng.random() < 0.6 else '"'
        assert mark not in text
        return mark + text.replace("\n", "\\n") + mark

    def content(self, message: str) -> str:
        """An expression for a message's content."""
        found = self.rng.choice([f"{message}.content", f"{message}['content']"])
        if self.form.parts:
            found = f"text({found})"
        if self.form.trim:
            found += self.rng.choice([" | trim", ".strip()", "|trim"])
        return found

    def written(self, *parts: str) -> str:
        """Outputs one after another, or one expression of all of them; a part that is a text begins with a quote."""
        kept = [part for part in parts if part]
        if self.rng.random() < 0.5:
            joint = self.rng.choice([" + ", " ~ "])
            return "{{ " + joint.join(f"({part})" if "|" in part else part for part in kept) + " }}"
        return "".join("{{ " + part + " }}" for part in kept)

    def spread(self, source: str) -> str:
        """The source over many lines, where white space is removed around statements."""
        if self.rng.random() < 0.5:
            return source
        for mark in "%{":
            close = {"%": " %}", "{": " }}"}[mark]
            source = source.replace("{" + mark + " ", "{" + mark + "- ").replace(close, f" -{close[1:]}\n")
        return source

    # ---- before the loop

    def head(self) -> str:
        form, markup = self.form, self.form.markup
        if not form.is_sliced:
            return ""
        has = self.rng.choice(["messages[0].role == 'system'", "messages and messages[0]['role'] == 'system'"])
        default = self.constant(form.default)
        if TODAY in form.default:
            default = "'Today is ' + strftime_now('%d %b %Y') + '.'"
        kept = self.rng.choice(["ms", "loop_messages"])
        self.messages = kept
        found = f"{{% if {has} %}}{{% set system = {self.content('messages[0]')} %}}"
        found += f"{{% set {kept} = messages[1:] %}}{{% else %}}{{% set system = {default} %}}"
        found += f"{{% set {kept} = messages %}}{{% endif %}}"
        if form.system == "bare":
            return found + "{% if system %}{{ system + '\\n\\n' }}{% endif %}"
        if form.system == "merged":
            return found
        tools = ""
        wanted = f"{has} or system"
        if form.tools == "system":
            wanted += " or tools"
            gap = "{% if system %}{{ '\\n\\n' }}{% endif %}"
            listed = "{% for t in tools %}{{ (t | tojson) + '\\n' }}{% endfor %}"
            tools = f"{{% if tools %}}{gap}{{{{ '# Tools\\n' }}}}{listed}{{% endif %}}"
        opening, end = self.literal(markup.opens["system"]), self.literal(markup.ends["system"])
        return found + f"{{% if {wanted} %}}{opening}{{{{ system }}}}{tools}{end}{{% endif %}}"

    def rebuilt(self) -> str:
        """The messages rebuilt, as templates do that join or clean them."""
        other = self.rng.choice(
            [
                "dict(x, more=1)",
                "{'role': x.role, 'content': x.content, 'tool_calls': x.tool_calls, "
                "'reasoning_content': x.reasoning_content}",
            ]
        )
        was, self.messages = self.messages, "kept.messages"
        return (
            f"{{% set kept = namespace(messages=[]) %}}{{% for x in {was} %}}"
            f"{{% set kept.messages = kept.messages + [{other}] %}}{{% endfor %}}"
        )

    def questions(self) -> str:
        """Where the last question is."""
        if self.form.thought not in ("last", "empty", "split") and self.form.tools != "question":
            return ""
        if self.rng.random() < 0.5:
            return (
                f"{{% set asked = namespace(last=-1) %}}{{% for x in {self.messages} %}}"
                "{% if x.role == 'user' %}{% set asked.last = loop.index0 %}{% endif %}{% endfor %}"
            )
        return (
            f"{{% set asked = namespace(last=-1, open=true) %}}{{% for x in {self.messages}[::-1] %}}"
            "{% if asked.open and x.role == 'user' %}{% set asked.open = false %}"
            f"{{% set asked.last = ({self.messages} | length) - 1 - loop.index0 %}}{{% endif %}}{{% endfor %}}"
        )

    # ---- the loop

    def loop(self) -> str:
        m, ms, rng = self.name, self.messages, self.rng
        plain = self.rng.choice(
            [
                Names(
                    m,
                    "loop.index0",
                    "loop.first",
                    "loop.last",
                    f"({ms}[loop.index0 - 1].role if not loop.first else '')",
                    f"({ms}[loop.index0 + 1].role if not loop.last else '')",
                ),
                Names(
                    m,
                    "loop.index0",
                    "loop.index0 == 0",
                    f"loop.index == {ms} | length",
                    "(loop.previtem.role if loop.previtem is defined else '')",
                    "(loop.nextitem.role if loop.nextitem is defined else '')",
                ),
            ]
        )
        counted = Names(
            m,
            "i",
            "i == 0",
            f"i == {ms} | length - 1",
            f"({ms}[i - 1].role if i > 0 else '')",
            f"({ms}[i + 1].role if i < {ms} | length - 1 else '')",
        )
        over, indices = f"{{% for {m} in {ms} %}}", f"{{% for i in range({ms} | length) %}}{{% set {m} = {ms}[i] %}}"
        end = "{% endfor %}"
        manner = rng.choice(["plain"] * 3 + ["indices"] * 2 + ["macro", "whole macro", "kept", "joined", "listed"])
        if manner == "plain":
            return over + self.turn(plain) + end
        if manner == "indices":
            return indices + self.turn(counted) + end
        if manner == "macro":
            macro = f"{{% macro turn({m}, i) %}}{self.turn(counted)}{{% endmacro %}}"
            return f"{macro}{over}{{{{ turn({m}, loop.index0) }}}}{end}"
        if manner == "whole macro":
            given = ms.partition(".")[0]
            return f"{{% macro all({given}) %}}{over}{self.turn(plain)}{end}{{% endmacro %}}{{{{ all({given}) }}}}"
        if manner == "kept":
            return f"{{% set whole %}}{over}{self.turn(plain)}{end}{{% endset %}}{{{{ whole }}}}"
        if manner == "joined":
            one = f"{{% set one %}}{self.turn(plain)}{{% endset %}}{{% set page.text = page.text + one %}}"
            return f"{{% set page = namespace(text='') %}}{over}{one}{end}{{{{ page.text }}}}"
        one = f"{{% set one %}}{self.turn(plain)}{{% endset %}}{{% set page.all = page.all + [one] %}}"
        return f"{{% set page = namespace(all=[]) %}}{over}{one}{end}{{{{ page.all | join }}}}"

    def turn(self, at: Names) -> str:
        form, markup, m = self.form, self.form.markup, at.message
        role = self.rng.choice([f"{m}.role", f"{m}['role']"])
        found = ""
        if form.stop.startswith("next"):
            found += f"{{% if not ({at.first}) %}}{self.literal(markup.ends['user'])}{{% endif %}}"
        branches = {
            f"{role} == 'user'": self.question(at),
            f"{role} == 'assistant'": self.answer(at),
            f"{role} == 'tool'": self.result(at),
        }
        names = list(branches)
        self.rng.shuffle(names)
        for number, test in enumerate(names):
            found += f"{{% {'elif' if number else 'if'} {test} %}}{branches[test]}"
        other = self.simple(at, "system")
        found += f"{{% else %}}{other}{{% endif %}}"
        return found + (self.prompt(at) if form.prompt == "loop" else "")

    def end(self, at: Names, role: str) -> str:
        """The end of a turn, where the turn writes it."""
        end = self.literal(self.form.markup.ends[role])
        if self.form.stop == "unless last":
            return f"{{% if not ({at.last}) or add_generation_prompt %}}{end}{{% endif %}}"
        return end if self.form.stop == "turn" else ""

    def simple(self, at: Names, role: str) -> str:
        markup, content = self.form.markup, self.content(at.message)
        opening = markup.opens[role]
        named = opening.partition(role)
        if named[1] and named[0] and self.rng.random() < 0.5:  # the role in its place
            rest = self.constant(named[2]) if named[2] else ""
            start = self.written(self.constant(named[0]), f"{at.message}.role", rest, content)
        else:
            start = self.written(self.constant(opening) if opening else "", content)
        return start + self.end(at, role)

    def question(self, at: Names) -> str:
        form, markup = self.form, self.form.markup
        tools = ""
        if form.tools == "question":
            listed = "{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}"
            if self.rng.random() < 0.5:
                one = "{{ t | tojson }}{% if not loop.last %}{{ ', ' }}{% endif %}"
                all_of_them = f"{{% for t in tools %}}{one}{{% endfor %}}"
                listed = f"[AVAILABLE_TOOLS]{{{{ '[' }}}}{all_of_them}{{{{ ']' }}}}[/AVAILABLE_TOOLS]"
            tools = f"{{% if tools and {at.index} == asked.last %}}{listed}{{% endif %}}"
        if form.system != "merged":
            return tools + self.simple(at, "user")
        before, after = map(self.constant, markup.merged)
        parts = f"{before} + system + {after}" if markup.merged[0] else f"system + {after}"
        content = self.content(at.message)
        if self.rng.random() < 0.5:
            merged = f"{{% if {at.first} and system %}}{{{{ {parts} }}}}{{% endif %}}{{{{ {content} }}}}"
        else:
            both = f"{{% set both = {parts} + ({content}) %}}"
            alone = f"{{% else %}}{{% set both = {content} %}}{{% endif %}}{{{{ both }}}}"
            merged = f"{{% if {at.first} and system %}}{both}{alone}"
        return tools + self.literal(markup.opens["user"]) + merged + self.end(at, "user")

    # ---- answers and results

    def answer(self, at: Names) -> str:
        form, m = self.form, at.message
        content = self.content(m)
        if not form.thought and not form.calls and self.rng.random() < 0.5:
            return self.simple(at, "assistant")
        found = self.literal(form.markup.opens["assistant"])
        recent = f"{at.index} > asked.last"
        thought = f"({m}.reasoning_content or '')"
        block = "{{ '<think>\\n' + THOUGHT + '\\n</think>\\n\\n' }}"
        if form.thought in ("always", "last"):
            test = f"{m}.reasoning_content" + (f" and {recent}" if form.thought == "last" else "")
            found += f"{{% if {test} %}}{block.replace('THOUGHT', f'{m}.reasoning_content')}{{% endif %}}"
        elif form.thought == "empty":
            found += f"{{% if {recent} %}}{block.replace('THOUGHT', thought)}{{% endif %}}"
        elif form.thought in ("split", "cut"):
            split = "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
            rest = "{% set said = said.split('</think>')[-1].lstrip('\\n') %}"
            found += f"{{% set said = {content} %}}{{% set thought = '' %}}"
            found += f"{{% if '</think>' in said %}}{split}{rest}{{% endif %}}"
            if form.thought == "split":
                found += f"{{% if {recent} and thought %}}{block.replace('THOUGHT', 'thought')}{{% endif %}}"
            content = "said"
        return found + f"{{{{ {content} }}}}" + self.calls(m) + self.end(at, "assistant")

    def calls(self, message: str) -> str:
        form = self.form
        if not form.calls:
            return ""
        name, given = self.rng.choice([("c.function.name", "c.function.arguments"), ("f.name", "f.arguments")])
        own = "{% set f = c.function %}" if name == "f.name" else ""
        text = f"({given} if {given} is string else {given} | tojson)"
        if form.calls == "hermes":
            start = '\'\\n<tool_call>\\n{"name": "\''
            one = f"{{{{ {start} + {name} + '\", \"arguments\": ' + {text} + '}}\\n</tool_call>' }}}}"
        elif form.calls == "object":
            one = f"{{{{ '{{\"name\": \"' ~ {name} ~ '\", \"parameters\": ' ~ {text} ~ '}}' }}}}"
        elif form.calls == "brackets":
            first = "{% if loop.first %}[TOOL_CALLS]{{ '[' }}{% else %}{{ ', ' }}{% endif %}"
            last = "{% if loop.last %}{{ ']' }}{% endif %}"
            one = first + f"{{{{ {{'name': {name}, 'arguments': {given}}} | tojson }}}}" + last
        else:
            value = "{{ v if v is string else v | tojson }}"
            pair = f"{{{{ '<parameter=' ~ k ~ '>\\n' }}}}{value}{{{{ '\\n</parameter>\\n' }}}}"
            pairs = f"{{% if {given} is mapping %}}{{% for k, v in {given}.items() %}}{pair}{{% endfor %}}{{% endif %}}"
            one = f"{{{{ '\\n<function=' + {name} + '>\\n' }}}}{pairs}</function>"
        test = f"{{% if {message}.tool_calls %}}"
        return f"{test}{{% for c in {message}.tool_calls %}}{own}{one}{{% endfor %}}{{% endif %}}"

    def result(self, at: Names) -> str:
        form, markup, content = self.form, self.form.markup, self.content(at.message)
        if form.results == "json":
            value = self.rng.choice([f"{{'output': {content}}} | tojson", f"{{'output': ({content})}}|tojson"])
            if self.rng.random() < 0.3:
                value = f"'{{\"output\": ' + (({content}) | string | tojson) + '}}'"
            return f"{self.literal(markup.opens['tool'])}{{{{ {value} }}}}{self.end(at, 'tool')}"
        if form.results == "turn":
            return self.simple(at, "tool") if markup.opens["tool"] else f"{{{{ {content} }}}}{self.end(at, 'tool')}"
        opening = self.literal(markup.opens["user"].rstrip())
        start = f"{{% if {at.first} or {at.before} != 'tool' %}}{opening}{{% endif %}}"
        body = self.written("'\\n<tool_response>\\n'", content, "'\\n</tool_response>'")
        end = self.literal(markup.ends["user"])
        return start + body + f"{{% if {at.last} or {at.after} != 'tool' %}}{end}{{% endif %}}"

    # ---- the prompt

    def prompt(self, at: Names | None = None) -> str:
        form, markup = self.form, self.form.markup
        test = f"{at.last} and add_generation_prompt" if at else "add_generation_prompt"
        if form.prompt == "asked":
            test += " and messages and messages[-1].role != 'assistant'"
        late = ""
        if form.stop == "next":
            late = f"{{% if {self.messages} %}}{self.literal(markup.ends['user'])}{{% endif %}}"
        shown = self.literal(markup.prompt + form.prefill)
        return f"{{% if {test} %}}{late}{shown}{{% endif %}}"
