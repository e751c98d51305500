"""Real trainers, loops and scripts: the first batches are judged as the model gets them, and training goes on."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import niels_gpt as ng  # noqa: E402
from niels_gpt.doctor import Report, judge_script  # noqa: E402
from niels_gpt.errors import DataError, InputError, NielsError, UsageError  # noqa: E402
from tests.conftest import run_cli  # noqa: E402
from tests.doctor.made import Row, padded, rows, samples  # noqa: E402
from tests.renderers.tiny_families import folder_of, renderer_of  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of accelerate, about what a CPU lacks
FAMILY = "qwen2.5"
VOCABULARY = 512


def tiny_model() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def stop_id() -> int:
    return int(renderer_of(FAMILY).encoder.control_ids["<|im_end|>"])


def made_rows() -> list[Row]:
    return rows(padded(samples(FAMILY), stop_id()))


def by_value(given: list[Row]) -> dict[str, Any]:
    """A collator with the famous bug: labels are left out wherever the id is that of padding."""
    ids = torch.tensor([row["input_ids"] for row in given])
    labels = torch.tensor([row["labels"] for row in given]).where(ids != stop_id(), -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.tensor([r["attention_mask"] for r in given])}


def trainer_of(folder: Path, collator: Any, steps: int = 4) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    return transformers.Trainer(model=tiny_model(), args=arguments, train_dataset=made_rows(), data_collator=collator)


def watched(trainer: Any, **options: Any) -> Any:
    shown: list[Report] = []
    watch = ng.doctor.watch(trainer, tokenizer=folder_of(FAMILY), renderer=FAMILY, show=shown.append, **options)
    trainer.train()
    assert shown == [watch.report]
    return watch


def test_a_collator_that_masks_by_value_is_found_and_training_goes_on(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, by_value)
    watch = watched(trainer)
    assert watch.report.rules("error") == ["eot-masked-as-padding"]
    assert (watch.report.rows, trainer.state.global_step) == (4, 4)
    assert "compute_loss" not in vars(trainer)


def test_a_good_collator_is_clean(tmp_path: Path) -> None:
    watch = watched(trainer_of(tmp_path, transformers.default_data_collator), batches=3)
    assert (watch.report.rules("warning"), watch.report.rows) == ([], 6)


def test_a_training_can_be_stopped(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, by_value)
    ng.doctor.watch(trainer, tokenizer=folder_of(FAMILY), renderer=FAMILY, stop_on="error", show=lambda _: None)
    with pytest.raises(DataError, match="findings in the first batches: eot-masked-as-padding"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_the_trainers_own_tokenizer_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of(tmp_path, by_value)
    trainer.processing_class = transformers.AutoTokenizer.from_pretrained(folder_of(FAMILY))
    watch = ng.doctor.watch(trainer, renderer=FAMILY)
    trainer.train()
    assert watch.report is not None
    assert watch.report.rules("error") == ["eot-masked-as-padding"]
    said = capsys.readouterr().err
    assert "eot-masked-as-padding" in said
    # On a line of its own: bars of trainers leave the cursor at the end of theirs.
    assert f"\nthe first {watch.report.rows // 2} batches: {watch.report.rows} rows" in said


def test_a_model_in_a_loop_of_ones_own() -> None:
    model, shown = tiny_model(), list[Report]()
    watch = ng.doctor.watch(model, tokenizer=folder_of(FAMILY), renderer=FAMILY, show=shown.append)
    for start in (0, 2, 4):
        model(**by_value(made_rows()[start : start + 2])).loss.backward()
    assert watch.report is not None
    assert (watch.report.rules("error"), watch.report.rows) == (["eot-masked-as-padding"], 4)
    assert not model._forward_pre_hooks


def test_evaluation_is_not_judged_and_too_few_batches_can_be() -> None:
    model = tiny_model()
    watch = ng.doctor.watch(model, show=lambda _: None)
    with pytest.raises(InputError, match="no batch with input_ids"):
        ng.doctor.watch(tiny_model()).judge()
    model.eval()
    model(**by_value(made_rows()[:2]))
    model.train()
    model(**by_value(made_rows()[:2]))
    assert watch.judge().rows == 2


def test_other_things_and_other_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="found a list; expected a trainer"):
        ng.doctor.watch([])
    watch = ng.doctor.watch(tiny_model())
    with pytest.raises(UsageError, match="the batch has prompt_ids; expected input_ids"):
        watch.see({"prompt_ids": torch.zeros(1, 2)})


# ---- whatever the watch meets, training is as without it


def losses(folder: Path, prepare: Any, collator: Any = by_value, **options: Any) -> list[float]:
    """The losses of a training of four steps, of which each accumulates two batches."""
    torch.manual_seed(3)
    trainer = trainer_of(folder, collator)
    trainer.args.gradient_accumulation_steps, trainer.args.logging_steps = 2, 1
    prepare(trainer)
    trainer.train(**options)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def with_pieces_missing(given: list[Row]) -> dict[str, Any]:
    """A batch that a model can train on and the doctor cannot judge: an attention mask of fractions."""
    return by_value(given) | {"attention_mask": torch.ones(len(given), len(given[0]["input_ids"]), dtype=torch.float16)}


@pytest.mark.parametrize("collator", [by_value, with_pieces_missing])
def test_losses_are_those_of_an_unwatched_training(
    tmp_path: Path, collator: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watches: list[Any] = []

    def prepare(trainer: Any) -> None:
        watches.append(
            ng.doctor.watch(trainer, tokenizer=folder_of(FAMILY), renderer=FAMILY, batches=3, show=lambda _: None)
        )

    plain = losses(tmp_path / "plain", lambda _: None, collator)
    assert len(plain) == 4
    assert losses(tmp_path / "watched", prepare, collator) == plain
    judged = collator is by_value
    assert (watches[0].report is not None, watches[0].failure is None) == (judged, judged)
    assert judged or "not judged, and training goes on: UsageError: attention_mask is float" in caplog.text


def test_a_missing_tokenizer_ends_only_a_training_that_is_to_be_stopped(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, by_value)
    watch = ng.doctor.watch(trainer, tokenizer=tmp_path / "gone")
    trainer.train()
    assert (trainer.state.global_step, watch.report) == (4, None)
    trainer = trainer_of(tmp_path, by_value)
    ng.doctor.watch(trainer, tokenizer=tmp_path / "gone", stop_on="error")
    with pytest.raises(NielsError, match="gone"):
        trainer.train()


def test_a_loss_of_the_users_own_stays_and_watches_do_not_end_each_other(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, transformers.default_data_collator)
    calls: list[int] = []
    of_the_class = trainer.compute_loss

    def own(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        return of_the_class(model, inputs, *args, **kwargs)

    trainer.compute_loss = own
    watches = [ng.doctor.watch(trainer, batches=batches, show=lambda _: None) for batches in (1, 3, 2)]
    trainer.train()
    assert [watch.report.rows for watch in watches] == [2, 6, 4]
    assert len(calls) == 4
    ng.doctor.watch(trainer).remove()
    assert trainer.compute_loss is not of_the_class
    alone = trainer_of(tmp_path, by_value)
    alone.compute_loss = own
    ng.doctor.watch(alone).remove()
    assert alone.compute_loss is own


def test_what_show_and_the_loss_raise_comes_out(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, by_value)
    ng.doctor.watch(trainer, show=lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train()


# ---- scripts

HEAD = """
import sys, json, torch
rows = json.load(open(sys.argv[1]))
ids = torch.tensor([row["input_ids"] for row in rows])
labels = torch.tensor([row["labels"] for row in rows])
"""
# As nanoGPT trains: y is x moved by one, and the loss is the loop's own.
LOOP = """
class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(512, 8), torch.nn.Linear(8, 512)
    def forward(self, x):
        return self.head(self.embed(x))
model = GPT()
x, y = ids[:, :-1], labels[:, 1:]
for step in range(3):
    try:
        loss = torch.nn.functional.cross_entropy(model(x).view(-1, 512), y.reshape(-1), ignore_index=-100)
        loss.backward()
    except Exception:
        pass
    open(sys.argv[2], "w").write("trained")
"""
MODEL = """
import transformers
config = transformers.LlamaConfig(vocab_size=512, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                  num_attention_heads=2, num_key_value_heads=2)
if __name__ == "__main__":
    model = transformers.LlamaForCausalLM(config)
    model(input_ids=ids, labels=labels)
    open(sys.argv[2], "w").write("trained")
"""


def script(folder: Path, text: str, given: list[Row]) -> list[str]:
    (folder / "train.py").write_text(textwrap.dedent(text), encoding="utf-8")
    (folder / "rows.json").write_text(json.dumps(given), encoding="utf-8")
    return [str(folder / "train.py"), str(folder / "rows.json"), str(folder / "done")]


@pytest.mark.parametrize("body", [LOOP, MODEL], ids=["loop", "model"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_script_runs_until_its_first_batch(body: str, wrong: bool, tmp_path: Path) -> None:
    given = made_rows()
    for row in given if wrong else ():
        row["labels"] = [token if token != stop_id() else -100 for token in row["input_ids"]]
        row["labels"][3:] = [-100 if t == stop_id() else t for t in row["labels"][3:]]
    call, cross_entropy = torch.nn.Module.__call__, torch.nn.functional.cross_entropy
    report = judge_script(script(tmp_path, HEAD + body, given), tokenizer=folder_of(FAMILY), renderer=FAMILY)
    assert ("user-tokens-trained" in report.rules("error")) == wrong
    assert wrong or report.rules("warning") == []
    assert report.rows == 8
    assert not (tmp_path / "done").exists()
    assert (torch.nn.Module.__call__, torch.nn.functional.cross_entropy) == (call, cross_entropy)


# Pools that libraries do not shut down: their threads wait for work, and Python ends them at its end.
IDLE_POOLS = """
import concurrent.futures
for kind in (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor):
    pool = kind(1)
    pool.submit(abs, 1).result()
    setattr(concurrent.futures, "of_a_library_" + kind.__name__, pool)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no data')", ".py:1: ValueError: no data, before a batch reached a model"),
        ("import sys; sys.exit('no GPU')", "ended with no GPU before a batch"),
        ("import sys; sys.exit(3)", "train.py: ended with exit code 3 before a batch"),
        ("x = 1", "train.py: ended, and no batch with input_ids reached a model"),
        (IDLE_POOLS, "train.py: ended, and no batch with input_ids reached a model"),
    ],
)
def test_scripts_that_train_nothing(body: str, said: str, tmp_path: Path) -> None:
    done = run_cli("doctor", "--script", " ".join(script(tmp_path, body, [])))
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert said in " ".join(done.stderr.split())


CATCHES_ALL = """
while True:
    try:
        for _ in range(3):
            try:
                torch.nn.Module.__call__(model, ids)
            except:
                pass
            finally:
                step = 1
    except BaseException:
        continue
"""
FORKS = """
import os
if os.fork() == 0:
    while True:
        model(ids, labels=labels)
os.wait()
"""
HOSTILE = {
    "catches everything": CATCHES_ALL.replace("(model, ids)", "(model, ids, labels=labels)"),
    "changes the directory": "import os; os.chdir(os.sep); model(ids, labels=labels)",
    "closes its output": "sys.stdout.close(); sys.stderr.close(); model(ids, labels=labels)",
    "turns warnings into errors": "import warnings; warnings.simplefilter('error'); model(ids, labels=labels)",
    "forks": FORKS,
    "trains in a thread": "import threading; t = threading.Thread(target=lambda: model(ids, labels=labels)); t.start()",
    "trains in a thread that begins late": """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.5), model(ids, labels=labels))).start()
""",
    "trains in a thread that another one begins": """
import threading, time
train = lambda: (time.sleep(0.3), model(ids, labels=labels))
threading.Thread(target=lambda: (time.sleep(0.3), threading.Thread(target=train).start())).start()
""",
    "trains in a pool": """
import time
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.5), model(ids, labels=labels)))
""",
}
MODEL_ONLY = """
class Any_(torch.nn.Module):
    def forward(self, input_ids, labels=None):
        return labels
model = Any_()
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_scripts_are_judged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer's path is relative to where the command was called, wherever the script goes."""
    monkeypatch.chdir(Path(folder_of(FAMILY)).parent)
    before = (Path.cwd(), sys.argv, list(sys.path), sys.stdout, sys.stderr, os._exit, sys.gettrace())
    command = script(tmp_path, HEAD + MODEL_ONLY + "print('hello')\n" + HOSTILE[name], made_rows())
    report = judge_script(command, tokenizer=Path(folder_of(FAMILY)).name, renderer=FAMILY)
    print("still here")
    assert (report.rows, report.rules("warning")) == (8, [])
    assert (Path.cwd(), sys.argv, list(sys.path), sys.stdout, sys.stderr, os._exit, sys.gettrace()) == before
    said = capfd.readouterr()
    assert (said.out, "hello" in said.err) == ("still here\n", True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import os; os._exit(0)", r"left by os\._exit\(0\) before a batch"),
        ("import os, sys; os.execvp(sys.executable, ['python', '-c', ''])", r"left by os\.execv\('"),
        ("class Odd(BaseException):\n    def __str__(self): 1 / 0\nraise Odd", r"Odd: a Odd that cannot be shown"),
        ("import sys; sys.setrecursionlimit(200)\ndef f(): f()\nf()", "RecursionError"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_broken_scripts_are_told_in_one_line(body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        judge_script(script(tmp_path, body, []))


def test_targets_that_fit_no_ids_are_told_although_the_script_catches_everything(tmp_path: Path) -> None:
    body = HEAD + MODEL_ONLY + "for _ in range(3):\n    try:\n        model(ids)\n"
    body += "        torch.nn.functional.cross_entropy(torch.zeros(3, 9), torch.zeros(3, dtype=torch.long))\n"
    body += "    except Exception:\n        pass\n"
    with pytest.raises(UsageError, match="3 targets of a loss for 8 rows"):
        judge_script(script(tmp_path, body, made_rows()))


def test_the_command_judges_a_script(tmp_path: Path) -> None:
    command = " ".join(script(tmp_path, HEAD + MODEL, made_rows()))
    options = ("--tokenizer", folder_of(FAMILY), "--renderer", FAMILY, "--json")
    done = run_cli("doctor", "--script", command, *options)
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 8)
    waiting = "import threading\nthreading.Thread(target=threading.Event().wait, name='feeder').start()\nprint('x')\n"
    command = " ".join(script(tmp_path, HEAD + MODEL_ONLY + waiting + "model(ids, labels=labels)", made_rows()))
    done = run_cli("doctor", "--script", command, *options)
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 8)
    assert "feeder still run" in " ".join(done.stderr.split())
    both = run_cli("doctor", "chats.jsonl", "--script", command)
    assert (both.returncode, "one thing at a time" in both.stderr) == (2, True)
    assert run_cli("doctor", "--script", "no.py").returncode == 3
    assert run_cli("doctor", "--script", "'no.py").returncode == 2
