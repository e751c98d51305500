"""`exported`: a view of the page as one HTML file that needs no other file, opened from disk with modes and cursor.

Scripts and styles of the page are put inline and named by their hashes in the file's content security policy, so
nothing in the data can run. The data are a block of JSON in which every `<` is written `\\u003c`: it cannot contain an
end tag.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
MODULES = ("dom", "token_table", "tokens", "summary", "panel", "exported")
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class )", re.MULTILINE)


def exported(title: str, view: Mapping[str, Any]) -> str:
    """A view of the page as one file.

    Args:
        view: what `exported.js` draws: the kind of view, its token tables, mode and drift.
    """
    script, style = bundled(), (STATIC / "style.css").read_text()
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


def bundled() -> str:
    """The modules of an exported view as one script, each after those that it imports.

    This works because they only import by name (`import { a } from "./b.js";`) and no two of them define the same name
    at their top level.
    """
    sources = [(STATIC / f"{name}.js").read_text() for name in MODULES]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", source)) for source in sources)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
