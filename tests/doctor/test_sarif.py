"""SARIF 2.1.0: what the specification demands of the parts that are written, and that nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor.sarif import to_sarif
from tests.doctor.test_reading import as_jsonl, broken_rows
from tests.renderers.tiny_families import renderer_of

# Section 3 of the specification: the properties that each object may have, of those that are used here, and must have.
OBJECTS: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"invocations", "results", "columnKind", "properties"}),
    "invocation": ({"executionSuccessful"}, {"toolExecutionNotifications"}),
    "driver": ({"name"}, {"version", "rules"}),
    "rule": ({"id"}, {"shortDescription", "fullDescription", "help", "helpUri", "defaultConfiguration"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "suppressions", "properties"}),
    "location": (set(), {"physicalLocation", "logicalLocations"}),
}
LEVELS = ("none", "note", "warning", "error")


def check(kind: str, held: dict[str, Any]) -> dict[str, Any]:
    needed, allowed = OBJECTS[kind]
    assert needed <= set(held) <= needed | allowed, kind
    return held


def test_a_report_is_valid_sarif(tmp_path: Path) -> None:
    path = as_jsonl(broken_rows(), tmp_path)
    report = diagnose(path, renderer=renderer_of("chatml"), silence={"duplicate-row": "copies are wanted"})
    log = check("log", to_sarif(report))
    (run,) = log["runs"]
    assert (log["version"], check("run", run)["columnKind"]) == ("2.1.0", "unicodeCodePoints")
    (invocation,) = run["invocations"]
    assert check("invocation", invocation)["toolExecutionNotifications"] == []
    rules = check("driver", run["tool"]["driver"])["rules"]
    for rule in rules:
        assert check("rule", rule)["defaultConfiguration"]["level"] in LEVELS
        assert all(rule[name]["text"] for name in ("shortDescription", "fullDescription", "help"))
        assert rule.get("helpUri", "https://").startswith("https://")
    for result in run["results"]:
        assert rules[check("result", result)["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in LEVELS
        assert result["message"]["text"]
        for location in result.get("locations", ()):
            check("location", location)
    suppressed = {result["ruleId"]: result["suppressions"] for result in run["results"] if "suppressions" in result}
    assert suppressed == {"duplicate-row": [{"kind": "external", "justification": "copies are wanted"}]}
    zero = next(result for result in run["results"] if result["ruleId"] == "mask-all-zero")
    place = {"artifactLocation": {"uri": path.as_uri()}, "region": {"startLine": 4}}
    assert zero["locations"][0]["physicalLocation"] == place


def test_rules_that_were_not_judged_are_notifications(tmp_path: Path) -> None:
    (run,) = to_sarif(diagnose(as_jsonl([{"input_ids": [1, 2, 3]}], tmp_path)))["runs"]
    (invocation,) = run["invocations"]
    told = [one["message"]["text"] for one in check("invocation", invocation)["toolExecutionNotifications"]]
    assert any(text.startswith("not judged (no tokenizer was given): ") and "eot-missing" in text for text in told)
    assert run["properties"]["rulesNotJudged"] > 20
