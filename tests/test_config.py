"""The training configuration: every tag, every mistake with its line, and nothing read from outside the file."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.config import TrainingConfig, example_xml, parse_training_config, read_training_config
from niels_gpt.errors import InputError, StorageError, UsageError

NAMES = list(TrainingConfig.model_fields)

# The settings of the document, in another order and with other white space than `example_xml`.
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


def inside(body: str) -> str:
    """`body` as lines 3 and following of a file."""
    return f"<config>\n<training>\n{body}\n</training>\n</config>\n"


def written(config: TrainingConfig) -> str:
    values = {name: value for name, value in config.model_dump().items() if value is not None}
    return inside("\n".join(f"<{name}>{value}</{name}>" for name, value in values.items()))


def refusal(text: str | bytes, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        parse_training_config(text, where="c.xml", **{"strict": True, **more})
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- values


def test_the_documents_example() -> None:
    assert parse_training_config(DOCUMENT) == TrainingConfig(
        pad_token_id=50256, batch_sampling_mode="random", epoch_seed=1337
    )


def test_every_default() -> None:
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
    assert parse_training_config("<training/>") == TrainingConfig(epoch_seed=1337)


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [
        ("token_stream", None, "random"),
        ("token_stream", "random", "random"),
        ("sft_episode", None, "epoch"),
        ("sft_episode", "epoch", "epoch"),
        ("sft_episode", "random", "random"),
    ],
)
def test_sampling_mode(mode: str, given: str | None, expected: str) -> None:
    assert TrainingConfig(dataset_mode=mode, batch_sampling_mode=given).sampling_mode == expected


@st.composite
def configs(draw: st.DrawFn) -> TrainingConfig:
    mode = draw(st.sampled_from(["token_stream", "sft_episode"]))
    some = st.none() | st.integers(1)
    return TrainingConfig(
        dataset_mode=mode,
        batch_sampling_mode=draw(st.sampled_from([None, "random"] + ["epoch"] * (mode == "sft_episode"))),
        epoch_shuffle=draw(st.booleans()),
        epoch_drop_last=draw(st.booleans()),
        epoch_seed=draw(st.integers(0)),
        pad_token_id=draw(st.none() | st.integers(0)),
        episode_min_tokens=draw(st.integers(1)),
        batch_size=draw(some),
        block_size=draw(some),
        device=draw(st.sampled_from(["cpu", "cuda", "cuda:7", "mps"])),
        use_loss_mask=draw(st.none() | st.booleans()),
    )


@given(config=configs())
def test_what_is_written_reads_back_equal(config: TrainingConfig) -> None:
    text = written(config)
    assert parse_training_config(text) == config
    assert parse_training_config(text.encode()) == config


@given(config=configs(), given=configs(), names=st.sets(st.sampled_from(NAMES)))
def test_overrides_win(config: TrainingConfig, given: TrainingConfig, names: set[str]) -> None:
    overrides = {name: getattr(given, name) for name in names}
    try:
        expected = TrainingConfig(**{**config.model_dump(), **overrides})
    except UsageError:
        with pytest.raises(UsageError, match=r"<string>:\d+: batch_sampling_mode is 'epoch'"):
            parse_training_config(written(config), **overrides)
    else:
        assert parse_training_config(written(config), **overrides) == expected


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "\n\ttRuE "])
def test_ways_to_write_true(text: str) -> None:
    assert parse_training_config(inside(f"<use_loss_mask>{text}</use_loss_mask>")).use_loss_mask is True


@pytest.mark.parametrize("text", ["false", "False", "FALSE", "0"])
def test_ways_to_write_false(text: str) -> None:
    assert parse_training_config(inside(f"<epoch_shuffle>{text}</epoch_shuffle>")).epoch_shuffle is False


def test_foreign_tags_are_left_alone_with_all_they_contain() -> None:
    old = "<old>text<training><batch_size>x</batch_size></training></old>"
    body = f"<lr unit='x'>0.1</lr>{old}<lr/><epoch_seed>5</epoch_seed>"
    config = parse_training_config(f"<c><old><training/></old>{inside(body)}<old/></c>", foreign=("lr", "old"))
    assert config == TrainingConfig(epoch_seed=5)


def test_a_field_may_be_declared_foreign() -> None:
    assert parse_training_config(inside("<device>two of them</device>"), foreign={"device"}) == TrainingConfig(
        epoch_seed=1337
    )


def test_attributes_on_training_may_be_foreign_or_xmls_own() -> None:
    text = '<training xmlns="urn:a" xml:lang="en" id="7"><epoch_seed>3</epoch_seed></training>'
    assert parse_training_config(text, foreign=["id"]) == TrainingConfig(epoch_seed=3)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "no-such-encoding"])
def test_it_is_utf8_whatever_the_declaration_says(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n<!-- ł😀 -->{inside("<epoch_seed>3</epoch_seed>")}'
    assert parse_training_config(text) == parse_training_config(text.encode()) == TrainingConfig(epoch_seed=3)
    assert parse_training_config(b"\xef\xbb\xbf" + text.encode()) == TrainingConfig(epoch_seed=3)


# ---- the example file


def test_the_example_reads_back() -> None:
    assert parse_training_config(example_xml()) == TrainingConfig(batch_size=32, block_size=512, epoch_seed=1337)


def test_the_example_shows_every_tag_and_each_works() -> None:
    text = example_xml()
    commented = [name for name in NAMES if f"<!-- <{name}>" in text]
    assert commented == ["batch_sampling_mode", "pad_token_id", "use_loss_mask"]
    for name in NAMES:
        assert text.count(f"</{name}>") == 1
        text = text.replace(f"<!-- <{name}>", f"<{name}>").replace(f"</{name}> -->", f"</{name}>")
    config = parse_training_config(text)
    assert (config.batch_sampling_mode, config.pad_token_id, config.use_loss_mask) == ("random", 50256, True)


# ---- wrong keywords


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dataset_mode", "sft_epsiode", "expected 'token_stream' or 'sft_episode'"),
        ("batch_sampling_mode", "Epoch", "expected 'random' or 'epoch'"),
        ("epoch_shuffle", "true", "expected a valid boolean"),
        ("epoch_seed", -1, "expected greater than or equal to 0"),
        ("pad_token_id", -1, "expected greater than or equal to 0"),
        ("episode_min_tokens", 0, "expected greater than or equal to 1"),
        ("batch_size", 0, "expected greater than or equal to 1"),
        ("block_size", 0, "expected greater than or equal to 1"),
        ("device", "", "expected match pattern"),
    ],
)
def test_wrong_keywords(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainingConfig(**{name: value})
    assert str(caught.value).startswith(f"TrainingConfig: {name} is {value!r}; {expected}")
    with pytest.raises(UsageError) as caught:
        parse_training_config(example_xml(), **{name: value})
    assert str(caught.value).startswith(f"TrainingConfig: {name} is {value!r}; {expected}")


def test_token_stream_has_no_epochs() -> None:
    with pytest.raises(UsageError, match="epochs need episodes: set dataset_mode to sft_episode"):
        TrainingConfig(batch_sampling_mode="epoch")


def test_unknown_override() -> None:
    with pytest.raises(UsageError, match=r"'bacth_size' is no field \(did you mean batch_size\?\); expected one of"):
        parse_training_config("<training/>", bacth_size=3)


@pytest.mark.parametrize("foreign", ["lr", ["lr", "training"]])
def test_wrong_foreign(foreign: Any) -> None:
    with pytest.raises(UsageError, match="foreign"):
        parse_training_config("<training/>", foreign=foreign)


# ---- wrong files


@pytest.mark.parametrize(
    ("body", "line", "expected"),
    [
        (
            "<epoch_sede>1</epoch_sede>",
            3,
            "<epoch_sede> is no tag of <training> (did you mean epoch_seed?); ",
        ),
        ("<!--\n-->\n<lr>1</lr>", 5, "pass foreign=('lr',)"),
        ("\n<batch_size></batch_size>", 4, "<batch_size> is empty; expected a value; take it out"),
        ("<pad_token_id/>", 3, "take it out for the default"),
        ("<dataset_mode> \n </dataset_mode>", 3, "<dataset_mode> is empty"),
        ("<batch_size>\n\nzwölf\n</batch_size>", 3, "<batch_size> is 'zwölf'; expected a valid integer"),
        ("<batch_size>0</batch_size>", 3, "<batch_size> is '0'; expected greater than or equal to 1"),
        ("<batch_size>1_000</batch_size>", 3, "is '1_000'"),
        ("<batch_size>1e3</batch_size>", 3, "is '1e3'"),
        ("<epoch_shuffle>yes</epoch_shuffle>", 3, "<epoch_shuffle> is 'yes'; expected a valid boolean"),
        ("<dataset_mode>sft-episode</dataset_mode>", 3, "expected 'token_stream' or 'sft_episode'"),
        ("<device>the gpu</device>", 3, "expected match pattern"),
        ("<epoch_seed>1</epoch_seed>\n\n<epoch_seed>1</epoch_seed>", 5, "<epoch_seed> a second time"),
        ("<epoch_seed>\n<b>1</b></epoch_seed>", 4, "<b> inside <epoch_seed>; expected only a value"),
        (
            '<epoch_seed value="3"/>',
            3,
            "the attribute 'value'; expected none; write the value between the tags",
        ),
        ("<epoch_seed>1</epoch_seed>\nstray", 2, "text 'stray' in <training>"),
        ("\n<training/>", 4, "a second <training>, the first is on line 2"),
        (
            "\n<batch_sampling_mode>epoch</batch_sampling_mode>",
            2,
            "batch_sampling_mode is 'epoch' while",
        ),
    ],
)
def test_what_is_refused_in_training(body: str, line: int, expected: str) -> None:
    text = inside(body)
    message = refusal(text)
    assert message.startswith(f"c.xml:{line}: ")
    assert expected in message
    assert refusal(text.replace("\n", "\r\n")) == message


def test_an_attribute_on_training_is_refused() -> None:
    assert "c.xml:2: <training> has the attribute 'batch_size'" in refusal("<a>\n<training batch_size='3'/></a>")


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("<config><train/></config>", "", "no <training>; expected one"),
        ("<a>\n<training>\n</a>", "3:3: ", "mismatched tag; expected well-formed XML"),
        ("<training/>\n  junk", "2:3: ", "junk after document element"),
        ("dataset_mode: sft_episode", "1:1: ", "syntax error"),
        (inside("<device>a & b</device>"), "3:12: ", "not well-formed"),
        ("", "", "the file is empty"),
        (b"<training>\n\n\xe9</training>", "3: ", "invalid UTF-8 at byte 12 (0xe9); expected text; save"),
        ("<training/>".encode("utf-16"), "1: ", "invalid UTF-8 at byte 0"),
    ],
)
def test_what_is_no_configuration_at_all(text: str | bytes, place: str, expected: str) -> None:
    message = refusal(text)
    assert message.startswith(f"c.xml:{place or ' '}")
    assert expected in message


def test_a_mode_from_an_override_is_the_calls_mistake() -> None:
    text = inside("<dataset_mode>sft_episode</dataset_mode>\n<batch_sampling_mode>epoch</batch_sampling_mode>")
    with pytest.raises(UsageError, match=r"c\.xml:2: batch_sampling_mode is 'epoch'"):
        parse_training_config(text, where="c.xml", dataset_mode="token_stream")


@given(junk=st.binary(max_size=60) | st.text(max_size=60))
def test_junk_is_refused_by_our_own_errors(junk: str | bytes) -> None:
    refusal(junk)


@given(junk=st.lists(st.sampled_from([*"<>/&;![]-?=' \n\0é", "<training>", "<device>", "</device>"])).map("".join))
def test_junk_in_training_is_refused_or_read(junk: str) -> None:
    with suppress(InputError):  # any other exception fails the test
        assert isinstance(parse_training_config(inside(junk)), TrainingConfig)


def test_deep_nesting() -> None:
    deep = "<x>" * 100_000 + inside("<epoch_seed>4</epoch_seed>") + "</x>" * 100_000
    assert parse_training_config(deep) == TrainingConfig(epoch_seed=4)


# ---- attacks


@pytest.mark.parametrize(
    "doctype", ["<!DOCTYPE config>", "<!DOCTYPE a SYSTEM 'file:///etc/passwd'>", "<!DOCTYPE a [<!ENTITY b 'cpu'>]>"]
)
def test_a_dtd_is_refused(doctype: str) -> None:
    message = refusal(f"<?xml version='1.0'?>\n{doctype}{inside('')}")
    assert message.startswith("c.xml:2: a DTD (<!DOCTYPE ...>); expected none")


def test_a_billion_laughs_are_refused() -> None:
    """Expanded, this is 10**30 characters: the test would never end, whatever its time limit."""
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">\n' for n in range(1, 31))
    bomb = f'<!DOCTYPE a [\n<!ENTITY l0 "ha">\n{entities}]>\n{inside("<device>&l30;</device>")}'
    assert "a DTD" in refusal(bomb)


@pytest.mark.parametrize("kind", ["<!ENTITY e SYSTEM '{}'>", "<!ENTITY % e SYSTEM '{}'> %e;"])
def test_no_other_file_is_ever_read(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    file = tmp_path / "c.xml"
    file.write_text(f"<!DOCTYPE a [{kind.format(secret.as_uri())}]>\n{inside('<device>&e;</device>')}")
    with pytest.raises(InputError) as caught:
        read_training_config(file)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
    assert f"{file}:1: a DTD" in str(caught.value)


# ---- files


def test_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.xml"
    file.write_text(DOCUMENT)
    expected = parse_training_config(DOCUMENT, batch_size=4)
    assert read_training_config(file, batch_size=4) == read_training_config(str(file), batch_size=4) == expected


def test_errors_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.xml"
    file.write_text(inside("<lr>1</lr>"))
    with pytest.raises(InputError, match=rf"^{file}:3: <lr> is no tag"):
        read_training_config(file, strict=True)
    assert read_training_config(file, foreign=("lr",)) == TrainingConfig(epoch_seed=1337)


REAL = """
    <learning_rate>3e-4</learning_rate>
    <max_iters schedule="cosine">5000</max_iters>
    <dataset_mode>sft_episode</dataset_mode>
    <optimizer><name>adamw</name><betas>0.9 0.95</betas></optimizer>
    <epoch_sede>7</epoch_sede>
    <learning_rate>1e-4</learning_rate>
    <batch_size>4</batch_size>
"""


def test_a_real_configuration_has_other_tags_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The whole program's settings stand in one `<training>`: ours are read, the log names the rest once."""
    file = tmp_path / "c.xml"
    file.write_text(inside(REAL))
    config = read_training_config(file)
    assert config == TrainingConfig(dataset_mode="sft_episode", batch_size=4, epoch_seed=1337)
    (record,) = caplog.records
    told = record.getMessage()
    assert record.levelname == "WARNING"
    for tag in ("<learning_rate> (line ", "<max_iters>", "<optimizer>", "<epoch_sede> (line "):
        assert told.count(tag) == 1
    assert "(did you mean epoch_seed?)" in told
    assert "<name>" not in told  # what other tags contain is not ours
    with pytest.raises(InputError, match="<learning_rate> is no tag of <training>"):
        read_training_config(file, strict=True)
    caplog.clear()
    read_training_config(file, foreign=("learning_rate", "max_iters", "optimizer", "epoch_sede"), strict=True)
    assert not caplog.records


def test_our_own_tags_are_checked_beside_others(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="batch_size"):
        parse_training_config(inside("<lr>1</lr><batch_size>no</batch_size>"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; check the path"):
        read_training_config(tmp_path / "absent.xml")
    with pytest.raises(InputError, match="this is a directory; expected an XML file"):
        read_training_config(tmp_path)
    (tmp_path / "empty.xml").touch()
    with pytest.raises(InputError, match=r"empty\.xml: the file is empty"):
        read_training_config(tmp_path / "empty.xml")
    with pytest.raises(StorageError, match="File name too long"):
        read_training_config("x" * 5000)


# ---- without defusedxml


def test_a_training_job_needs_no_xml_library() -> None:
    code = "import sys; sys.modules['defusedxml'] = None; import niels_gpt.config as c; c.example_xml()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_reading_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "defusedxml.ElementTree", None)
    with pytest.raises(UsageError, match="pip install defusedxml"):
        parse_training_config("<training/>")
