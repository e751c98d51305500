"""`niels-gpt doctor serving`: whether a running server sees what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from niels_gpt import ranges
from niels_gpt.cli.options import Json, RendererFlags, RowFormat, Tokenizer, grouped
from niels_gpt.cli.terminal import ShownProgress, out, print_json
from niels_gpt.options import Argument, Option
from niels_gpt.values import name_and_value, option_value

if TYPE_CHECKING:
    from niels_gpt.doctor.serving.check import ServingReport

DIFFERS = 1  # the exit code if a prompt differs, a stop does not stop, or the server refuses a row


@grouped
def doctor_serving(
    url: Annotated[str, Argument("The server: http://localhost:8000.")],
    tokenizer: Tokenizer,
    renderer: RendererFlags,
    chats: Annotated[
        str | None,
        Argument("Conversations whose prompts are compared as well.", "[CHATS]"),
    ] = None,
    rows: Annotated[int, Option("How many conversations of CHATS, from the first on.", limits=ranges.LIMIT)] = 100,
    chat_template_kwarg: Annotated[
        list[str] | None, Option("Sent with every request, as clients do; repeat for more.", "NAME=VALUE")
    ] = None,
    api_key: Annotated[str | None, Option("Sent as bearer token.")] = None,
    form: RowFormat = None,
    as_json: Json = False,
) -> None:
    """Compare a running server's tokens with what is trained.

    vLLM, SGLang, llama.cpp's server and TGI return ids; of any other OpenAI-compatible server, such as `transformers
    serve`, only the number of tokens is compared, which is weaker. Probe conversations are compared, CHATS up to their
    last answers, and a second turn after an answer that the server samples. Each stop of the renderer is tried. The
    first token that differs is shown with the text around it and the likely cause. Nothing is sent to another host.

    Exit codes: 0 equal, 1 a difference, 2 wrong usage, 3 the server does not answer, or not with a prompt.

    Example: niels-gpt doctor serving http://host:8000 --tokenizer ~/models/mine

    With rows: niels-gpt doctor serving URL chats.jsonl --tokenizer MODEL
    """
    import niels_gpt as ng

    given = [name_and_value("--chat-template-kwarg", text) for text in chat_template_kwarg or ()]
    chosen = renderer.options().open(tokenizer)
    with ShownProgress(quiet=as_json) as progress:
        report = ng.check_serving(
            url,
            chosen,
            chats,
            rows=rows,
            format=form,
            api_key=api_key,
            chat_template_kwargs={name: option_value(value) for name, value in given},
            progress=progress,
        )
    if as_json:
        print_json(report.to_json())
    else:
        for line in lines_of(report):
            out().print(line, soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(0 if report.passed else DIFFERS)


def lines_of(report: ServingReport) -> list[str]:
    """The report for people: the first case of each cause, and what became of all."""
    from niels_gpt.doctor.serving.causes import CAUSES

    found = [f"{report.server} at {report.url}, compared by {report.by}"]
    shown: set[str] = set()
    for result in report.results:
        difference = result.difference
        if difference is not None and difference.cause not in shown:
            shown.add(difference.cause)
            place = "after its end" if difference.kind == "end" else f"{difference.kind}, message {difference.message}"
            found += [
                "",
                f"{difference.cause}: {report.causes[difference.cause]} prompts. {CAUSES[difference.cause]}",
                f"  {result.name}, token {difference.at} ({place})",
                f"  trained  {difference.trained!r}",
                f"  served   {difference.served!r}",
            ]
        elif difference is None and result.status != "equal":
            found.append(f"{result.name}: {_status(result.status, result.trained, result.served)} {result.detail}")
        elif difference is None and result.detail:
            found.append(f"{result.name}: {result.detail}")
    for stop, stops in report.stops.items():
        if not stops:
            found.append(f"stop {stop}: {'not tried' if stops is None else 'the server goes on after it'}")
    statuses = [result.status for result in report.results]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    return [*found, "", f"{len(statuses)} prompts: {counts}"]


def _status(status: str, trained: int, served: int) -> str:
    return f"{trained} tokens are trained and {served} served" if status == "differs" else f"{status}:"
