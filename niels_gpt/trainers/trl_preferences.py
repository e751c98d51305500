"""TRL's DPO and KTO trainers on exported ids: they train on the tokens that the dataset holds, and tokenise nothing.

TRL's own trainers tokenise texts when they are made, and have no switch against it; only `RewardTrainer` takes ids.
"""

from __future__ import annotations

from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.extras import check_library

check_library("torch")  # first: without it, importing trl raises a RuntimeError that names a module of its own
try:
    import trl
except ModuleNotFoundError as error:
    raise UsageError("TRL is not installed; install it with: pip install 'trl>=1.0'") from error


# Both override the method in which TRL's trainers tokenise: what it returns are the columns that their collators read.
class StoredDPOTrainer(trl.DPOTrainer):  # type: ignore[misc, name-defined]
    """`trl.DPOTrainer` for datasets of `niels-gpt export --to trl-dpo`: `prompt_ids`, `chosen_ids`, `rejected_ids`.

    Raises:
        UsageError: the dataset lacks one of these columns.
    """

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        return _with_ids(dataset, ("prompt_ids", "chosen_ids", "rejected_ids"), "trl-dpo")


class StoredKTOTrainer(trl.KTOTrainer):  # type: ignore[misc, name-defined]
    """`trl.KTOTrainer` for datasets of `niels-gpt export --to trl-kto`: `prompt_ids`, `completion_ids`, `label`.

    The mismatched completions that KTO's divergence is estimated from are made as TRL makes them: within each batch,
    every prompt gets the completion of the row before it.

    Raises:
        UsageError: the dataset lacks one of these columns.
    """

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        found = _with_ids(dataset, ("prompt_ids", "completion_ids", "label"), "trl-kto")
        if not self.calculate_KL:  # losses such as APO-zero need no mismatched completions
            return found
        return found.map(_mismatched, batched=True, batch_size=args.per_device_train_batch_size)


def _mismatched(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    # Completions a b c of a batch are mismatched as c a b.
    completions = rows["completion_ids"]
    return {"KL_completion_ids": [completions[-1], *completions[:-1]]}


def _with_ids(dataset: Any, columns: tuple[str, ...], name: str) -> Any:
    missing = [column for column in columns if column not in dataset.column_names]
    if missing:
        raise UsageError(
            f"the dataset has no column {missing[0]!r}, only {', '.join(dataset.column_names)}; write it with: "
            f"niels-gpt export --to {name}"
        )
    return dataset
