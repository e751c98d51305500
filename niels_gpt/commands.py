"""The commands that no folder has: demo, show, render, explore, and `niels-gpt tokenizer ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from niels_gpt import ranges
from niels_gpt.cache.formats import SEED
from niels_gpt.renderers.options import Date, Isolate, LossPreset, RendererName, Rendering, Template, ToolBodies
from niels_gpt.terminal import ShownProgress, out, print_json

tokenizer_app = typer.Typer(help="Train a tokenizer.", no_args_is_help=True)


def demo(
    directory: Annotated[Path, typer.Option("--out", help="Where to build; an earlier demo there is replaced.")] = Path(
        "niels-gpt-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of all random choices.", **ranges.SEED.option())] = SEED,
) -> None:
    """The main job on bundled samples: tokenizer, caches, batches, one example in colour, counts.

    Example: niels-gpt demo --out /tmp/demo
    """
    from niels_gpt.demo import run_demo  # here, because it needs torch

    with ShownProgress() as progress:
        run_demo(directory, seed=seed, console=out(), progress=progress)


def show(
    cache: Annotated[
        Path,
        typer.Argument(help="A cache or episodes: the directory that holds meta.json, or train/.", show_default=False),
    ],
    number: Annotated[
        int, typer.Argument(help="Which example, or which run of T tokens of a stream.", **ranges.ROW.option("NUMBER"))
    ] = 0,
    split: Annotated[Literal["train", "val"], typer.Option(help="Which split.")] = "train",
    length: Annotated[
        int | None,
        typer.Option(
            "--T", help="Tokens in x.  \\[default: the whole example, or 64 of a stream]", **ranges.LENGTH.option("--T")
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The cache's tokenizer.  \\[default: found beside the cache]")
    ] = None,
    table: Annotated[bool, typer.Option(help="Ids and targets, token by token.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tokens as JSON.")] = False,
) -> None:
    """One example as a training step sees it: trained, context, scaffold and padding in colour.

    Example: niels-gpt show cache/sft/chats 17 --T 128
    """
    from niels_gpt.explorer.show import print_view, show_view
    from niels_gpt.explorer.tokens import view_example

    view = view_example(cache, number, split=split, T=length, tokenizer=tokenizer)
    if as_json:
        print_view(view)
    else:
        show_view(out(), view, with_table=table)


def render(
    file: Annotated[Path, typer.Argument(help="Conversations: .jsonl, .json or .parquet; .gz and .zst too.")],
    tokenizer: Annotated[Path, typer.Option(help="A Hugging Face tokenizer directory or hub name, or a spm.model.")],
    number: Annotated[int, typer.Argument(help="Which conversation.", **ranges.ROW.option("NUMBER"))] = 0,
    renderer: RendererName = None,
    template: Template = None,
    date: Date = None,
    isolate: Isolate = False,
    loss_on: LossPreset = None,
    tool_bodies: ToolBodies = None,
    table: Annotated[bool, typer.Option(help="Ids and targets, token by token.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tokens as JSON.")] = False,
) -> None:
    """A conversation in a model's own format: trained, sampled, body and scaffold in colour.

    Example: niels-gpt render chats.jsonl 17 --tokenizer ~/models/Qwen3-8B --renderer qwen3
    """
    from niels_gpt.explorer.rendered import view_rendered
    from niels_gpt.explorer.show import print_view, show_view
    from niels_gpt.sources.chat_file import nth_conversation

    rendering = Rendering(renderer, template, date, loss_on, tuple(tool_bodies or ()), isolate)
    view = view_rendered(rendering.renderer(tokenizer), nth_conversation(file, number), rendering.loss_on)
    if as_json:
        print_view(view)
    else:
        show_view(out(), view, with_table=table)


def explore(
    path: Annotated[
        Path | None,
        typer.Argument(help="A chat file, a cache or episodes.  \\[default: the zoo alone]", show_default=False),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(help="A tokenizer directory or hub name, or a directory of such directories; repeat for more."),
    ] = None,
    renderer: RendererName = None,
    template: Template = None,
    date: Date = None,
    findings: Annotated[Path | None, typer.Option(help="A report of the doctor (--json).")] = None,
    port: Annotated[int, typer.Option(help="0 takes any that is free.", **ranges.PORT.option())] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """A local web page: all families side by side, masks token by token, datasets row by row, templates compared.

    Example: niels-gpt explore chats.jsonl --tokenizer ~/models/Qwen3-8B
    """
    from niels_gpt.explorer.command import explore as serve

    serve(
        path,
        tokenizers=tokenizer or (),
        renderer=renderer,
        template=template,
        date=date,
        findings=findings,
        port=port,
        browser=browser,
    )


@tokenizer_app.command("train")
def train(
    inputs: Annotated[list[str], typer.Argument(help="Text, markdown or JSON-lines files, directories, patterns.")],
    directory: Annotated[Path, typer.Option("--out", help="The directory to create.")] = Path("tokenizer"),
    vocab_size: Annotated[
        int, typer.Option(help="Pieces, sentinels and bytes included.", **ranges.PIECES.option())
    ] = 16_000,
    model_type: Annotated[Literal["unigram", "bpe"], typer.Option(help="SentencePiece's algorithm.")] = "unigram",
    character_coverage: Annotated[
        float,
        typer.Option(help="Share of characters with a piece of their own.", **ranges.CHARACTER_COVERAGE.option()),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sample of lines.", **ranges.SEED.option())] = SEED,
    max_lines: Annotated[
        int, typer.Option(help="Train on a seeded sample of at most so many lines.", **ranges.MAX_LINES.option())
    ] = 2_000_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier tokenizer at --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Texts and chats -> spm.model with the four sentinels, and tokenizer_meta.json.

    Example: niels-gpt tokenizer train notes/ chats.jsonl --vocab-size 16000 --out tokenizer
    """
    from niels_gpt.tokenizer import train_tokenizer

    with ShownProgress() as progress:
        tokenizer = train_tokenizer(
            inputs,
            directory,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            seed=seed,
            max_lines=max_lines,
            overwrite=overwrite,
            progress=progress,
        )
    result = {
        "model": tokenizer.model_path,
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_token_ids(),
        "sha256": tokenizer.sha256,
    }
    if as_json:
        print_json(result)
    else:
        out().print(f"{tokenizer.model_path}: {tokenizer.vocab_size:,} pieces, sha256 {tokenizer.sha256[:12]}")
