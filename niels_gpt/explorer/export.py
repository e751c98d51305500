"""A view as one HTML file that needs nothing else: opened from disk, it shows what the page showed.

Scripts and styles are the page's own, put inline and named by their hashes in the file's own policy, so that nothing in
the data can run. Data stand in a block of JSON in which every `<` is written `\\u003c`: it can hold no end tag.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
ENTRY = "exported"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class )", re.MULTILINE)


def exported(title: str, view: Mapping[str, Any]) -> str:
    """The file.

    Args:
        view: what `exported.js` draws: its kind and the strips.
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
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<main id="exported"></main>\n'
        f'<script type="application/json" id="data">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def bundled(entry: str) -> str:
    """A module and all that it imports as one script: each once, what is imported first.

    The page's modules import by name alone (`import { a } from "./b.js";`) and share one space of names.
    """
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        source = (STATIC / f"{name}.js").read_text()
        done[name] = ""
        for wanted in _IMPORT.findall(source):
            visit(wanted)
        del done[name]
        done[name] = _EXPORT.sub("", _IMPORT.sub("", source))

    visit(entry)
    return "\n".join(done.values())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
