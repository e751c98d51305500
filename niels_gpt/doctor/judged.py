"""Which rules were not judged on an input, and why: a rule that was not judged found nothing, and that says nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from niels_gpt.doctor.rules.rule import Need, Rule

NO_MASK = "the data has no mask (labels, assistant_masks, completion_mask or loss_mask)"
NO_TOKENIZER = "no tokenizer was given"


@dataclass(frozen=True)
class Conditions:
    """What a diagnosis had to judge by.

    Attributes:
        kind: of the input, as in `Rule.applies`.
        unmet: why a need of rules was not met, by need; a need that is not named was met.
        length: a length for rows was given; without one nobody asked for `over-long`.
    """

    kind: str
    unmet: Mapping[Need, str]
    length: bool = False

    def of(self, rules: Iterable[Rule], fired: Iterable[str]) -> tuple[dict[str, str], int]:
        """The rules that were not judged, each with the reason, and how many were.

        Args:
            fired: rules that found something; what they need was there, at least in some rows.
        """
        known = set(fired)
        asked = [rule for rule in rules if self.kind in rule.applies and (self.length or rule.id != "over-long")]
        skipped: dict[str, str] = {}
        for rule in asked:
            reason = next((self.unmet[need] for need in rule.needs if need in self.unmet), "")
            if reason and rule.id not in known:
                skipped[rule.id] = reason
        return skipped, len(asked) - len(skipped)
