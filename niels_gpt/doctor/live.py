"""Judging batches as they really reach a model: `watch` for a trainer or a model, `judge_script` for a whole script.

What a collator, a packing option or a trainer makes of the data is only seen there. The first batches are copied and
judged like any rows of ids (`diagnose`), and the trainer runs on as before::

    trainer.train() -> compute_loss(model, inputs)   the inputs, with labels        `watch(trainer)`
                    -> model(input_ids=..., ...)     the arguments of the call      `watch(model)`, `judge_script`
                    -> cross_entropy(logits, y)      targets of a loop of one's own, y[i] is the id after i
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.report import Report
from niels_gpt.doctor.run import batch_rows, diagnose
from niels_gpt.errors import DataError, InputError, MissingExtra, UsageError
from niels_gpt.format.masks import IGNORE_INDEX

BATCHES: Final = 2
COLUMNS: Final = ("input_ids", "labels", "attention_mask", "position_ids")
Level = Literal["error", "warning"]


class Watch:
    """Collects the first batches, judges them once, and shows the report.

    Args:
        batches: how many are judged, together.
        stop_on: raise a `DataError` where the report has a finding of this severity or a worse one.
        show: receives the report; default: prints it on standard error.
        options: of `diagnose`: tokenizer, renderer, template, silence, ...

    Attributes:
        report: `None` until the batches are there.
    """

    def __init__(
        self,
        *,
        batches: int = BATCHES,
        stop_on: Level | None = None,
        show: Callable[[Report], None] | None = None,
        **options: Any,
    ) -> None:
        if batches < 1:
            raise UsageError(f"batches is {batches}; expected 1 or more")
        self.report: Report | None = None
        self._batches, self._stop_on, self._show, self._options = batches, stop_on, show or _print, options
        self._rows: list[dict[str, npt.NDArray[Any]]] = []
        self._seen = 0
        self._undo: list[Callable[[], None]] = []

    def see(self, batch: Mapping[str, Any]) -> None:
        """Take a batch; after the last one that is wanted, judge them.

        Args:
            batch: arrays or tensors `input_ids` and `labels` of shape (rows, length), and, if there are any,
                `attention_mask` and `position_ids`; other entries are ignored.

        Raises:
            DataError: the report has such a finding as `stop_on` names. UsageError: no `input_ids`.
        """
        if self.report is not None:
            return
        if batch.get("input_ids") is None:
            raise UsageError(f"the batch has {', '.join(map(str, batch)) or 'nothing'}; expected input_ids and labels")
        # A mask of four dimensions is made from these, and judged by them.
        chosen = {name: batch[name] for name in COLUMNS if batch.get(name) is not None and batch[name].ndim <= 2}
        self._rows += batch_rows(chosen)
        self._seen += 1
        if self._seen == self._batches:
            self.judge()

    def judge(self) -> Report:
        """Judge what was seen so far, show the report, and stop watching.

        Raises:
            InputError: no batch was seen. DataError: see `see`.
        """
        self.remove()
        if not self._rows:
            raise InputError("no batch with input_ids reached a model, so nothing was judged")
        found = diagnose(self._rows, **self._options)
        name = "the first batch" if self._seen == 1 else f"the first {self._seen} batches"
        self.report = report = replace(found, source={**found.source, "name": name})
        self._rows = []
        self._show(report)
        if self._stop_on is not None and report.failed(self._stop_on):
            raise DataError(f"findings in the first batches: {', '.join(report.rules(self._stop_on))}; see the report")
        return report

    def remove(self) -> None:
        """Stop watching; the trainer or model is as it was."""
        while self._undo:
            self._undo.pop()()


def watch(target: Any, **options: Any) -> Watch:
    """Judge the first batches of a training as they reach the model.

    Args:
        target: a transformers or TRL trainer, before `train()`; or a model (`torch.nn.Module`) that is called with
            `input_ids` and `labels`.
        options: of `Watch`. The tokenizer is the trainer's own unless one is passed.

    Returns:
        The watch, whose `report` is there after the first batches.

    Raises:
        UsageError: neither a trainer nor a model.
    """
    if callable(getattr(target, "compute_loss", None)) and hasattr(target, "train"):
        own = getattr(target, "processing_class", None) or getattr(target, "tokenizer", None)
        made = Watch(**({"tokenizer": own} if own is not None else {}) | options)
        _watch_trainer(target, made)
    elif hasattr(target, "register_forward_pre_hook"):
        made = Watch(**options)
        _watch_model(target, made)
    else:
        raise UsageError(f"found a {type(target).__name__}; expected a trainer with compute_loss, or a torch module")
    return made


def _watch_trainer(trainer: Any, made: Watch) -> None:
    compute_loss = trainer.compute_loss
    # Other ranks have other rows, of the same making; one report is enough.
    is_first = getattr(trainer, "is_world_process_zero", lambda: True)

    def watched(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Evaluation has batches of its own; only those that are trained are judged.
        if getattr(model, "training", True) and is_first():
            made.see(inputs)
        return compute_loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = watched
    made._undo.append(lambda: trainer.__dict__.pop("compute_loss", None))


def _watch_model(model: Any, made: Watch) -> None:
    def before(_: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        batch = _batch_of(args, kwargs)
        if model.training and batch is not None:
            made.see(batch)

    made._undo.append(model.register_forward_pre_hook(before, with_kwargs=True).remove)


def _batch_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The batch that a model is called with; `None` if it is called with something else."""
    if kwargs.get("input_ids") is not None:
        return kwargs
    first = args[0] if args else None
    if isinstance(first, Mapping) and first.get("input_ids") is not None:
        return first
    # A module of a model is called with floats; ids are integers of shape (rows, length).
    is_ids = getattr(first, "ndim", 0) == 2 and "int" in str(getattr(first, "dtype", ""))
    return {"input_ids": first, **kwargs} if is_ids else None


# ---- scripts


class _Enough(BaseException):
    """Ends a script whose first batches were seen; no `except Exception` of the script catches it."""


def judge_script(command: Sequence[str], **options: Any) -> Report:
    """Run a training script until its first batches reach a model, and judge them.

    The script runs in this process, as `python SCRIPT ARGUMENTS` would run it, and ends at that point: nothing is
    trained, but what it does before (downloads, files, logs) is done.

    Args:
        command: the script's path and its arguments.
        options: of `Watch`. Without a tokenizer rules that need one are not judged.

    Raises:
        InputError: the script cannot be read, fails, or ends before a batch reaches a model.
        MissingExtra: without torch.
    """
    if find_spec("torch") is None:
        raise MissingExtra("torch")
    script = Path(command[0]) if command else Path()
    if not script.is_file():
        raise InputError(f"{script}: no such file; expected a Python script")
    chosen: dict[str, Any] = {"batches": 1, "show": _keep} | options
    made = Watch(**chosen)
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[0] = [str(script), *command[1:]], str(script.resolve().parent)
    try:
        with _intercepted(made):
            runpy.run_path(str(script), run_name="__main__")
    except _Enough:
        pass
    except SystemExit as error:
        if made.report is None and error.code:
            raise InputError(f"{script}: ended with {error.code} before a batch reached a model") from error
    except Exception as error:  # the user's own code may raise anything
        raise InputError(
            f"{_place(error, script)}: {type(error).__name__}: {error}, before a batch reached a model"
        ) from error
    finally:
        sys.argv, sys.path[:] = argv, path
    return made.report if made.report is not None else made.judge()


def _place(error: Exception, script: Path) -> str:
    """The script and the last of its lines that led to an error: `train.py:31`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)]
    return f"{script}:{lines[-1]}" if lines else str(script)


@contextmanager
def _intercepted(made: Watch) -> Iterator[None]:
    """Within the block the first calls of a model, and of `cross_entropy`, are seen."""
    import torch

    call, cross_entropy = torch.nn.Module.__call__, torch.nn.functional.cross_entropy
    waiting: list[Mapping[str, Any]] = []
    depth = 0  # of modules that call modules

    def see(batch: Mapping[str, Any]) -> None:
        made.see(batch)
        if made.report is not None:
            raise _Enough

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        batch = _batch_of(args, kwargs) if module.training and not depth else None
        if batch is not None and waiting:  # there was no loss that is known; the ids are judged without a mask
            see(waiting.pop())
        elif batch is not None and batch.get("labels") is not None:
            see(batch)
        elif batch is not None:  # labels come with the loss
            waiting.append(batch)
        depth += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth -= 1

    def compared(logits: Any, targets: Any, *args: Any, **kwargs: Any) -> Any:
        if waiting:
            batch = waiting.pop()
            ignored = kwargs.get("ignore_index", IGNORE_INDEX)
            see({**batch, "labels": _aligned(batch["input_ids"], targets, ignored)})
        return cross_entropy(logits, targets, *args, **kwargs)

    torch.nn.Module.__call__ = called  # type: ignore[method-assign]
    torch.nn.functional.cross_entropy = compared  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        torch.nn.functional.cross_entropy = cross_entropy


def _aligned(ids: Any, targets: Any, ignored: int) -> npt.NDArray[np.int64]:
    """Targets of a loss as labels that are aligned with the ids: y[i] is the id after i.

    ::

        ids  5 6 7 8      targets of 4 tokens  6 7 8 -      of 3  6 7 8      labels  . 6 7 8

    Raises:
        UsageError: another number of targets than of ids, or of ids without the last of each row.
    """
    rows = np.atleast_2d(ids.detach().cpu().numpy())
    n, length = rows.shape
    flat = targets.detach().cpu().numpy().reshape(-1)
    if flat.size not in (n * length, n * (length - 1)):
        raise UsageError(f"{flat.size} targets of a loss for {n} rows of {length} ids; expected one for each id")
    labels = np.full((n, length), IGNORE_INDEX, dtype=np.int64)
    labels[:, 1:] = flat.reshape(n, -1)[:, : length - 1]
    labels[labels == ignored] = IGNORE_INDEX
    return labels


def _print(report: Report) -> None:
    from rich.console import Console

    from niels_gpt.doctor.show import render

    # Bars of trainers leave the cursor at the end of their line.
    Console(stderr=True).print("\n", render(report), sep="")


def _keep(_: Report) -> None:
    """Show nothing: the caller does."""
