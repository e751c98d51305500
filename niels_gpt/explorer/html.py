"""HTML files that need no other file: one example as running text, and a view of the page with its scripts.

`example_html` and `view_html` write an example: each token is a span whose class names its kind. The style
sheet covers light and dark screens; trained tokens are also underlined, so they can be seen without colours.

`exported` writes a view of the page, opened from disk with modes and cursor. Scripts and styles of the page are put
inline and named by their hashes in the file's content security policy, so nothing in the data can run. The data are a
block of JSON in which every `<` is written `\\u003c`: it cannot contain an end tag.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from niels_gpt.explorer.example import ExampleView
from niels_gpt.token_display import MEANINGS, Kind, printable

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --faint: #6b7686; --paper: #fbfbf9; --card: #ffffff; --line: #e2e4e8;
  --trained: #c9efd3; --trained-line: #1c9a4b; --sampled: #fdeeb5; --sampled-line: #c59a13; --scaffold: #8a4fbf;
  --accent: #2a62c9; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe4ec; --faint: #8b96a8; --paper: #12151b; --card: #191e26;
  --line: #2b323d; --trained: #174a2b; --trained-line: #46d37e; --sampled: #4a3d10; --sampled-line: #e3bd4a;
  --scaffold: #c39af0; --accent: #85adff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.5rem 6rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, sans-serif; }
p { max-width: 46rem; margin: .5rem 0; }
.example { font-family: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace; }
.title { color: var(--faint); font-size: .875rem; margin: .75rem 0; }
.legend { display: flex; flex-wrap: wrap; gap: .5rem 1.25rem; margin: .75rem 0; font-size: .875rem; }
.example { display: grid; grid-template-columns: max-content minmax(0, 1fr); border: 1px solid var(--line);
  border-radius: .6rem; background: var(--card); overflow: hidden; font-size: .8125rem; line-height: 1.75; }
.who, .what { padding: .4rem .9rem; border-top: 1px solid var(--line); }
.who:first-child, .who:first-child + .what { border-top: 0; }
.who { color: var(--faint); border-right: 1px solid var(--line); user-select: none; }
.what { white-space: pre-wrap; overflow-wrap: anywhere; }
.what span:hover { outline: 1px solid var(--accent); }
.trained { background: var(--trained); border-bottom: 2px solid var(--trained-line); }
.sampled { background: var(--sampled); border-bottom: 2px dotted var(--sampled-line); }
.scaffold { color: var(--scaffold); }
.padding { color: var(--faint); }
.what i { background: radial-gradient(circle at center, var(--faint) .06em, transparent .09em); }
.what b { color: var(--faint); font-weight: inherit; user-select: none; }
@media (max-width: 40rem) { .example { grid-template-columns: minmax(0, 1fr); }
  .who { border-right: 0; padding-bottom: 0; } .what { border-top: 0; padding-top: 0; } }
"""
_MARKS = {
    "\n": "<b>⏎</b>\n",
    "\t": "<b>⇥</b>\t",
    " ": "<i> </i>",
}  # the space itself, with a dot drawn by the style sheet


def example_html(view: ExampleView) -> str:
    """An example as a block: a row for each text of a packed row, or each message of a rendering."""
    rows = []
    for _, group in groupby(view.tokens, key=lambda token: token.segment):
        tokens = list(group)
        first = tokens[0]
        # Segments are counted from 1, messages from 0.
        who = f"{first.segment - 1} {first.role}" if first.role else str(first.segment or "")
        spans = []
        for token in tokens:
            shown = f"{token.id} "
            if view.has_text:
                # White space gets a mark; other control characters are written by their number.
                shown = "".join(_MARKS.get(character) or escape(printable(character)) for character in token.text)
            spans.append(f'<span class="{token.kind}" title="{token.position}: id {token.id}">{shown}</span>')
        rows.append(f'<div class="who">{escape(who)}</div><div class="what">{"".join(spans)}</div>')
    return '<div class="example">\n' + "\n".join(rows) + "\n</div>"


def legend_html(kinds: Iterable[Kind]) -> str:
    """The legend of these kinds of tokens."""
    found = set(kinds)
    entries = (f'<span class="{kind}">{escape(meaning)}</span>' for kind, meaning in MEANINGS.items() if kind in found)
    return f'<div class="legend">{"".join(entries)}</div>'


def view_html(view: ExampleView) -> str:
    """One example as a page that needs no other file."""
    legend = legend_html(token.kind for token in view.tokens)
    title = escape(view.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<p class="title">{title}</p>\n{legend}\n{example_html(view)}\n</body>\n</html>\n'
    )


STATIC = Path(__file__).parent / "static"
ENTRY = "exported"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class )", re.MULTILINE)


def exported(title: str, view: Mapping[str, Any]) -> str:
    """A view of the page as one file.

    Args:
        view: what `exported.js` draws: the kind of view, its token tables, mode and drift.
    """
    script, style = bundled(ENTRY), (STATIC / "style.css").read_text()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps({"title": title, **view}, ensure_ascii=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<main id="exported"></main>\n'
        f'<script type="application/json" id="data">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def bundled(entry: str) -> str:
    """A module and all that it imports as one script; each module once, after those that it imports.

    This works because the page's modules only import by name (`import { a } from "./b.js";`) and no two of them define
    the same name at their top level.
    """
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        source = (STATIC / f"{name}.js").read_text()
        # Marked before its imports are visited, so that a circle of imports ends.
        done[name] = ""
        for wanted in _IMPORT.findall(source):
            visit(wanted)
        # Put back at the end: a dict keeps the order of insertion, and a module must follow what it imports.
        del done[name]
        done[name] = _EXPORT.sub("", _IMPORT.sub("", source))

    visit(entry)
    return "\n".join(done.values())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
