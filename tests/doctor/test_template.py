"""`niels-gpt doctor template`: what is proven of tiny templates, what is said of the others, and the exit code."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.template.probe_results import TemplateReport, report_on
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.tokenizer.load import open_encoder
from tests.conftest import cli_here
from tests.renderers.tiny_families import folder_of

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The end of a turn is written by the next one, and behind the loop.
STOP_BEHIND = (
    "{% for m in messages %}{% if not loop.first %}<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% endfor %}<|im_end|>\n{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The end of a turn is written by the next one.
STOP_BETWEEN = (
    "{% for m in messages %}{% if not loop.first %}<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
)
WITHOUT_STOP = (
    "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
INDICES = (
    "{% for i in range(messages|length) %}<|im_start|>{{ messages[i].role }}\n{{ messages[i].content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The question is written again inside of the answer's turn.
QUOTES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.first %}"
    "{{ m.content }} (you asked: {{ messages[loop.index0 - 1].content }}) {{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONLY_USERS = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('only users') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content if m.content is string else m.content[0].text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return cli_here(capsys, monkeypatch, columns=80)


def model(folder: Path, template: str) -> Path:
    """A directory with a tiny tokenizer and a template, as models are published."""
    shutil.copytree(folder_of("chatml"), folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def report(template: str) -> TemplateReport:
    return report_on(TemplateRenderer(open_encoder(folder_of("chatml")), template=template))


def test_chatml_is_proven(run_cli: Run, tmp_path: Path) -> None:
    folder = model(tmp_path / "chatml", CHATML)
    done = run_cli("doctor", "template", folder)
    assert done.returncode == 0, done.stderr  # with a line of progress on a slow machine
    assert "full attribution on all" in done.stdout
    lines = [line.strip() for line in done.stdout.splitlines()]
    at = lines.index("── 1 assistant ──")
    # The example: its header outside of the sampled span, its stop inside of it, and how the start is known.
    assert lines[at + 1 : at + 4] == ["<|im_start|>assistant⏎", "⟦A river, and⏎", 'a "bridge".<|im_end|>⟧⏎']
    assert "message 1: the generation prompt is a prefix; ends in <|im_end|>" in lines
    assert "stop tokens     <|im_end|> (eos, and those of generation_config.json)" in done.stdout
    isolated = run_cli("doctor", "template", folder, "--isolate")
    assert (isolated.returncode, "full attribution" in isolated.stdout) == (0, True)


@pytest.mark.parametrize("template", [STOP_BEHIND, INDICES], ids=["stop behind", "indices"])
def test_stops_are_proven_wherever_the_template_writes_them(template: str) -> None:
    found = report(template)
    assert found.passed
    assert set(found.stops) == {"<|im_end|>"}
    for result in found.of("proven"):
        stops = [piece.text for piece in result.pieces if piece.kind == Kind.STOP]
        assert stops == ["<|im_end|>"] * sum(message["role"] == "assistant" for message in result.probe.messages)


@pytest.mark.parametrize(
    ("template", "stop"),
    [(WITHOUT_STOP, "<|im_end|>"), (STOP_BETWEEN, "<|im_end|>"), (CHATML, ""), (QUOTES, "")],
    ids=["no stop at all", "none at the end", "every stop", "partial for another reason"],
)
def test_a_final_stop_is_proposed_where_answers_lack_one(
    template: str, stop: str, tmp_path: Path, run_cli: Run
) -> None:
    folder = model(tmp_path / "model", template)
    before = report(template)
    assert before.final_stop == stop
    said = " ".join(run_cli("doctor", "template", folder).stdout.split())
    assert ("proposed --renderer-option final_stop='<|im_end|>'" in said) == bool(stop)
    assert ("add its id to eos_token_id in generation_config.json" in said) == (template == WITHOUT_STOP)
    if stop:
        option = ("--renderer-option", f"final_stop={stop}")
        after = json.loads(run_cli("doctor", "template", folder, *option, "--json").stdout)
        assert after["counts"]["partial"] < before.counts["partial"]
        assert (after["final_stop"], after["stop_tokens"]) == ("", ["<|im_end|>"])


def test_an_answer_that_quotes_the_question_is_partial(run_cli: Run, tmp_path: Path) -> None:
    folder = model(tmp_path / "quotes", QUOTES)
    done = run_cli("doctor", "template", folder)
    assert (done.returncode, "message 1 holds data of message 0" in done.stdout) == (1, True)
    assert "partial:" in done.stdout.splitlines()[-1]
    found = json.loads(run_cli("doctor", "template", folder, "--json").stdout)
    assert (found["passed"], found["counts"]["partial"] > 0) == (False, True)
    names = [name for some in found["reasons"]["partial"].values() for name in some]
    assert ("one turn" in names, "only a user" in names) == (True, False)


def test_refusals_are_no_failure_but_nothing_rendered_is(run_cli: Run, tmp_path: Path) -> None:
    found = report(ONLY_USERS)
    assert found.passed
    ((reason, results), *_) = found.reasons("refused").items()
    assert "only users" in reason
    names = [result.probe.name for result in results]
    assert ("one turn, system" in names, "one turn" in names) == (True, False)
    done = run_cli("doctor", "template", model(tmp_path / "never", "{{ raise_exception('never') }}"))
    assert (done.returncode, "refuses every probe" in done.stdout) == (1, True)
    forbidden = report("{% if tools %}{{ tools.append(1) }}{% endif %}" + CHATML)
    assert forbidden.counts["proven"] > 50
    assert any("not allowed" in reason for reason in forbidden.reasons("refused"))


def test_probes_can_be_chosen_and_all_be_shown(run_cli: Run, tmp_path: Path) -> None:
    folder = model(tmp_path / "chatml", CHATML)
    shown = run_cli("doctor", "template", folder, "--probe", "two turns, system").stdout
    assert (shown.count("── 4 assistant ──"), "one turn, tools" in shown) == (1, False)
    every = run_cli("doctor", "template", folder, "--all").stdout
    assert all(result.probe.name in every for result in report(CHATML).results)
    wrong = run_cli("doctor", "template", folder, "--probe", "two turn")
    assert (wrong.returncode, "did you mean 'two turns'?" in wrong.stderr) == (2, True)


def test_another_template_and_its_variables_are_judged(run_cli: Run, tmp_path: Path) -> None:
    folder, file = model(tmp_path / "chatml", CHATML), tmp_path / "other.jinja"
    file.write_text(QUOTES)
    assert run_cli("doctor", "template", folder, "--template", file).returncode == 1
    file.write_text("{% if strict %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%Y') }}" + CHATML)
    assert run_cli("doctor", "template", folder, "--template", file).returncode == 0
    assert run_cli("doctor", "template", folder, "--template", file, "--renderer-option", "strict=true").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("x.jinja",), 2, "--template x.jinja"),
        ((), 2, "MODEL"),
        (("no/such/directory",), 3, "no/such/directory"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(run_cli: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run_cli("doctor", "template", *arguments)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
