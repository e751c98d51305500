"""One line of a finding with its numbers, and the numbers by name."""

from __future__ import annotations

from typing import Any

from niels_gpt.doctor.rules import data, masks
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Hits, Tally


def summary_of(rule: Rule, hits: Hits, tally: Tally) -> str:
    """What was found, with how much of the whole it is."""
    rows = tally.sums["rows"]
    if rule.id == "loss-share":
        share = masks.share(tally) or 0.0
        return f"{share:.1%} of {hits.count:,} tokens are trained"
    if rule.id == "format-not-understood":
        return "the probes' turns could not be found again"
    if not hits.rows or not rows:
        return hits.evidence[0].note if hits.evidence else rule.title
    of_rows = f"in {hits.rows:,} of {rows:,} rows ({hits.rows / rows:.1%})"
    return of_rows if hits.count == hits.rows else f"{hits.count:,} times, {of_rows}"


def details_of(rule: Rule, tally: Tally) -> dict[str, Any]:
    """Numbers that belong to a finding."""
    if rule.id == "over-long":
        found: dict[str, Any] = {policy: dict(prices) for policy, prices in data.prices(tally).items()}
        return {"tokens beyond the limit": tally.sums["over-long tokens"], "policies": found}
    if rule.id == "history-thinking-stripped":
        names = ("samples needed", "tokens of these samples", "tokens of one sequence each")
        return {name: tally.sums[f"thinking: {name}"] for name in names}
    if rule.id == "tool-arguments-mixed":
        return {form: tally.sums[f"arguments as {form}"] for form in ("text", "object")}
    if f"{rule.id}: conversations" in tally.sums:
        return {name: tally.sums[f"{rule.id}: {name}"] for name in ("conversations", "probes")}
    return {}
