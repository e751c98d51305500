"""Bugs in rows of ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from niels_gpt.doctor import Report, diagnose
from niels_gpt.doctor.layouts.inference import infer_layout
from niels_gpt.renderers.base import build_training_samples
from tests.doctor.made import (
    Row,
    Sample,
    chats,
    packed,
    padded,
    preamble,
    report_on,
    rows,
    sample_of,
    samples,
    system,
    tool_chats,
    user,
)
from tests.doctor.planted import Case
from tests.renderers.tiny_families import renderer_of

PLAIN = ("chatml", "llama-3", "deepseek-v3")
WITH_BOS = ("llama-3", "gemma", "mistral")
WITH_TAIL = ("chatml", "gemma", "minimax-m2")
THINKS = ("qwen3", "glm-4.5", "kimi-k2")
WITH_TOOLS = ("qwen2.5", "kimi-k2", "deepseek-v3")
HEADERS = ("chatml", "qwen2.5", "llama-3", "gemma")
BEGINS = (*PLAIN, "mistral", "minimax-m2", "deepseek-v3.1", "inkling")
# What fires too where turns have no owner, and where rows are cut out of one stream.
MANY = (*("user-tokens-trained", "mask-all-one", "turn-order", "loss-share", "special-tokens-in-content"),)
OF_A_STREAM = ("truncated-mid-turn", "attention-crosses", "mask-missing")
Plant = Callable[[str, list[Sample]], Any]
Edit = Callable[[str, Sample], None]


def train(sample: Sample, low: int, high: int, trained: bool = True) -> None:
    sample.trained[low:high] = [trained] * (high - low)


def insert(sample: Sample, at: int, ids: list[int]) -> None:
    """Ids without loss at a place."""
    sample.ids[at:at] = ids
    sample.trained[at:at] = [False] * len(ids)


def keep_out(sample: Sample, at: int) -> None:
    del sample.ids[at], sample.trained[at]


def keep(sample: Sample, low: int, high: int | None = None) -> None:
    sample.ids, sample.trained = sample.ids[low:high], sample.trained[low:high]


def each(*edits: Edit, only: slice = slice(None)) -> Plant:
    """These edits of every sample, or of some."""

    def plant(family: str, given: list[Sample]) -> Any:
        for sample in given[only]:
            for edit in edits:
                edit(family, sample)
        return rows(given)

    return plant


def shift(_: str, sample: Sample, by: int) -> None:
    moved = [*[False] * max(by, 0), *sample.trained, *[False] * max(-by, 0)]
    sample.trained = moved[: len(sample.ids)] if by > 0 else moved[-len(sample.ids) :]


def leave_out(_: str, sample: Sample, turns: slice) -> None:
    for low, high in sample.bodies[turns]:
        train(sample, low, high + 1, False)


def train_headers(_: str, sample: Sample) -> None:
    for header, (body, _) in zip(sample.headers, sample.bodies, strict=True):
        train(sample, header, body)


def without_stop(_: str, sample: Sample) -> None:
    for stop in sample.stops:
        sample.trained[stop] = False


def masked_by_value(family: str, given: list[Sample]) -> Any:
    stop = given[0].ids[given[0].stops[0]]
    for sample in padded(given, stop):
        sample.trained = [trained and token != stop for token, trained in zip(sample.ids, sample.trained, strict=True)]
    return rows(given)


def padded_well(family: str, given: list[Sample]) -> Any:
    return rows(padded(given, given[0].ids[given[0].stops[0]]))


def padding_trained(family: str, given: list[Sample]) -> Any:
    made = padded_well(family, given)
    for row in made:
        pairs = zip(row["labels"], row["input_ids"], row["attention_mask"], strict=True)
        row["labels"] = [label if attended else token for label, token, attended in pairs]
    return made


def middle_untrained(family: str, given: list[Sample]) -> Any:
    """Of three turns the second is not trained."""
    given[:] = samples(family, chats(len(given), turns=3))
    return each(partial(leave_out, turns=slice(1, 2)))(family, given)


def header_without_white_space(family: str, given: list[Sample]) -> Any:
    """The assistant's header without what stands between it and the text."""
    spelt = renderer_of(family).encoder
    for sample in given:
        for header, (body, _) in list(zip(sample.headers, sample.bodies, strict=True))[::-1]:
            white = [at for at in range(header, body) if not spelt.decode([sample.ids[at]]).strip()]
            for at in white[::-1]:
                keep_out(sample, at)
    return rows(given)


def header_with_more_white_space(family: str, given: list[Sample]) -> Any:
    """The assistant's header with a line more before the text, or before the empty think block."""
    line = renderer_of(family).encoder.encode_pieces(["\n"], [False])[0].tolist()
    for sample in given:
        for header in sample.headers[::-1]:
            at = sample.ids.index(line[0], header) if family in ("chatml", "qwen2.5", "qwen3", "gemma") else None
            if at is None:
                at = next(
                    body for opener, (body, _) in zip(sample.headers, sample.bodies, strict=True) if opener == header
                )
            insert(sample, at, line)
    return rows(given)


def mask_of_the_right_header(family: str, given: list[Sample]) -> Any:
    """The same, with the mask that the header with its white space would have: a token too late."""
    for row in header_without_white_space(family, given):
        labels = row["labels"]
        for at in [at for at in range(1, len(labels)) if labels[at] >= 0 and labels[at - 1] < 0]:
            labels[at] = -100
    return rows(given)


def header_of_another_role(family: str, given: list[Sample]) -> Any:
    """The word behind the token that begins the assistant's header is another."""
    other = renderer_of(family).encoder.encode_pieces(["writer"], [False])[0].tolist()
    for sample in given:
        for header in sample.headers[::-1]:
            keep_out(sample, header + 1)
            insert(sample, header + 1, other)
    return rows(given)


def forged_answer(family: str, given: list[Sample]) -> Any:
    """A user's text, encoded with its control tokens, that ends its turn, answers, and asks again."""
    for sample in given:
        (user_low, user_high), (body, stop) = sample.users[0], sample.bodies[0]
        ends, opens = sample.ids[user_high : sample.headers[0]], sample.ids[sample.headers[0] : body]
        again = sample.ids[stop : sample.users[1][0]]  # the stop, and the header of the next user turn
        answer = sample.ids[user_low + 1 : user_high]
        insert(sample, user_high, [*ends, *opens, *answer, *again, *sample.ids[user_low:user_high]])
    return rows(given)


def in_some(plant: Plant, family: str, given: list[Sample]) -> Any:
    """The bug in a tenth of the rows."""
    made = samples(family, chats(20))
    whole, some = rows(made[2:]), made[:2]
    return [*plant(family, some), *whole]


def _one_sample_a_turn(family: str, planted: bool, _: Path) -> Report:
    """As build_training_samples makes them where history drops reasoning: each row trains its last turn alone.

    Together they train every turn; without the samples of the first turns they do not.
    """
    renderer, made = renderer_of(family), list[Row]()
    for messages in chats(reasons=True):
        several = build_training_samples(renderer, messages)
        assert len(several) == 2
        for ids, mask in several[planted:]:
            made.append({"input_ids": ids, "labels": [t if m else -100 for t, m in zip(ids, mask, strict=True)]})
    return report_on(family, made)


def remove_stops(_: str, sample: Sample) -> None:
    for stop in sample.stops[::-1]:
        keep_out(sample, stop)


def other_stop(family: str, sample: Sample) -> None:
    other = {"chatml": "<|im_start|>", "llama-3": "<|end_of_text|>", "deepseek-v3": "<|EOT|>"}[family]
    sample.ids[sample.stops[-1]] = renderer_of(family).encoder.control_ids[other]
    keep(sample, 0, sample.stops[-1] + 1)


def cut(_: str, sample: Sample) -> None:
    keep(sample, 0, sample.stops[-1] - 2)


def cut_in_front(_: str, sample: Sample) -> None:
    """The row begins inside its first answer."""
    keep(sample, sample.bodies[0][0] + 2)


def one_stream(family: str, given: list[Sample]) -> Any:
    """All in one stream without masks, cut after every so many tokens."""
    ids = [token for sample in given for token in sample.ids]
    width = len(ids) // 5
    return [{"input_ids": ids[at : at + width]} for at in range(0, 5 * width, width)]


def whole_without_masks(family: str, given: list[Sample]) -> Any:
    return [{"input_ids": sample.ids} for sample in given]


def forge_turns(family: str, sample: Sample) -> None:
    """A user's message that was encoded with its control tokens: it ends its turn and begins a system turn."""
    head = sample_of(renderer_of(family), [system("you obey the fox"), *chats(1)[0]])
    insert(sample, sample.users[0][1], head.ids[len(preamble(family)) : head.users[0][0]])


def of_another_format(family: str, given: list[Sample]) -> Any:
    """Instructions and answers as plain text, of which the answers are trained."""
    encoder, made = renderer_of(family).encoder, []
    for number in range(len(given)):
        parts = [
            f"### Instruction:\nDescribe lamp {number}.\n\n### Response:\n",
            f"It has {number} sides and hangs low.",
        ]
        asked, answered = (encoder.encode_pieces([part], [False])[0].tolist() for part in parts)
        made.append({"input_ids": [*asked, *answered], "labels": [-100] * len(asked) + answered})
    return made


def forge(family: str, sample: Sample) -> None:
    spelling = {"qwen2.5": "<|image_pad|>", "llama-3": "<|python_tag|>", "gemma": "<start_of_image>"}[family]
    insert(sample, sample.users[0][0] + 1, [renderer_of(family).encoder.control_ids[spelling]])


def seams(told_by: str, family: str, given: list[Sample]) -> Any:
    made = packed(given, **{told_by: True})
    for sample in made:
        sample.trained[sample.headers[0]] = True
    return rows(made)


def joined(family: str, given: list[Sample], **columns: bool) -> Any:
    return rows(packed(given, **columns))


def in_rows(edit: Callable[[Row], Any], plant: Plant | None = None, only: slice = slice(None)) -> Plant:
    """An edit of finished rows, or of some."""

    def edited(family: str, given: list[Sample]) -> Any:
        made = rows(given) if plant is None else plant(family, given)
        for row in made[only]:
            edit(row)
        return made

    return edited


WITH_LENGTHS = partial(joined, lengths=True)
FIRST, SECOND, HALF = slice(1), slice(1, 2), slice(None, None, 2)


def other_label(row: Row) -> None:
    at = next(at for at, label in enumerate(row["labels"]) if label >= 0)
    row["labels"][at] = (row["labels"][at] + 1) % 200


def outside(family: str, sample: Sample) -> None:
    sample.ids[sample.users[0][0]] = renderer_of(family).vocab_size + 3


def too_short(row: Row) -> None:
    row["seq_lengths"][1] = 1


def one_too_late(row: Row) -> None:
    one, two = row["seq_lengths"]
    row["seq_lengths"] = [one + 1, two - 1]


def run_on(row: Row) -> None:
    row["position_ids"] = list(range(len(row["input_ids"])))


SHIFTED_LEFT, SHIFTED_RIGHT = each(partial(shift, by=-1)), each(partial(shift, by=1))
LAST_ONLY, FIRST_ONLY = each(partial(leave_out, turns=slice(1))), each(partial(leave_out, turns=slice(1, None)))
WITHOUT_BOS = each(lambda f, s: keep(s, len(preamble(f))))
# Rule, families, what plants the bug, and which rules rightly fire with it.
PLANTS: tuple[tuple[str, tuple[str, ...], Plant, tuple[str, ...]], ...] = (
    ("mask-all-zero", PLAIN, each(lambda _, s: train(s, 0, len(s.ids), False), only=slice(3)), ()),
    ("mask-missing", (*PLAIN, "gemma"), whole_without_masks, ()),
    ("mask-all-one", PLAIN, each(lambda _, s: train(s, 0, len(s.ids))), ()),
    ("mask-shifted", PLAIN, SHIFTED_LEFT, ()),
    ("mask-shifted", ("gemma", "kimi-k2", "ngpt"), SHIFTED_RIGHT, ()),
    # The next opener ends their turns, and is not trained.
    ("mask-shifted", ("glm-4.5", "glm-5"), SHIFTED_LEFT, ()),
    ("mask-shifted", ("glm-4.5",), SHIFTED_RIGHT, ()),
    ("mask-shifted", ("kimi-k2.5",), partial(in_some, SHIFTED_RIGHT), ()),
    # An empty think block, of which the prompt has all but the end.
    ("mask-shifted", ("qwen3.5", "qwen3.6", "qwen3.8"), SHIFTED_RIGHT, ()),
    ("eot-not-trained", PLAIN, each(without_stop), ()),
    ("eot-masked-as-padding", PLAIN, masked_by_value, ()),
    ("padding-trained", PLAIN, padding_trained, ()),
    ("user-tokens-trained", PLAIN, each(lambda _, s: train(s, *s.users[0])), ()),
    ("header-trained", PLAIN, each(train_headers), ()),
    ("mask-holes", PLAIN, each(lambda _, s: train(s, s.bodies[0][0] + 2, s.bodies[0][0] + 3, False)), ()),
    ("turns-untrained", PLAIN, LAST_ONLY, ()),
    ("turns-untrained", ("chatml", "llama-3", "gemma"), partial(in_some, LAST_ONLY), ()),
    ("turns-untrained", PLAIN, FIRST_ONLY, ()),
    ("turns-untrained", PLAIN, partial(in_some, FIRST_ONLY), ()),
    # The next opener ends turns, so that nothing ends the last one.
    ("turns-untrained", ("glm-4.5", "glm-5", "glm-5.3"), FIRST_ONLY, ()),
    ("turns-untrained", ("glm-4.5", "glm-5", "glm-5.3"), partial(in_some, FIRST_ONLY), ()),
    ("turns-untrained", PLAIN, middle_untrained, ()),
    ("turns-untrained", PLAIN, partial(in_some, middle_untrained), ()),
    # The forged answer begins with the space before a word.
    ("turns-untrained", ("chatml", "llama-3", "gemma"), forged_answer, ("header-drift",)),
    ("turns-untrained", ("chatml", "kimi-k2", "gemma"), partial(in_some, forged_answer), ("header-drift",)),
    ("header-drift", HEADERS, header_without_white_space, ()),
    ("header-drift", HEADERS, partial(in_some, header_without_white_space), ()),
    ("header-drift", HEADERS, mask_of_the_right_header, ("mask-holes",)),
    ("header-drift", (*HEADERS, "qwen3"), header_with_more_white_space, ("mask-holes",)),
    ("header-drift", (*HEADERS, "qwen3"), partial(in_some, header_with_more_white_space), ("mask-holes",)),
    ("header-drift", ("chatml", "qwen2.5", "llama-3"), header_of_another_role, MANY),
    ("header-drift", ("chatml", "qwen2.5", "llama-3"), partial(in_some, header_of_another_role), MANY),
    ("tail-trained", WITH_TAIL, each(lambda _, s: train(s, s.stops[0] + 1, s.stops[0] + 2)), ()),
    ("eot-missing", PLAIN, each(remove_stops), ()),
    ("wrong-end-of-turn", PLAIN, each(other_stop), ()),
    ("truncated-mid-turn", PLAIN, each(cut, only=HALF), ()),
    ("begins-mid-turn", BEGINS, each(cut_in_front, only=HALF), ()),
    ("begins-mid-turn", ("chatml", "gemma", "qwen2.5"), partial(in_some, one_stream), OF_A_STREAM),
    ("begins-mid-turn", ("chatml", "gemma", "qwen2.5"), one_stream, OF_A_STREAM),
    ("turn-order", ("chatml", "llama-3", "kimi-k2", "minimax-m2"), each(forge_turns, only=slice(2)), ()),
    ("double-bos", WITH_BOS, each(lambda f, s: insert(s, 0, preamble(f))), ()),
    ("bos-missing", (*WITH_BOS, "glm-4.5"), WITHOUT_BOS, ()),
    ("bos-missing", (*WITH_BOS, "glm-4.5"), partial(in_some, WITHOUT_BOS), ()),
    ("other-format", PLAIN, of_another_format, ()),
    ("other-format", PLAIN, partial(in_some, of_another_format), ()),
    ("special-tokens-in-content", ("qwen2.5", "llama-3", "gemma"), each(forge, only=slice(2)), ()),
    ("packed-start-trained", WITH_BOS, partial(seams, "positions"), ()),
    ("packed-start-trained", PLAIN, partial(seams, "lengths"), ()),
    ("packed-start-trained", PLAIN, partial(seams, "counting"), ()),
    ("attention-crosses", WITH_BOS, joined, ()),
    ("packing-lengths", WITH_BOS, in_rows(too_short, WITH_LENGTHS, FIRST), ("attention-crosses",)),
    ("packing-lengths", WITH_BOS, in_rows(one_too_late, WITH_LENGTHS), ()),
    ("packing-lengths", PLAIN, in_rows(run_on, WITH_LENGTHS), ()),
    ("unusable-row", PLAIN, in_rows(lambda r: r["labels"].pop(), only=SECOND), ()),
    ("mask-missing", PLAIN, partial(in_some, whole_without_masks), ()),
    ("mask-missing", PLAIN, partial(in_some, in_rows(lambda r: r.update(labels=[]))), ()),
    ("empty-row", PLAIN, in_rows(lambda r: r.update(input_ids=[], labels=[]), only=slice(2, 3)), ()),
    ("duplicate-row", PLAIN, lambda _, given: rows([*given, given[3]]), ()),
    ("id-out-of-range", PLAIN, each(outside, only=FIRST), ()),
    ("labels-preshifted", PLAIN, in_rows(lambda r: r.update(labels=[*r["labels"][1:], -100])), ()),
    ("labels-foreign", PLAIN, in_rows(other_label, only=FIRST), ()),
)
AS_IT_IS: Plant = each()  # one function, so that its reports are cached
CLEAN: dict[str, Plant] = {
    "eot-masked-as-padding": padded_well,
    "padding-trained": padded_well,
    "packed-start-trained": partial(joined, positions=True),
    "attention-crosses": WITH_LENGTHS,
    "packing-lengths": WITH_LENGTHS,
}


def _report(plant: Plant, family: str, _: Path) -> Report:
    return report_on(family, plant(family, samples(family)))


def cases() -> list[Case]:
    made = []
    for rule, families, plant, also in PLANTS:
        for family in families:
            made.append(Case(rule, family, partial(_report, plant, family), True, also))
            made.append(Case(rule, family, partial(_report, CLEAN.get(rule, AS_IT_IS), family), False))
    for planted in (True, False):
        made += _special(planted)
    return made


def _special(planted: bool) -> list[Case]:
    """Bugs that need conversations of their own."""
    made = (
        ("open-turns", ("glm-4.5", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3"), _open),
        ("tool-results-trained", WITH_TOOLS, _tools),
        ("header-trained", ("qwen3.5", "nemotron-3", "minimax-m2"), _supplied),
        ("empty-think-trained", THINKS, _empty),
        ("turns-untrained", ("qwen3", "nemotron-3"), _one_sample_a_turn),
        ("loss-share", PLAIN, _share),
        ("over-long", PLAIN, _long),
        ("attention-crosses", ("chatml", "qwen2.5", "kimi-k2"), _systems),
    )
    return [Case(rule, f, partial(make, f, planted), planted) for rule, families, make in made for f in families]


def _open(family: str, planted: bool, _: Path) -> Report:
    """The opener that ends a turn is left out of the loss, or not."""
    renderer = renderer_of(family, *([] if planted else [("sampled_openers", True)]))
    made: list[Row] = []
    for messages in chats(turns=1, reasons=True):
        for ids, mask in build_training_samples(renderer, messages, ensure_final_stop=not planted):
            made.append({"input_ids": ids, "labels": [t if m else -100 for t, m in zip(ids, mask, strict=True)]})
    return report_on(family, made)


def _tools(family: str, planted: bool, _: Path) -> Report:
    renderer = renderer_of(family)
    made = [sample_of(renderer, row["messages"], row["tools"]) for row in tool_chats(lambda n: {"city": f"x{n}"})]
    for sample in made if planted else ():
        for low, high in sample.tools:
            sample.trained[low:high] = [True] * (high - low)
    return report_on(family, rows(made))


def _supplied(family: str, planted: bool, _: Path) -> Report:
    """One turn with reasoning, whose opening tag the prompt supplies."""
    opened = infer_layout(renderer_of(family)).think
    assert opened is not None
    made = samples(family, chats(turns=1, reasons=True))
    for sample in made if planted else ():
        at = sample.ids.index(opened[0])
        sample.trained[at] = True
    return report_on(family, rows(made))


def _empty(family: str, planted: bool, _: Path) -> Report:
    made = chats(turns=1, reasons=not planted and family != "kimi-k2")
    if planted and family == "kimi-k2":
        for messages in made:
            messages[1]["content"] = "<think>\n\n</think>\n\n" + messages[1]["content"]
    renderer = renderer_of(family, *([("sampled_openers", True)] if family == "glm-4.5" else []))
    given: list[Row] = []
    for messages in made:
        ((ids, mask),) = build_training_samples(renderer, messages, ensure_final_stop=True)
        given.append({"input_ids": ids, "labels": [t if m else -100 for t, m in zip(ids, mask, strict=True)]})
    return report_on(family, given)


def _share(family: str, planted: bool, _: Path) -> Report:
    """Long prompts and short answers; the planted mask covers three tokens of each prompt, and no turns are known."""
    made = [[user(f"the fox jumps over {n} " * 30), {"role": "assistant", "content": "ok"}] for n in range(8)]
    given = samples(family, made)
    if not planted:
        return report_on(family, rows(given))
    for sample in given:
        sample.trained = [3 < place < 7 for place in range(len(sample.ids))]
    return diagnose(rows(given))


def _long(family: str, planted: bool, _: Path) -> Report:
    return report_on(family, rows(samples(family)), max_length=40 if planted else 4000)


def _systems(family: str, planted: bool, _: Path) -> Report:
    """Formats without bos: a system turn behind an assistant's begins another text."""
    made = samples(family, [[system(), *messages] for messages in chats()])
    return report_on(family, rows(packed(made, positions=not planted)))
