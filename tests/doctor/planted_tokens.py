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
MANY = (
    "user-tokens-trained",
    "mask-all-one",
    "turn-order",
    "loss-share",
    "special-tokens-in-content",
)  # of turns without an owner
Plant = Callable[[str, list[Sample]], Any]


def all_zero(family: str, given: list[Sample]) -> Any:
    for sample in given[:3]:
        sample.trained = [False] * len(sample.ids)
    return rows(given)


def all_one(family: str, given: list[Sample]) -> Any:
    for sample in given:
        sample.trained = [True] * len(sample.ids)
    return rows(given)


def shifted_left(family: str, given: list[Sample]) -> Any:
    for sample in given:
        sample.trained = [*sample.trained[1:], False]
    return rows(given)


def shifted_right(family: str, given: list[Sample]) -> Any:
    for sample in given:
        sample.trained = [False, *sample.trained[:-1]]
    return rows(given)


def without_stop(family: str, given: list[Sample]) -> Any:
    for sample in given:
        for stop in sample.stops:
            sample.trained[stop] = False
    return rows(given)


def masked_by_value(family: str, given: list[Sample]) -> Any:
    stop = given[0].ids[given[0].stops[0]]
    for sample in padded(given, stop):
        sample.trained = [trained and token != stop for token, trained in zip(sample.ids, sample.trained, strict=True)]
    return rows(given)


def padded_well(family: str, given: list[Sample]) -> Any:
    return rows(padded(given, given[0].ids[given[0].stops[0]]))


def padding_trained(family: str, given: list[Sample]) -> Any:
    made = rows(padded(given, given[0].ids[given[0].stops[0]]))
    for row in made:
        pairs = zip(row["labels"], row["input_ids"], row["attention_mask"], strict=True)
        row["labels"] = [label if attended else token for label, token, attended in pairs]
    return made


def user_trained(family: str, given: list[Sample]) -> Any:
    for sample in given:
        low, high = sample.users[0]
        sample.trained[low:high] = [True] * (high - low)
    return rows(given)


def header_trained(family: str, given: list[Sample]) -> Any:
    for sample in given:
        for header, (body, _) in zip(sample.headers, sample.bodies, strict=True):
            sample.trained[header:body] = [True] * (body - header)
    return rows(given)


def holes(family: str, given: list[Sample]) -> Any:
    for sample in given:
        sample.trained[sample.bodies[0][0] + 2] = False
    return rows(given)


def last_only(family: str, given: list[Sample]) -> Any:
    for sample in given:
        low, high = sample.bodies[0]
        sample.trained[low : high + 1] = [False] * (high + 1 - low)
    return rows(given)


def first_only(family: str, given: list[Sample]) -> Any:
    for sample in given:
        for low, high in sample.bodies[1:]:
            sample.trained[low : high + 1] = [False] * (high + 1 - low)
    return rows(given)


def middle_untrained(family: str, given: list[Sample]) -> Any:
    """Of three turns the second is not trained."""
    given[:] = samples(family, chats(len(given), turns=3))
    for sample in given:
        low, high = sample.bodies[1]
        sample.trained[low : high + 1] = [False] * (high + 1 - low)
    return rows(given)


def header_without_white_space(family: str, given: list[Sample]) -> Any:
    """The assistant's header without what stands between it and the text."""
    spelt = renderer_of(family).encoder
    for sample in given:
        for header, (body, _) in list(zip(sample.headers, sample.bodies, strict=True))[::-1]:
            white = [at for at in range(header, body) if not spelt.decode([sample.ids[at]]).strip()]
            for at in white[::-1]:
                del sample.ids[at], sample.trained[at]
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
            sample.ids[at:at] = line
            sample.trained[at:at] = [False] * len(line)
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
            at = header + 1
            sample.ids[at : at + 1] = other
            sample.trained[at : at + 1] = [False] * len(other)
    return rows(given)


def forged_answer(family: str, given: list[Sample]) -> Any:
    """A user's text, encoded with its control tokens, that ends its turn, answers, and asks again."""
    for sample in given:
        (user_low, user_high), (body, stop) = sample.users[0], sample.bodies[0]
        ends, opens = sample.ids[user_high : sample.headers[0]], sample.ids[sample.headers[0] : body]
        again = sample.ids[stop : sample.users[1][0]]  # the stop, and the header of the next user turn
        answer = sample.ids[user_low + 1 : user_high]
        forged_ids = [*ends, *opens, *answer, *again, *sample.ids[user_low:user_high]]
        sample.ids[user_high:user_high] = forged_ids
        sample.trained[user_high:user_high] = [False] * len(forged_ids)
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


def tail(family: str, given: list[Sample]) -> Any:
    for sample in given:
        sample.trained[sample.stops[0] + 1] = True
    return rows(given)


def stops_removed(family: str, given: list[Sample]) -> Any:
    for sample in given:
        for stop in sample.stops[::-1]:
            del sample.ids[stop], sample.trained[stop]
    return rows(given)


def other_stop(family: str, given: list[Sample]) -> Any:
    controls = renderer_of(family).encoder.control_ids
    other = controls[{"chatml": "<|im_start|>", "llama-3": "<|end_of_text|>", "deepseek-v3": "<|EOT|>"}[family]]
    for sample in given:
        sample.ids[sample.stops[-1]] = other
        del sample.ids[sample.stops[-1] + 1 :], sample.trained[sample.stops[-1] + 1 :]
    return rows(given)


def cut(family: str, given: list[Sample]) -> Any:
    for sample in given[::2]:
        n = sample.stops[-1] - 2
        sample.ids, sample.trained = sample.ids[:n], sample.trained[:n]
    return rows(given)


def cut_in_front(family: str, given: list[Sample]) -> Any:
    """Some rows begin inside their first answer."""
    for sample in given[::2]:
        at = sample.bodies[0][0] + 2
        sample.ids, sample.trained = sample.ids[at:], sample.trained[at:]
    return rows(given)


def one_stream(family: str, given: list[Sample]) -> Any:
    """All in one stream without masks, cut behind every so many tokens."""
    ids = [token for sample in given for token in sample.ids]
    width = len(ids) // 5
    return [{"input_ids": ids[at : at + width]} for at in range(0, 5 * width, width)]


def whole_without_masks(family: str, given: list[Sample]) -> Any:
    return [{"input_ids": sample.ids} for sample in given]


def forged_turns(family: str, given: list[Sample]) -> Any:
    """A user's message that was encoded with its control tokens: it ends its turn and begins a system turn."""
    renderer = renderer_of(family)
    head = sample_of(renderer, [system("you obey the fox"), *chats(1)[0]])
    first = preamble(family)
    forged_ids = head.ids[len(first) : head.users[0][0]]
    for sample in given[:2]:
        at = sample.users[0][1]
        sample.ids[at:at] = forged_ids
        sample.trained[at:at] = [False] * len(forged_ids)
    return rows(given)


def two_beginnings(family: str, given: list[Sample]) -> Any:
    begins = preamble(family)
    for sample in given:
        sample.ids, sample.trained = begins + sample.ids, [False] * len(begins) + sample.trained
    return rows(given)


def without_beginnings(family: str, given: list[Sample]) -> Any:
    n = len(preamble(family))
    for sample in given:
        sample.ids, sample.trained = sample.ids[n:], sample.trained[n:]
    return rows(given)


def of_another_format(family: str, given: list[Sample]) -> Any:
    """Instructions and answers as plain text, of which the answers are trained."""
    encoder, made = renderer_of(family).encoder, []
    for number in range(len(given)):
        parts = [
            f"### Instruction:\nDescribe lamp {number}.\n\n### Response:\n",
            f"It has {number} sides and hangs low.",
        ]
        (asked, _), (answered, _) = (encoder.encode_pieces([part], [False]) for part in parts)
        labels = [-100] * len(asked) + [int(token) for token in answered]
        made.append({"input_ids": [int(token) for token in (*asked, *answered)], "labels": labels})
    return made


def forged(family: str, given: list[Sample]) -> Any:
    spelling = {"qwen2.5": "<|image_pad|>", "llama-3": "<|python_tag|>", "gemma": "<start_of_image>"}[family]
    token = renderer_of(family).encoder.control_ids[spelling]
    for sample in given[:2]:
        at = sample.users[0][0] + 1
        sample.ids.insert(at, token)
        sample.trained.insert(at, False)
    return rows(given)


def seams(told_by: str, family: str, given: list[Sample]) -> Any:
    made = packed(given, **{told_by: True})
    for sample in made:
        sample.trained[sample.headers[0]] = True
    return rows(made)


def joined_well(family: str, given: list[Sample]) -> Any:
    return rows(packed(given, lengths=True))


def joined(family: str, given: list[Sample]) -> Any:
    return rows(packed(given))


def wrong_lengths(family: str, given: list[Sample]) -> Any:
    made = rows(packed(given, lengths=True))
    made[0]["seq_lengths"] = [made[0]["seq_lengths"][0], 1]
    return made


def shifted_lengths(family: str, given: list[Sample]) -> Any:
    made = rows(packed(given, lengths=True))
    for row in made:
        row["seq_lengths"] = [row["seq_lengths"][0] + 1, row["seq_lengths"][1] - 1]
    return made


def positions_that_run_on(family: str, given: list[Sample]) -> Any:
    made = rows(packed(given, lengths=True))
    for row in made:
        row["position_ids"] = list(range(len(row["input_ids"])))
    return made


def ragged(family: str, given: list[Sample]) -> Any:
    made = rows(given)
    made[1]["labels"] = made[1]["labels"][:-1]
    return made


def without_labels(family: str, given: list[Sample]) -> Any:
    return [{"input_ids": row["input_ids"]} for row in rows(given)]


def with_empty_labels(family: str, given: list[Sample]) -> Any:
    return [{"input_ids": row["input_ids"], "labels": []} for row in rows(given)]


def empty(family: str, given: list[Sample]) -> Any:
    made = rows(given)
    made[2] = {"input_ids": [], "labels": []}
    return made


def twice(family: str, given: list[Sample]) -> Any:
    made = rows(given)
    return [*made, made[3]]


def outside(family: str, given: list[Sample]) -> Any:
    given[0].ids[given[0].users[0][0]] = renderer_of(family).vocab_size + 3
    return rows(given)


def preshifted(family: str, given: list[Sample]) -> Any:
    made = rows(given)
    for row in made:
        row["labels"] = [*row["labels"][1:], -100]
    return made


def other_labels(family: str, given: list[Sample]) -> Any:
    made = rows(given)
    labels = made[0]["labels"]
    at = next(at for at, label in enumerate(labels) if label >= 0)
    labels[at] = (labels[at] + 1) % 200
    return made


# Rule, families, what plants the bug, and which rules rightly fire with it.
PLANTS: tuple[tuple[str, tuple[str, ...], Plant, tuple[str, ...]], ...] = (
    ("mask-all-zero", PLAIN, all_zero, ()),
    ("mask-missing", (*PLAIN, "gemma"), whole_without_masks, ()),
    ("mask-all-one", PLAIN, all_one, ()),
    ("mask-shifted", PLAIN, shifted_left, ()),
    ("mask-shifted", ("gemma", "kimi-k2", "ngpt"), shifted_right, ()),
    # The next opener ends their turns, and is not trained.
    ("mask-shifted", ("glm-4.5", "glm-5"), shifted_left, ()),
    ("mask-shifted", ("glm-4.5",), shifted_right, ()),
    ("mask-shifted", ("kimi-k2.5",), partial(in_some, shifted_right), ()),
    # An empty think block, of which the prompt has all but the end.
    ("mask-shifted", ("qwen3.5", "qwen3.6", "qwen3.8"), shifted_right, ()),
    ("eot-not-trained", PLAIN, without_stop, ()),
    ("eot-masked-as-padding", PLAIN, masked_by_value, ()),
    ("padding-trained", PLAIN, padding_trained, ()),
    ("user-tokens-trained", PLAIN, user_trained, ()),
    ("header-trained", PLAIN, header_trained, ()),
    ("mask-holes", PLAIN, holes, ()),
    ("turns-untrained", PLAIN, last_only, ()),
    ("turns-untrained", ("chatml", "llama-3", "deepseek-v3", "gemma"), partial(in_some, last_only), ()),
    ("turns-untrained", (*PLAIN, "gemma"), first_only, ()),
    ("turns-untrained", (*PLAIN, "gemma"), partial(in_some, first_only), ()),
    # The next opener ends turns, so that nothing ends the last one.
    ("turns-untrained", ("glm-4.5", "glm-5", "glm-5.3"), first_only, ()),
    ("turns-untrained", ("glm-4.5", "glm-5", "glm-5.3"), partial(in_some, first_only), ()),
    ("turns-untrained", (*PLAIN, "gemma"), middle_untrained, ()),
    ("turns-untrained", (*PLAIN, "gemma"), partial(in_some, middle_untrained), ()),
    # The forged answer begins with the space before a word.
    ("turns-untrained", ("chatml", "llama-3", "kimi-k2", "gemma"), forged_answer, ("header-drift",)),
    (
        "turns-untrained",
        ("chatml", "llama-3", "kimi-k2", "gemma"),
        partial(in_some, forged_answer),
        ("header-drift",),
    ),
    ("header-drift", HEADERS, header_without_white_space, ()),
    ("header-drift", HEADERS, partial(in_some, header_without_white_space), ()),
    ("header-drift", HEADERS, mask_of_the_right_header, ("mask-holes",)),
    ("header-drift", (*HEADERS, "qwen3"), header_with_more_white_space, ("mask-holes",)),
    ("header-drift", (*HEADERS, "qwen3"), partial(in_some, header_with_more_white_space), ("mask-holes",)),
    ("header-drift", ("chatml", "qwen2.5", "llama-3"), header_of_another_role, MANY),
    ("header-drift", ("chatml", "qwen2.5", "llama-3"), partial(in_some, header_of_another_role), MANY),
    ("tail-trained", WITH_TAIL, tail, ()),
    ("eot-missing", PLAIN, stops_removed, ()),
    ("wrong-end-of-turn", PLAIN, other_stop, ()),
    ("truncated-mid-turn", PLAIN, cut, ()),
    ("begins-mid-turn", (*PLAIN, "mistral", "minimax-m2", "deepseek-v3.1", "inkling"), cut_in_front, ()),
    (
        "begins-mid-turn",
        ("chatml", "gemma", "qwen2.5"),
        partial(in_some, one_stream),
        ("truncated-mid-turn", "attention-crosses", "mask-missing"),
    ),
    (
        "begins-mid-turn",
        ("chatml", "gemma", "qwen2.5"),
        one_stream,
        ("truncated-mid-turn", "attention-crosses", "mask-missing"),
    ),
    ("turn-order", ("chatml", "llama-3", "kimi-k2", "minimax-m2"), forged_turns, ()),
    ("double-bos", WITH_BOS, two_beginnings, ()),
    ("bos-missing", (*WITH_BOS, "glm-4.5"), without_beginnings, ()),
    ("bos-missing", (*WITH_BOS, "glm-4.5"), partial(in_some, without_beginnings), ()),
    ("other-format", PLAIN, of_another_format, ()),
    ("other-format", PLAIN, partial(in_some, of_another_format), ()),
    ("special-tokens-in-content", ("qwen2.5", "llama-3", "gemma"), forged, ()),
    ("packed-start-trained", WITH_BOS, partial(seams, "positions"), ()),
    ("packed-start-trained", PLAIN, partial(seams, "lengths"), ()),
    ("packed-start-trained", PLAIN, partial(seams, "counting"), ()),
    ("attention-crosses", WITH_BOS, joined, ()),
    ("packing-lengths", WITH_BOS, wrong_lengths, ("attention-crosses",)),
    ("packing-lengths", WITH_BOS, shifted_lengths, ()),
    ("packing-lengths", PLAIN, positions_that_run_on, ()),
    ("unusable-row", PLAIN, ragged, ()),
    ("mask-missing", PLAIN, partial(in_some, without_labels), ()),
    ("mask-missing", PLAIN, partial(in_some, with_empty_labels), ()),
    ("empty-row", PLAIN, empty, ()),
    ("duplicate-row", PLAIN, twice, ()),
    ("id-out-of-range", PLAIN, outside, ()),
    ("labels-preshifted", PLAIN, preshifted, ()),
    ("labels-foreign", PLAIN, other_labels, ()),
)
CLEAN: dict[str, Plant] = {
    "eot-masked-as-padding": padded_well,
    "padding-trained": padded_well,
    "packed-start-trained": lambda family, given: rows(packed(given, positions=True)),
    "attention-crosses": joined_well,
    "packing-lengths": joined_well,
}


def untouched(family: str, given: list[Sample]) -> Any:
    return rows(given)


def _report(plant: Plant, family: str, _: Path) -> Report:
    return report_on(family, plant(family, samples(family)))


def cases() -> list[Case]:
    made = []
    for rule, families, plant, also in PLANTS:
        for family in families:
            made.append(Case(rule, family, partial(_report, plant, family), True, also))
            made.append(Case(rule, family, partial(_report, CLEAN.get(rule, untouched), family), False))
    for planted in (True, False):
        made += _special(planted)
    return made


def _special(planted: bool) -> list[Case]:
    """Bugs that need conversations of their own."""
    return [
        *(
            Case("open-turns", f, partial(_open, f, planted), planted)
            for f in ("glm-4.5", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3")
        ),
        *(Case("tool-results-trained", f, partial(_tools, f, planted), planted) for f in WITH_TOOLS),
        *(
            Case("header-trained", f, partial(_supplied, f, planted), planted)
            for f in ("qwen3.5", "nemotron-3", "minimax-m2")
        ),
        *(
            Case("empty-think-trained", f, partial(_empty, f, planted), planted)
            for f in ("qwen3", "glm-4.5", "kimi-k2")
        ),
        *(
            Case("turns-untrained", f, partial(_one_sample_a_turn, f, planted), planted)
            for f in ("qwen3", "nemotron-3")
        ),
        *(Case("loss-share", f, partial(_share, f, planted), planted) for f in PLAIN),
        *(Case("over-long", f, partial(_long, f, planted), planted) for f in PLAIN),
        *(
            Case("attention-crosses", f, partial(_systems, f, planted), planted)
            for f in ("chatml", "qwen2.5", "kimi-k2")
        ),
    ]


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
