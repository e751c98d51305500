"""The training configuration: every tag, every mistake named, and nothing read from outside the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.config import TrainingConfig, read_training_config
from niels_gpt.errors import InputError, StorageError, UsageError

# The settings of document 002, in another order and with other white space.
DOCUMENT = """<?xml version='1.0'?>
<experiment name="sft">
  <model><layers>12</layers><dataset_mode>not ours</dataset_mode></model>
  <training>
    <episode_min_tokens>2</episode_min_tokens> <!-- drop what is shorter -->
    <pad_token_id> 50256
    </pad_token_id>
    <epoch_seed>1337</epoch_seed><epoch_drop_last>true</epoch_drop_last>
    <epoch_shuffle>TRUE</epoch_shuffle>
    <batch_sampling_mode>random</batch_sampling_mode>
    <dataset_mode>token_stream</dataset_mode>
  </training>
</experiment>
"""


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    return tmp_path / "c.xml"


def inside(body: str) -> str:
    return f"<config>\n<training>\n{body}\n</training>\n</config>\n"


def refusal(file: Path, text: str | bytes) -> str:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as caught:
        read_training_config(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message


def test_the_documents_example(file: Path) -> None:
    file.write_text(DOCUMENT)
    expected = TrainingConfig(pad_token_id=50256, batch_sampling_mode="random", epoch_seed=1337)
    assert read_training_config(file) == read_training_config(str(file)) == expected


def test_every_default(file: Path) -> None:
    assert TrainingConfig().model_dump() == {
        "dataset_mode": "token_stream",
        "batch_sampling_mode": None,
        "epoch_shuffle": True,
        "epoch_drop_last": True,
        "epoch_seed": 42,
        "pad_token_id": None,
        "episode_min_tokens": 2,
        "batch_size": None,
        "block_size": None,
        "device": "cpu",
        "use_loss_mask": None,
    }
    file.write_text("<training/>")
    assert read_training_config(file) == TrainingConfig(epoch_seed=1337)


def test_sampling_follows_the_mode_unless_it_is_given() -> None:
    for mode, chosen, expected in (
        ("token_stream", None, "random"),
        ("token_stream", "random", "random"),
        ("sft_episode", None, "epoch"),
        ("sft_episode", "epoch", "epoch"),
        ("sft_episode", "random", "random"),
    ):
        assert TrainingConfig(dataset_mode=mode, batch_sampling_mode=chosen).sampling_mode == expected
    with pytest.raises(UsageError, match="epochs need episodes: set dataset_mode to sft_episode"):
        TrainingConfig(batch_sampling_mode="epoch")


VALUES = {
    "dataset_mode": st.just("sft_episode"),
    "batch_sampling_mode": st.sampled_from(["epoch", "random"]),
    "epoch_shuffle": st.booleans(),
    "epoch_drop_last": st.booleans(),
    "epoch_seed": st.integers(0),
    "pad_token_id": st.integers(0),
    "episode_min_tokens": st.integers(1),
    "batch_size": st.integers(1),
    "block_size": st.integers(1),
    "device": st.sampled_from(["cpu", "cuda", "cuda:7", "mps"]),
    "use_loss_mask": st.booleans(),
}


@given(values=st.fixed_dictionaries({}, optional=VALUES), overrides=st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_written_is_read_and_overrides_win(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], overrides: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("config") / "c.xml"
    values, overrides = {"dataset_mode": "sft_episode", **values}, dict(overrides)
    file.write_text(inside("\n".join(f"<{name}>{value}</{name}>" for name, value in values.items())))
    assert read_training_config(file, **overrides) == TrainingConfig(**{"epoch_seed": 1337, **values, **overrides})


def test_truth_values_in_every_case_and_as_numbers(file: Path) -> None:
    for text, expected in (("true", True), ("TRUE", True), ("1", True), ("\n\tfAlse ", False), ("0", False)):
        file.write_text(inside(f"<use_loss_mask>{text}</use_loss_mask>"))
        assert read_training_config(file).use_loss_mask is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dataset_mode", "sft_epsiode", "expected 'token_stream' or 'sft_episode'"),
        ("batch_sampling_mode", "Epoch", "expected 'random' or 'epoch'"),
        ("epoch_shuffle", "true", "expected a valid boolean"),
        ("epoch_seed", -1, "expected greater than or equal to 0"),
        ("pad_token_id", -1, "expected greater than or equal to 0"),
        ("episode_min_tokens", 0, "expected greater than or equal to 1"),
        ("batch_size", True, "expected a valid integer"),
        ("block_size", 0, "expected greater than or equal to 1"),
        ("device", "", "expected match pattern"),
    ],
)
def test_wrong_keywords(file: Path, name: str, value: Any, expected: str) -> None:
    file.write_text(DOCUMENT)
    for call in (lambda: TrainingConfig(**{name: value}), lambda: read_training_config(file, **{name: value})):
        with pytest.raises(UsageError) as caught:
            call()
        assert f"TrainingConfig: {name} is {value!r}; {expected}" in str(caught.value)


def test_unknown_keyword(file: Path) -> None:
    with pytest.raises(UsageError, match=r"'bacth_size' is no field \(did you mean batch_size\?\); expected one of"):
        TrainingConfig(bacth_size=3)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<batch_size></batch_size>", "<batch_size> holds no plain value; write it between the tags"),
        ("<dataset_mode> \n </dataset_mode>", "<dataset_mode> holds no plain value"),
        ('<epoch_seed value="3"/>', "<epoch_seed> holds no plain value"),
        ("<epoch_seed>\n<b>1</b></epoch_seed>", "<epoch_seed> holds no plain value"),
        ("<batch_size>\n\nzwölf\n</batch_size>", "batch_size is 'zwölf'; expected a valid integer"),
        ("<batch_size>0</batch_size>", "batch_size is 0; expected greater than or equal to 1"),
        ("<batch_size>1_000</batch_size>", "is '1_000'"),
        ("<batch_size>1e3</batch_size>", "is '1e3'"),
        ("<epoch_shuffle>yes</epoch_shuffle>", "epoch_shuffle is 'yes'; expected a valid boolean"),
        ("<dataset_mode>sft-episode</dataset_mode>", "expected 'token_stream' or 'sft_episode'"),
        ("<device>the gpu</device>", "expected match pattern"),
        ("<epoch_seed>1</epoch_seed>\n\n<epoch_seed>1</epoch_seed>", "<epoch_seed> a second time"),
        ("<training/>", "2 elements <training>; expected one"),
        ("<batch_sampling_mode>epoch</batch_sampling_mode>", "batch_sampling_mode is 'epoch' while"),
    ],
)
def test_what_is_refused_in_training(file: Path, body: str, expected: str) -> None:
    assert expected in refusal(file, inside(body))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<config><train/></config>", "0 elements <training>; expected one"),
        ("<a>\n<training>\n</a>", "mismatched tag: line 3, column 2; expected well-formed XML"),
        ("dataset_mode: sft_episode", "syntax error"),
        ("", "no element found"),
        (b"<training>\n\n\xe9</training>", "invalid UTF-8 at byte 12 (0xe9); expected text; save"),
        ("<!DOCTYPE config><training/>", "a DTD (<!DOCTYPE ...>); expected none"),
        # Expanded, this is 10**30 characters: the test would never end, whatever its time limit.
        (
            '<!DOCTYPE a [<!ENTITY l0 "ha">'
            + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 31))
            + f"]>{inside('<device>&l30;</device>')}",
            "a DTD",
        ),
    ],
)
def test_what_is_no_configuration_at_all(file: Path, text: str | bytes, expected: str) -> None:
    assert expected in refusal(file, text)


@given(junk=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_junk_is_refused_by_our_own_errors(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    refusal(tmp_path_factory.mktemp("junk") / "c.xml", junk)


@pytest.mark.parametrize("kind", ["<!ENTITY e SYSTEM '{}'>", "<!ENTITY % e SYSTEM '{}'> %e;"])
def test_no_other_file_is_ever_read(tmp_path: Path, file: Path, kind: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    message = refusal(file, f"<!DOCTYPE a [{kind.format(secret.as_uri())}]>\n{inside('<device>&e;</device>')}")
    assert "hunter2" not in message
    assert "a DTD" in message


def test_an_overriding_mode_that_contradicts_is_the_calls_mistake(file: Path) -> None:
    file.write_text(inside("<batch_sampling_mode>epoch</batch_sampling_mode>"))
    assert read_training_config(file, dataset_mode="sft_episode").sampling_mode == "epoch"
    with pytest.raises(UsageError, match=r"c\.xml: batch_sampling_mode is 'epoch'"):
        read_training_config(file, dataset_mode="token_stream")


def test_other_tags_are_named_in_one_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The whole program's settings stand in one `<training>`: ours are read, the log names the rest once."""
    other = "<optimizer><name>adamw</name></optimizer><lr unit='x'>3e-4</lr><lr>1e-4</lr><epoch_sede>7</epoch_sede>"
    file.write_text(inside(f"{other}<dataset_mode>sft_episode</dataset_mode><batch_size>4</batch_size>"))
    assert read_training_config(file) == TrainingConfig(dataset_mode="sft_episode", batch_size=4, epoch_seed=1337)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("<optimizer>, <lr>, <epoch_sede> (did you mean epoch_seed?)")


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.xml", tmp_path):
        with pytest.raises(InputError, match="no such file; expected an XML file"):
            read_training_config(path)
    with pytest.raises(StorageError, match="File name too long"):
        read_training_config("x" * 5000)


def test_only_reading_needs_an_xml_library(file: Path) -> None:
    file.write_text("<training/>")
    code = (
        "import sys; sys.modules['defusedxml'] = None\n"
        "import niels_gpt.config as c\n"
        "c.TrainingConfig(batch_size=1)\n"
        f"try: c.read_training_config({str(file)!r})\n"
        "except c.UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert "pip install defusedxml" in done.stdout
