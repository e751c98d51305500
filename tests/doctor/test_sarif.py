"""SARIF 2.1.0: what the specification demands of the parts that are written, and that nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlparse

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
    "suppression": ({"kind"}, {"justification"}),
}


def check(kind: str, held: dict[str, Any]) -> dict[str, Any]:
    needed, allowed = OBJECTS[kind]
    assert needed <= set(held) <= needed | allowed, kind
    return held


def test_a_report_is_valid_sarif(tmp_path: Path) -> None:
    path = as_jsonl(broken_rows(), tmp_path)
    report = diagnose(path, renderer=renderer_of("chatml"), silence={"duplicate-row": "copies are wanted"})
    log = check("log", to_sarif(report))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    check("run", run)
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    (invocation,) = run["invocations"]
    check("invocation", invocation)
    assert invocation["toolExecutionNotifications"] == []
    driver = check("driver", run["tool"]["driver"])
    for rule in driver["rules"]:
        check("rule", rule)
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        assert all(rule[name]["text"] for name in ("shortDescription", "fullDescription", "help"))
        assert "helpUri" not in rule or urlparse(rule["helpUri"]).scheme == "https"
    suppressed = []
    for result in run["results"]:
        check("result", result)
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        for location in result.get("locations", ()):
            check("location", location)
            place = location.get("physicalLocation")
            assert place is None or place["region"]["startLine"] >= 1
        for suppression in result.get("suppressions", ()):
            check("suppression", suppression)
            assert suppression["kind"] in ("inSource", "external")
            suppressed.append((result["ruleId"], suppression["justification"]))
    assert suppressed == [("duplicate-row", "copies are wanted")]
    zero = next(result for result in run["results"] if result["ruleId"] == "mask-all-zero")
    assert zero["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": path.as_uri()},
        "region": {"startLine": 4},
    }


def test_rules_that_were_not_judged_are_told_as_notifications(tmp_path: Path) -> None:
    log = to_sarif(diagnose(as_jsonl([{"input_ids": [1, 2, 3]}], tmp_path)))
    (run,) = log["runs"]
    (invocation,) = run["invocations"]
    told = [one["message"]["text"] for one in check("invocation", invocation)["toolExecutionNotifications"]]
    assert any(text.startswith("not judged (no tokenizer was given): ") and "eot-missing" in text for text in told)
    assert run["properties"]["rulesNotJudged"] > 20
