"""The functions of `import niels_gpt as ng`: nine common jobs, each in one call.

Every function here is a short composition of public parts; its docstring names them, so that a program that needs
more control knows where to go next. Imports are made inside the functions, because `ng.render` must not pay for
torch, nor `ng.loader` for tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from niels_gpt.errors import UsageError, shown
from niels_gpt.extras import with_extras_named
from niels_gpt.progress import SILENT, Progress

if TYPE_CHECKING:
    from niels_gpt.building import Kind
    from niels_gpt.builds.renderer_encoder import Samples
    from niels_gpt.datasets import Dataset
    from niels_gpt.doctor.report import Report
    from niels_gpt.doctor.serving.check import ServingReport
    from niels_gpt.episodes.loader import Loader
    from niels_gpt.episodes.order.sampling import Sampling
    from niels_gpt.export.tokenize import Tokenize
    from niels_gpt.messages import Messages
    from niels_gpt.renderers.family import Family
    from niels_gpt.renderers.loss import LossOn, Preset
    from niels_gpt.renderers.registry import RendererOptions
    from niels_gpt.renderers.template.renderer import DefaultRenderer
    from niels_gpt.renderers.types import RenderedTokens
    from niels_gpt.sources.mapping import RowMapping

    AnyRenderer: TypeAlias = Family | DefaultRenderer


def renderer(
    tokenizer: Any, name: str = "auto", *, processor: Any = None, chat_template: str | None = None, **options: Any
) -> AnyRenderer:
    """A renderer for a model: its family's grammar if the family is known, else its own chat template.

    Args:
        tokenizer: a hub name such as "Qwen/Qwen3-8B", a local directory, or a loaded tokenizer.
        name: "auto", "template", or a family; `niels-gpt renderers` lists them.
        processor: the image processor of a model with images, as `transformers.AutoImageProcessor` gives it.
        chat_template: the text of a Jinja template, in place of the tokenizer's.
        options: of the renderer, such as `enable_thinking=False`; `niels-gpt renderers NAME` lists them.

    Raises:
        UsageError: no such renderer or option; a template for a family, which has a grammar.
        TokenizerError: the tokenizer cannot be used.

    More: `niels_gpt.renderers.create_renderer`.
    """
    from niels_gpt.renderers.configs import DefaultRendererConfig
    from niels_gpt.renderers.options import with_options
    from niels_gpt.renderers.registry import DefaultRenderer, create_renderer

    if chat_template is not None:
        if name not in ("auto", "template", "default"):
            raise UsageError(f"renderer {name} writes by its own grammar; leave chat_template out, or name 'template'")
        return DefaultRenderer(tokenizer, with_options(DefaultRendererConfig(), options), template=chat_template)
    found = create_renderer(tokenizer, name, processor=processor)
    if not options:
        return found
    # The options belong to the renderer that "auto" chose, so it is asked first.
    return create_renderer(found.encoder, with_options(found.config, options), processor=processor)


def render(
    messages: Messages,
    tokenizer: Any,
    *,
    tools: Any = None,
    add_generation_prompt: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> RenderedTokens:
    """One conversation as token ids with attribution; see `RenderedTokens.labels` and `show`.

    The tokenizer is loaded by each call, which takes seconds. For more than one conversation make a renderer once:
    `r = ng.renderer(tokenizer)`, then `r.render(messages)`, or `r.render_many(conversations)` for thousands.

    Args:
        messages: in the OpenAI chat format.
        tokenizer, options: as for `renderer`; a renderer itself is also taken.
        tools: in the OpenAI chat format.
        add_generation_prompt: end with what serving puts before a completion.
        chat_template_kwargs: options of this conversation alone, as rows have them in a column of this name.

    Raises:
        MessageError: naming message and field. UsageError: options beside a renderer. Else as `renderer`.
    """
    chosen = _renderer_of(tokenizer, options.pop("name", "auto"), options)
    if chat_template_kwargs:
        from niels_gpt.renderers.protocol import with_kwargs

        chosen = with_kwargs(chosen, chat_template_kwargs)
    rendered: RenderedTokens = chosen.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
    return rendered


def _renderer_of(tokenizer: Any, name: str, options: Mapping[str, Any]) -> AnyRenderer:
    """The renderer itself if `tokenizer` is one, else the renderer called `name` for this tokenizer.

    Raises:
        UsageError: a renderer, and the name or options of another.
    """
    # Tokenizers of transformers have no `render`; every renderer has.
    if not hasattr(tokenizer, "render"):
        return renderer(tokenizer, name, **options)
    if options or name != "auto":
        found = [*options, *([] if name == "auto" else [f"name {name!r}"])]
        raise UsageError(
            f"found a renderer and the options {', '.join(found)}; options are set where a renderer is made: "
            "ng.renderer(tokenizer, ...)"
        )
    chosen: AnyRenderer = tokenizer
    return chosen


def open(path: str | Path, *, tokenizer: Any = None) -> Dataset:
    """A dataset that this package wrote: a cache or episodes, memory-mapped.

    Raises:
        CacheError: no dataset there, an unfinished or a damaged one. UsageError: a file, or no path.

    More: `niels_gpt.datasets`.
    """
    from niels_gpt.datasets import open_dataset

    _check_path("path", path)
    if Path(path).is_file():
        raise UsageError(
            f"{path}: a file; expected a directory that a build wrote. ng.build makes one of conversations"
        )
    return open_dataset(path, tokenizer=tokenizer)


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, str | Path) or not str(path):
        raise UsageError(f"{name} is {shown(path)}; expected the path of a directory")


@with_extras_named
def loader(
    path: str | Path | Sequence[str | Path] | Mapping[str | Path, float],
    *,
    batch_size: int,
    sequence_length: int | None = None,
    packing: bool | None = None,
    split: str = "train",
    epochs: int | None = 1,
    seed: int | None = None,
    shuffle: bool = True,
    sampling: Sampling | None = None,
    pad_token_id: int | None = None,
    num_workers: int = 0,
    device: str = "cpu",
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    **options: Any,
) -> Loader[Any]:
    """Batches of fixed shape from episodes, caches or preferences; iterate over it once per pass.

    Args:
        path: an episodes dataset or an SFT cache, several, or a mapping from directories to their share of the mixture.
            A URL (`s3://bucket/episodes/chats`, `hf://datasets/OWNER/NAME`) names published episodes in a store. What
            `niels-gpt build` made of a recipe is also one directory: its mixture decides the proportions. Of a
            pretraining cache, or several, the rows are windows of neighbouring tokens; they may be in a store as well.
        batch_size: rows per batch and rank.
        sequence_length: inputs per row; default the recipe's. Without a recipe it must be passed.
        packing: several whole conversations per row; default the recipe's, else no.
        epochs: per pass; `None` has no end.
        seed, shuffle: of the order, the same on every rank and for any number of workers; default the recipe's seed,
            else 42.
        sampling: order and proportions in one value, `niels_gpt.episodes.Sampling`, in place of `seed` and `shuffle`.
        pad_token_id: fills rows; default the eos that the dataset's manifest records. Any id of the vocabulary will do:
            padding is masked by its position, never by its value.
        num_workers: processes that make batches; 0 makes them in this one.
        cache_dir: for a URL: a local directory that keeps its shards, shared by all processes of the node.
        cache_bytes: all shards in `cache_dir` together take at most so much; default 100 GiB.
        options: of `GPTEpisodeDataLoader`; for preferences of `PreferenceLoader`, where `batch_size` counts groups; for
            pretraining caches of `WindowLoader`.

    Returns:
        A `Loader`, iterated over for `Batch` or `PreferenceBatch`, with `state_dict`, `load_state_dict` and more.

    Raises:
        CacheError: no such dataset. UsageError: a number out of range, no pad id, a batch larger than an epoch,
            `sampling` beside `seed` or `shuffle`, or a URL without `cache_dir`. StorageError: a store or disk refused.

    More: `niels_gpt.episodes.GPTEpisodeDataLoader`, `niels_gpt.episodes.WindowLoader`,
    `niels_gpt.preferences.PreferenceLoader`.
    """
    from niels_gpt.loaders import loader_of

    asked = {
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "packing": packing,
        "seed": seed,
        "shuffle": shuffle,
        "sampling": sampling,
        "pad_token_id": pad_token_id,
        "device": device,
        "cache_dir": cache_dir,
        "cache_bytes": cache_bytes,
    }
    found = loader_of(path, asked, options)
    return found.as_dataloader(split, epochs=epochs, num_workers=num_workers)


@with_extras_named
def build(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    tokenizer: Any,
    *,
    kind: Kind | None = None,
    renderer: RendererOptions | str = "auto",
    loss_on: LossOn | Preset | None = None,
    samples: Samples = "per-conversation",
    images: str | Path | None = None,
    format: str | None = None,
    mapping: RowMapping | None = None,
    workers: int = 1,
    progress: Progress = SILENT,
    **options: Any,
) -> Dataset:
    """Files of conversations, preferences or texts -> a dataset. A killed build continues, a finished one is kept.

    Args:
        inputs: JSON lines, JSON, parquet; of texts also text files and directories; files, URLs or patterns.
        out: the directory to create.
        tokenizer: as for `renderer`; a renderer itself is also taken.
        renderer: a name as for `renderer`, or with options, template, date and isolation in one value:
            `niels_gpt.renderers.registry.RendererOptions`. Without a name, a spm.model is written with its own
            sentinels; texts are encoded without a renderer.
        kind: "episodes", "preferences", "sft" or "pretrain"; default by the shape of the rows: conversations become
            episodes, rows with `chosen` and `rejected` preferences, texts a pretraining cache.
        loss_on: which tokens are trained: a `LossOn`, or the name of its preset; default everything that the model
            itself emits.
        samples: how many samples a conversation makes: "per-conversation", "per-turn", or "auto": as many as train
            every turn on the ids with which it was produced.
        images: the folder of the images in conversations; the renderer needs a processor, which is loaded from where
            the tokenizer is.
        format: the shape of the rows; default as they look (`niels-gpt build --help` lists them).
        mapping: which columns of the rows hold what, and what their roles mean: `niels_gpt.sources.mapping.RowMapping`.
        workers: processes; the bytes do not depend on it.
        options: of `build_episodes`, `build_preferences`, `build_sft_cache` or `build_pretrain_cache`: val_frac, seed,
            max_bad_rows, overwrite, ...; and allow_partial, on_unwritten, prove, max_message_bytes, num_threads.

    Raises:
        DataError: too many unusable rows, or none usable. OutputExists, Mismatch: `out` is taken. UsageError: a
            renderer with the name or options of another, or an option that datasets of this kind have no place for.
            Else as `renderer`.

    More: `niels_gpt.episodes.build_episodes`.
    """
    from niels_gpt.building import Encoding, kind_of, open_source, write
    from niels_gpt.builds.executor import LocalRunner, UnitExecutor
    from niels_gpt.builds.renderer_encoder import RenderingPolicy
    from niels_gpt.renderers.registry import RendererOptions
    from niels_gpt.sources.mapping import NO_MAPPING
    from niels_gpt.tokenizer import load_tokenizer
    from niels_gpt.tokenizer.load import is_sentencepiece

    if not inputs:
        raise UsageError(f"inputs is {inputs!r}; expected a file of conversations, or a list of files")
    _check_path("out", out)
    paths = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    mapping = mapping or NO_MAPPING
    chosen = kind_of(paths, kind, format, mapping)
    asked = RendererOptions(renderer) if isinstance(renderer, str) else renderer
    sentinels = not asked.is_chosen and isinstance(tokenizer, str | Path) and is_sentencepiece(tokenizer)
    if chosen == "pretrain" and (asked.is_chosen or format or mapping):
        raise UsageError("renderer, format and mapping are for conversations; leave them out")
    # The encoder of sentinels adds the default system message itself, and records it.
    system = mapping.default_system if sentinels else None
    source = open_source(paths, chosen, format, replace(mapping, default_system=None) if sentinels else mapping)
    policy = RenderingPolicy(**{f.name: options.pop(f.name) for f in fields(RenderingPolicy) if f.name in options})
    rest = {"max_message_bytes": options.pop("max_message_bytes")} if "max_message_bytes" in options else {}
    threads = options.pop("num_threads", None)
    encoding = Encoding(loss_on, policy, samples, images, default_system=system, threads=threads, **rest)

    def opened() -> Any:
        if chosen == "pretrain":
            return str(tokenizer) if isinstance(tokenizer, Path) else tokenizer
        if sentinels:
            return load_tokenizer(tokenizer)
        if not isinstance(tokenizer, str | Path):
            if asked != RendererOptions(asked.name, options=asked.options):
                raise UsageError(
                    "a template, date or isolation needs the path of a tokenizer; found one that is loaded"
                )
            return _renderer_of(tokenizer, asked.name, asked.options)
        made = asked.open(tokenizer, images=images is not None)
        for line in asked.automatic(tokenizer):
            progress.note(line)
        return made

    # In units also with one worker, so that a killed build continues.
    executor = options.pop("executor", None) or UnitExecutor(LocalRunner(workers))
    write(chosen, source, out, opened, encoding, progress, executor=executor, **options)
    return open(out)  # ours, above


@with_extras_named
def tokenize(
    tokenizer: Any,
    *,
    name: str = "auto",
    renderer_options: Mapping[str, Any] | None = None,
    loss_on: LossOn | Preset | None = None,
    pack: int | None = None,
    **options: Any,
) -> Tokenize:
    """A function from batches of conversations to ids and labels, for `datasets.map`, Ray Data and torch.

    `dataset.map(ng.tokenize("Qwen/Qwen3-8B", pack=4096), batched=True, remove_columns=dataset.column_names)`

    Args:
        tokenizer, name, renderer_options: as for `renderer`; a renderer itself is also taken.
        loss_on: which tokens are trained: a `LossOn`, or the name of its preset; default everything that the model
            itself emits.
        pack: put whole conversations of a batch into rows of at most so many tokens.
        options: of `niels_gpt.export.tokenize.Tokenize`: max_length, too_long, on_bad_rows, assistant_masks, ...

    Returns:
        A picklable function with the columns `input_ids`, `labels` (unshifted, -100 where a token is not trained), and
        with `pack` also `seq_lengths`.

    Raises:
        UsageError: no such option, or one out of range. Else as `renderer`.
    """
    from niels_gpt.export.tokenize import Tokenize
    from niels_gpt.renderers.loss import LossOn

    chosen = _renderer_of(tokenizer, name, renderer_options or {})
    return Tokenize(chosen, LossOn.of(loss_on), pack, **options)


@with_extras_named
def diagnose(source: Any, other: Any = None, **options: Any) -> Report:
    """What is wrong with data, a tokenizer or a template, before GPU hours are spent on it.

    Args:
        source: rows in memory, a file, a dataset directory, a hub dataset, a tokenizer directory, a batch's rows.
        other: a second tokenizer or template: then the two are compared.
        options: of `niels_gpt.doctor.diagnose`: tokenizer, renderer, loss_on, sample, max_length, ...

    Raises:
        UsageError: arguments that do not go together. DataError: what cannot be read at all.
    """
    from niels_gpt.doctor.run import diagnose as run

    return run(source, other, **options)


@with_extras_named
def check_serving(
    url: str,
    tokenizer: Any,
    chats: str | Path | Sequence[str | Path] | None = None,
    *,
    rows: int = 100,
    format: str | None = None,
    api_key: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> ServingReport:
    """Ask a running server for the tokens of prompts, and compare them with what is trained (docs/doctor.md).

    Args:
        url: `http://host:8000`: vLLM, SGLang, llama.cpp's server, TGI, or any other OpenAI-compatible one, of which
            only the number of tokens is compared. Nothing is sent to another host.
        tokenizer, options: as for `renderer`; a renderer itself is also taken.
        chats: files of conversations; the first `rows` are compared up to their last answers.
        format: of the rows, as for `build`.
        api_key: sent as bearer token.
        chat_template_kwargs: sent with every request, as clients of the server do; a row's own go over them.

    Raises:
        UsageError: no such URL, or arguments that contradict each other. MissingExtra: httpx is not installed.
        ServerError: the server does not answer, or not with a prompt. InputError: files that cannot be read.
    """
    from itertools import islice

    from niels_gpt.doctor.serving.check import check_serving as check

    chosen = _renderer_of(tokenizer, options.pop("name", "auto"), options)
    read: Any = ()
    if chats is not None:
        from niels_gpt.sources.chat_files import chat_files

        paths = [chats] if isinstance(chats, str | Path) else list(chats)
        read = islice(chat_files(paths, format).iterate(), rows)
    return check(url, chosen, read, api_key=api_key, chat_template_kwargs=chat_template_kwargs, progress=progress)


def convert(
    source: str | Path, out: str | Path, *, to: str | None = None, source_format: str | None = None, **options: Any
) -> dict[str, Any]:
    """A dataset of ours in another trainer's format (`to`), or another program's as episodes (`source_format`).

    Args:
        to, source_format: one of both; `niels-gpt export --help` and `import --help` list them.
        options: of `niels_gpt.export.export` or `niels_gpt.imports.import_episodes`.

    Returns:
        The manifest that was written.

    Raises:
        UsageError: neither or both of `to` and `source_format`, no such format, or an option that it does not have.
    """
    _check_path("source", source)
    _check_path("out", out)
    if (to is None) == (source_format is None):
        raise UsageError(
            f"to is {to!r} and source_format is {source_format!r}; expected one of both: to= writes another trainer's "
            "format, source_format= reads another program's"
        )
    if to is not None:
        from niels_gpt.export.run import export

        return export(source, to, out, **options)
    from niels_gpt.imports.run import import_episodes

    return import_episodes(source, str(source_format), out, **options)


@with_extras_named
def explore(
    path: str | Path | None = None,
    *,
    tokenizers: Sequence[str] = (),
    renderer: RendererOptions | None = None,
    format: str | None = None,
    findings: Path | None = None,
    serving: str | None = None,
    port: int = 0,
    browser: bool = True,
) -> None:
    """Serve a local web page that shows data token by token, until interrupted.

    Args:
        path: whatever `ng.diagnose` reads: conversations, rows of `input_ids`, a cache, episodes, token files of other
            programs, a dataset on the hub; default renderers side by side, without data.
        tokenizers: directories or hub names.
        renderer: how the first tokenizer's rows are rendered; default as for `renderer`.
        format: the shape of conversations or preferences; default as the rows look.
        findings: a report of the doctor as JSON.
        serving: the address of an inference server, which is compared as `check_serving` does.
        port: 0 takes any that is free.
        browser: open the page.

    Raises:
        MissingExtra: the extra `explorer` is not installed.
    """
    from niels_gpt.explorer.api import Explorer, open_dataset
    from niels_gpt.explorer.findings import read_findings
    from niels_gpt.explorer.renderer_list import RendererList
    from niels_gpt.renderers.registry import RendererOptions

    listed = RendererList(tuple(tokenizers), renderer or RendererOptions())
    report = None if findings is None else read_findings(findings)
    from niels_gpt.explorer.server import serve  # after the cheap checks, because it needs the extra

    explorer = Explorer(listed, open_dataset(path, listed, format), report, serving or "")
    serve(
        explorer,
        port=port,
        browser=browser,
        announce=lambda address: print(f"explorer at {address}  (Ctrl-C ends it)", flush=True),
    )
