"""Judging batches as they really reach a model: `watch` for a trainer or a model.

What a collator, a packing option or a trainer makes of the data is only seen there. The first batches are copied and
judged like any rows of ids (`diagnose`), and the trainer runs on as before::

    trainer.train() -> compute_loss(model, inputs)   the inputs, with labels        `watch(trainer)`
                    -> model(input_ids=..., ...)     the arguments of the call      `watch(model)`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Final, Literal

import numpy.typing as npt

from niels_gpt.doctor.report import Report
from niels_gpt.doctor.run import diagnose
from niels_gpt.errors import DataError, InputError, UsageError
from niels_gpt.inputs.memory import rows_of_batch

BATCHES: Final = 2
COLUMNS: Final = ("input_ids", "labels", "attention_mask", "position_ids")
Level = Literal["error", "warning"]

_log = logging.getLogger("niels_gpt.doctor")


class Watch:
    """Collects the first batches, judges them once, and shows the report.

    Args:
        batches: how many are judged, together.
        stop_on: raise a `DataError` where the report has a finding of this severity or a worse one.
        show: receives the report; default: prints it on standard error.
        options: of `diagnose`: tokenizer, renderer, template, silence, ...

    Attributes:
        report: `None` until the batches are there.
        failure: why they were not judged, where they could not be.
    """

    def __init__(
        self,
        *,
        batches: int = BATCHES,
        stop_on: Level | None = None,
        show: Callable[[Report], None] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
            raise UsageError(f"batches is {batches!r}; expected a whole number of 1 or more")
        if stop_on not in (None, "error", "warning"):
            raise UsageError(f"stop_on is {stop_on!r}; expected 'error', 'warning' or None")
        self.report: Report | None = None
        self.failure: str | None = None
        self._batches, self._stop_on, self._show, self._options = batches, stop_on, show, options
        self._rows: list[dict[str, npt.NDArray[Any]]] = []
        self._seen = 0
        self._undo: list[Callable[[], None]] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing more is judged, because there is a report or the batches could not be judged."""
        return self.report is not None or self.failure is not None

    def see(self, batch: Mapping[str, Any]) -> None:
        """Take a batch; after the last one that is wanted, judge them and show the report.

        What cannot be judged does not end the training, unless `stop_on` is set: the log says why.

        Args:
            batch: arrays or tensors `input_ids` and `labels` of shape (rows, length), and, if there are any,
                `attention_mask` and `position_ids`; other entries are ignored.

        Raises:
            DataError: the report has such a finding as `stop_on` names. Exception: with `stop_on` whatever judging
                raises, such as a `UsageError` without `input_ids`, and always what `show` raises.
        """
        if self.is_over:
            return
        try:
            if batch.get("input_ids") is None:
                held = ", ".join(map(str, batch)) or "nothing"
                raise UsageError(f"the batch has {held}; expected input_ids and labels")
            self._rows += rows_of_batch({name: batch[name] for name in COLUMNS if name in batch})
            self._seen += 1
            found = self._judged() if self._seen >= self._batches else None
        # Unusual batches, a missing tokenizer, a fault of a rule: hours of training must not end for any of them.
        except Exception as error:
            if self._stop_on is not None:
                raise
            self.failure, self._rows = f"{type(error).__name__}: {error}", []
            self.remove()
            _log.warning("[Doctor] the first batches were not judged, and training goes on: %s", self.failure)
            return
        # Outside of the `try`: the error that stops the training is not one that was found while judging.
        if found is not None:
            self._conclude(found)

    def judge(self) -> Report:
        """Judge what was seen so far, show the report, and stop watching.

        Raises:
            InputError: no batch was seen. DataError: see `see`.
        """
        report = self._judged()
        self._conclude(report)
        return report

    def _judged(self) -> Report:
        """The report on the batches so far; the target is no longer watched."""
        # First, so that nothing is left in the trainer or model where judging fails.
        self.remove()
        if not self._rows:
            raise InputError("no batch with input_ids reached a model, so nothing was judged")
        report = diagnose(self._rows, **self._options)
        name = "the first batch" if self._seen == 1 else f"the first {self._seen} batches"
        self.report = report = replace(report, source={**report.source, "name": name})
        self._rows = []  # copies of whole batches, which are not needed any more
        return report

    def _conclude(self, report: Report) -> None:
        """Show a report, and stop the training if it has findings from the severity `stop_on` on."""
        if self._show is not None:
            self._show(report)
        else:
            from rich.console import Console

            from niels_gpt.doctor.show import render

            # Bars of trainers leave the cursor at the end of their line.
            Console(stderr=True).print("\n", render(report), sep="")
        if self._stop_on is not None and report.failed(self._stop_on):
            raise DataError(f"findings in the first batches: {', '.join(report.rules(self._stop_on))}; see the report")

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
    # A trainer by what it has: transformers is not imported for a check of the class.
    if callable(getattr(target, "compute_loss", None)) and hasattr(target, "train"):
        tokenizer = getattr(target, "processing_class", None) or getattr(target, "tokenizer", None)
        watcher = Watch(**({"tokenizer": tokenizer} if tokenizer is not None else {}) | options)
        _watch_trainer(target, watcher)
    elif hasattr(target, "register_forward_pre_hook"):
        watcher = Watch(**options)

        def before_call(_: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            batch = batch_of(args, kwargs)
            if target.training and batch is not None:
                watcher.see(batch)

        watcher._undo.append(target.register_forward_pre_hook(before_call, with_kwargs=True).remove)
    else:
        raise UsageError(
            f"found a {type(target).__name__}; expected a trainer with compute_loss, or a torch "
            "module; diagnose(...) judges a DataLoader"
        )
    return watcher


def _watch_trainer(trainer: Any, watcher: Watch) -> None:
    """Put a function in the place of `trainer.compute_loss` that sees the inputs and then calls it.

    The inputs of `compute_loss` still have their labels; the trainer may take these out before it calls the model.
    """
    compute_loss = trainer.compute_loss
    was_set = "compute_loss" in vars(trainer)  # a function that the user, or another watch, has set
    # Other ranks have other rows, of the same making; one report is enough.
    is_first = getattr(trainer, "is_world_process_zero", lambda: True)

    @wraps(compute_loss)
    def watched(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Evaluation has batches of its own; only those that are trained are judged.
        if not watcher.is_over and getattr(model, "training", True) and is_first():
            watcher.see(inputs)
        return compute_loss(model, inputs, *args, **kwargs)

    def undo() -> None:
        if vars(trainer).get("compute_loss") is not watched:
            return  # another watch has wrapped this one, which passes everything on from here
        if was_set:
            trainer.compute_loss = compute_loss
        else:  # the method of the class is visible again
            del trainer.compute_loss

    trainer.compute_loss = watched
    watcher._undo.append(undo)


def batch_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The batch that a model is called with; `None` if it is called with something else."""
    if kwargs.get("input_ids") is not None:
        return kwargs
    first = args[0] if args else None
    if isinstance(first, Mapping) and first.get("input_ids") is not None:
        return first
    # A module of a model is called with floats; ids are integers of shape (rows, length).
    is_ids = getattr(first, "ndim", 0) == 2 and "int" in str(getattr(first, "dtype", ""))
    return {"input_ids": first, **kwargs} if is_ids else None
