"""What mkdocs.yml adds to mkdocs: pages from outside of docs/, links that leave docs/, and notebooks as pages.

Pages are written for readers of the repository, so they link to files such as ../examples/torch_loop.py. The site has
a page for each file of `PAGES`, and shows every other file that a page links to, below repository/.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY: Final = Path(__file__).parent.parent
START: Final = {"README.md": "index.md"}  # the site begins otherwise
PAGES: Final = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "changes/README.md": "changes.md",
    "examples/README.md": "examples.md",
}
# Code blocks, which stay as they are, or the target of a link into the repository.
_LINK = re.compile(r"^ *(`{3,})[^`\n]*$.*?^ *\1`* *$|(?<=\]\()(?!\w+:)(?P<target>[^)#\s]+)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside, the notebooks as pages, and the files that pages link to."""
    if Path(config.docs_dir) == REPOSITORY / "docs":  # not in the small sites of tests
        for path, uri in PAGES.items():
            files.append(File.generated(config, uri, abs_src_path=str(REPOSITORY / path)))
        files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = page_of(json.loads(Path(str(notebook.abs_src_path)).read_text(encoding="utf-8")))
        name = posixpath.basename(notebook.src_uri)
        text += f'\n<p><a href="../{name}" download>This page as a notebook</a></p>\n'
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=text))
    for page in files.documentation_pages():
        for target in filter(None, (match["target"] for match in _LINK.finditer(page.content_string))):
            path = _in_repository(target, page.src_uri)
            uri = _in_site(path)
            if files.get_file_from_path(uri) is None and uri.startswith("repository/"):
                file = REPOSITORY / path
                if not file.is_file():
                    raise PluginError(f"{page.src_uri}: link to {target}, which is not a file of the repository")
                shown = f"# {path}\n\n````{file.suffix[1:]}\n{file.read_text(encoding='utf-8')}\n````\n"
                files.append(File.generated(config, uri, content=shown))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the repository -> links of the site."""
    folder = posixpath.dirname(page.file.src_uri) or "."

    def linked(match: re.Match[str]) -> str:
        target = match["target"]
        return posixpath.relpath(_in_site(_in_repository(target, page.file.src_uri)), folder) if target else match[0]

    return _LINK.sub(linked, markdown)


def _in_repository(target: str, uri: str) -> str:
    """The path in the repository that a link of a page names."""
    outside = {uri: path for path, uri in PAGES.items()}
    return posixpath.normpath(posixpath.join(posixpath.dirname(outside.get(uri, f"docs/{uri}")), target))


def _in_site(path: str) -> str:
    """Where the site has a file of the repository."""
    if uri := (PAGES | START).get(path):
        return uri
    inside = path.replace(".ipynb", ".md").removeprefix("docs/")
    return inside if path.startswith("docs/") else f"repository/{path}.md"


def commands_page() -> str:
    """All commands with their options, from the texts of `--help`."""
    from niels_gpt.cli.main import app

    parts = ["# Commands\n\nWhat `--help` says, of every command. Exit codes: [doctor](../doctor.md)."]
    parts += [
        _command_section(path, command) for path, command in commands_below(("niels-gpt",), typer.main.get_command(app))
    ]
    return "\n\n".join(parts) + "\n"


def commands_below(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands below a group, in the order of its help."""
    if not hasattr(command, "resolve_command"):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        _, inner, _ = command.resolve_command(context, name.split())
        yield from commands_below((*path, name), inner)


def _command_section(path: tuple[str, ...], command: Any) -> str:
    """A command's texts, and a table of its arguments and options."""
    rows = []
    for item in command.params:
        if getattr(item, "hidden", False):
            continue
        names = [item.name.upper()] if item.param_type_name == "argument" else [*item.opts, *item.secondary_opts]
        text = " ".join(_parts(getattr(item, "help", "") or ""))
        # Texts name the defaults that are no values, such as "by the keys of the rows".
        if isinstance(item.default, str | int | float) and item.default is not False and "[default:" not in text:
            text += f" [default: {item.default}]"
        rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {text} |")
    parts = [f"## {' '.join(path)}", *_parts(command.help or ""), "\n".join(["| | |", "|---|---|", *rows])]
    return "\n\n".join(re.sub(r"^(.*?): (niels-gpt .*)$", r"\1:\n\n```sh\n\2\n```", part) for part in parts)


def _parts(text: str) -> list[str]:
    """The paragraphs of a text of `--help`, without the marks of its libraries, as markdown."""
    plain = re.sub(r"([|*<])", r"\\\1", text.replace("\\[", "[").replace("\b", ""))
    return [" ".join(part.split()) for part in plain.split("\n\n")]


def page_of(notebook: dict[str, Any]) -> str:
    """A notebook as markdown: its texts, its code, and what the code gave."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(f'<div class="output">{"".join(data["text/html"])}</div>')
            else:
                # Four backticks, because what is shown may have a block with three.
                parts.append(f"````text\n{''.join(data.get('text/plain', output.get('text', ''))).rstrip()}\n````")
    return "\n\n".join(parts) + "\n"
