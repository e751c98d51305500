"""`niels-gpt rollouts info | show | import | verify`: what a policy sampled, with log-probabilities and rewards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from niels_gpt.cli.app import App
from niels_gpt.cli.build_options import ChatRowFlags
from niels_gpt.cli.episodes import Dataset, conversation_encoder, verify, verify_help
from niels_gpt.cli.options import (
    DatasetTokenizer,
    Json,
    LossFlags,
    OutDirectory,
    Overwrite,
    RendererFlags,
    RowNumber,
    TokenTable,
    grouped,
)
from niels_gpt.cli.paths import EXISTING, existing_tokenizer
from niels_gpt.cli.terminal import ShownProgress, key_values, out, print_json, print_line, table_of
from niels_gpt.episodes.format import require_episodes
from niels_gpt.errors import UsageError

if TYPE_CHECKING:
    from niels_gpt.rollouts.dataset import RolloutDataset

app = App(
    name="rollouts",
    help="Import, inspect and verify rollouts: sampled ids with log-probabilities, rewards and versions.",
    no_args_is_help=True,
)


RolloutFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES",
        help="Lines of JSON with prompt_ids, completion_ids, logprobs and reward, or with turns of these: .jsonl; "
        ".gz and .zst too.",
        **EXISTING,
    ),
]
RolloutTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="PATH",
        help="The tokenizer of these ids: recorded, and ids outside its vocabulary are refused.",
        parser=str,
        callback=existing_tokenizer,
    ),
]
NoLogprobs = Annotated[bool, typer.Option("--no-logprobs", help="Store no log-probabilities; rows need none then.")]
TokenVersions = Annotated[
    bool, typer.Option("--token-versions", help="Store which version of the policy sampled each token.")
]


@app.command()
def info(dataset: Dataset, as_json: Json = False) -> None:
    """Print what a dataset of rollouts holds: groups, lengths, rewards, versions, groups of equal rewards.

    Example: niels-gpt rollouts info rollouts/step_7
    """
    from niels_gpt.rollouts.verify import summarise

    found = summarise(dataset)
    if as_json:
        print_json({"dataset": str(dataset), **found})
        return
    out().print(key_values(str(dataset), [(name.replace("_", " "), _shown(value)) for name, value in found.items()]))


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


@app.command(context_settings={"ignore_unknown_options": True})
def show(
    dataset: Dataset,
    number: RowNumber,
    tokenizer: DatasetTokenizer = None,
    table: TokenTable = True,
    as_json: Json = False,
) -> None:
    """Print one rollout: its group, reward, advantage, version, and every token with its log-probability.

    Example: niels-gpt rollouts show rollouts/step_7 0
    """
    require_episodes(dataset)
    from niels_gpt.datasets.dataset import token_text_of
    from niels_gpt.rollouts.dataset import RolloutDataset

    opened = RolloutDataset(dataset)
    row, facts = opened[number], _facts(opened, number)
    text_of = token_text_of(dataset, opened.episodes.manifests[0] or {}, tokenizer)
    texts = None if text_of is None else [text_of(token) for token in row.ids.tolist()]
    # Context tokens have NaN here, which JSON lacks.
    logprobs = None if row.logprobs is None else [None if math.isnan(each) else each for each in row.logprobs.tolist()]
    versions = None if row.versions is None else row.versions.tolist()
    columns: dict[str, Any] = {
        "ids": row.ids.tolist(),
        "mask": row.mask.tolist(),
        "logprobs": logprobs,
        "versions": versions,
    }
    if as_json:
        print_json({"dataset": str(dataset), "rollout": number, **facts, **columns, "texts": texts})
        return
    shown = {**facts, "metadata": json.dumps(row.metadata, ensure_ascii=False)}
    shown["rewards_of_group"] = ", ".join(f"{each:g}" for each in facts["rewards_of_group"])
    title = f"{dataset} rollout {number:,} of {len(opened):,}"
    out().print(key_values(title, [(name.replace("_", " "), _shown(value)) for name, value in shown.items()]))
    if not table:
        return
    stored = {name: values for name, values in columns.items() if values is not None and name != "mask"}
    # "ids", "logprobs" and "versions" are headings of single values here: id, logprob, version.
    tokens = table_of(*(["text"] if texts else []), right=("token", *(name.removesuffix("s") for name in stored)))
    for at, sampled in enumerate(row.mask.tolist()):
        cells = [Text(repr(texts[at])[1:-1])] if texts else []  # control characters escaped: a token is one line
        numbers = [str(at), str(columns["ids"][at])]
        numbers += [_shown(values[at]) if sampled else "-" for name, values in stored.items() if name != "ids"]
        tokens.add_row(*cells, *(Text(each) for each in numbers), style="green" if sampled else "dim")
    out().print(tokens)


def _facts(opened: RolloutDataset, number: int) -> dict[str, Any]:
    """The values of a rollout, in contrast to those of each token; `None` where JSON has no value, as for NaN."""
    row = opened[number]
    return {
        "group": row.group,
        "group_id": row.group_id,
        "rewards_of_group": opened.rewards[opened.group(row.group)].tolist(),
        "reward": row.reward,
        "advantage": None if math.isnan(row.advantage) else row.advantage,
        "grpo_advantage": float(opened.advantages("grpo")[number]),
        # Stored as -1 where it is not known.
        "version": None if row.version < 0 else row.version,
        "prompt_length": row.prompt_length,
        "tokens": len(row.ids),
        "trained_tokens": int(row.mask.sum()),
        "metadata": row.metadata,
    }


@app.command("import")
@grouped
def import_(
    files: RolloutFiles,
    directory: OutDirectory,
    renderer: RendererFlags,
    tokenizer: RolloutTokenizer = None,
    no_logprobs: NoLogprobs = False,
    token_versions: TokenVersions = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write rollouts, as another program wrote them in lines of JSON, as a dataset; the ids stay as they are.

    A row may also have group_id (default: rows with the same prompt_ids are a group), advantage, version,
    completion_mask and metadata. A list of another length is refused, with the line and the field.

    Example: niels-gpt rollouts import sampled.jsonl --out rollouts/step_7
    """
    from niels_gpt.rollouts.imported_lines import import_rollouts
    from niels_gpt.rollouts.verify import summarise

    # The renderer is only recorded, with the tokenizer: ids stay as they are.
    if tokenizer is None and renderer.named:
        raise UsageError("options of renderers without --tokenizer; pass the tokenizer of these ids")
    with ShownProgress() as progress:
        encoder = None
        if tokenizer is not None:
            encoder = conversation_encoder(tokenizer, renderer, LossFlags(), ChatRowFlags(), None, quiet=as_json)
        import_rollouts(
            files,
            directory,
            encoder,
            progress=progress,
            logprobs=not no_logprobs,
            token_versions=token_versions,
            overwrite=overwrite,
        )
    found = summarise(directory)
    if as_json:
        print_json({"dataset": str(directory), **found})
        return
    counted = f"{found['rollouts']:,} rollouts of {found['groups']:,} groups, {found['tokens']:,} tokens"
    look = f"niels-gpt rollouts show {directory} 0"
    print_line(f"{directory} is complete: {counted}. Look at it: {look}")


# A dataset of rollouts has all files of an episodes dataset, so the command is the same.
app.command("verify", help=verify_help("rollouts verify rollouts/step_7"))(verify)
