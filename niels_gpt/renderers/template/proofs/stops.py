"""Finds what ends an answer: a stop in its own turn, or one that the next turn writes; where there is none, a problem.

Probe messages of each role are rendered after the answer. A control token that depends on the next role opens the next
turn (GLM's `<|user|>`); one that is the same for all roles is the stop, wherever the template writes it. Of user "Hi",
assistant "Yo" and a probe::

    next           the turn's own stop      the next turn's stop      openers (GLM)
    user           <a>Yo<e> <u>probe        <a>Yo <e><u>probe         <a>Yo<|user|>probe
    tool           <a>Yo<e> <t>probe        <a>Yo <e><t>probe         <a>Yo<|observation|>probe
    nothing        <a>Yo<e>                 <a>Yo                     <a>Yo
    found by       `answer_end`             `_same_next`              `opener` differs by role
    the stop is    <e>                      <e>, in the next turn     "", serving stops at the opener
"""

from __future__ import annotations

from typing import Final, NamedTuple

from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.renderers.template.controls import past_spaces, texts_of
from niels_gpt.renderers.template.proofs.renderings import Rendering, Renderings
from niels_gpt.renderers.template.proofs.usual import PROBE, probe
from niels_gpt.tokenizer.pieces import PieceEncoder

NO_STOP: Final = "no stop token follows message"  # the beginning of a problem
_MOST_NAMED: Final = 12  # control tokens in an error


class End(NamedTuple):
    """Where a sampled span ends; why that is not proven; whether `final_stop` writes the stop there."""

    position: int
    problem: str = ""
    is_added: bool = False


def answer_end(renderings: Renderings, index: int, last: int, end: int, limit: int) -> End:
    """Where the sampled span of message `index` ends.

    Args:
        last: where its content ends; where its turn begins, if no letter shows where the content is.
        end: where its turn ends.
        limit: where the data of the next message begins.
    """
    controls, message = renderings.controls, renderings.messages[index]
    # After a plain text the first control token is the end; after calls, or reasoning alone, markup comes first.
    plain = bool("".join(texts_of(message["content"])).strip()) and "tool_calls" not in message
    end = min(end, limit)
    stop = controls.stop_after(renderings.output[:end], last, at_once=plain) if last <= end else None
    if stop is None:
        return _end_in_next_turn(renderings, index, last, max(last, end), limit)
    token = controls.at_end(renderings.output[last:stop])
    if plain or controls.is_stop(token) or token == renderings.usual.end():
        return End(stop)
    # After markup alone, that token may be the header's (gpt-oss: `<|message|>`).
    has_letters = (renderings.letter_message == index).any()
    return End(stop, "" if has_letters else f"{NO_STOP} {{message}}")


def _end_in_next_turn(renderings: Renderings, index: int, begin: int, end: int, limit: int) -> End:
    """The end where the turn itself has no stop: after one that the template writes at the start of the next turn.

    Ordinary text between `begin`, the end of the content, and `end`, that of the turn, is the stop (`</answer>`) or the
    end of a call's markup, if no control token follows.
    """
    controls = renderings.controls
    following = _next_texts(renderings, index, end)
    stop = _next_stop(renderings, following)
    text = renderings.output[end:limit]
    if stop and controls.first_at_start(text) == stop:
        return End(end + past_spaces(text) + len(stop))
    beginning = renderings.rendering(index + 1, False)
    if_last = controls.first_at_start((beginning and renderings.text_from(beginning, end)) or "")
    if stop or if_last:
        return _without_stop(renderings, index, end, f"message {{message}} ends without its stop {stop or if_last!r}")
    footer = renderings.output[begin:end].rstrip()
    is_footer = not footer or _is_footer(renderings, index, begin, footer)
    opener = _next_opener(renderings, index, following)
    if controls.is_stop(opener) and is_footer:
        # White space before the opener is also emitted: the model stops at the opener.
        before = past_spaces(text) if controls.first_at_start(text) == opener else 0
        return _without_stop(renderings, index, end + before, "")
    problem = f"{NO_STOP} {{message}}" + (f"; {opener!r}, which opens the next turn, is none" if opener else "")
    if not footer:
        return _without_stop(renderings, index, begin if controls.final_stop else end, problem)
    if not is_footer:
        return End(begin, problem)
    # Ordinary text ends an answer only in formats without a stop. Elsewhere it is something else, such as the end of a
    # question, in a template that takes every second message for one. Calls may end in their markup.
    usual = renderings.usual.stop()
    if usual:
        problem = f"message {{message}} ends without its stop {usual!r}"
        if following.get("user") and "tool_calls" not in renderings.messages[index]:
            return End(begin + len(footer), problem)
    return _without_stop(renderings, index, begin + len(footer), problem)


def _without_stop(renderings: Renderings, index: int, end: int, problem: str) -> End:
    """The end of an answer after which the template writes no stop: the option `final_stop` writes one there.

    `problem` is what is not proven without it. If serving stops at a header (GLM's `<|user|>`), no stop is needed.
    """
    controls = renderings.controls
    following = renderings.output[end : renderings.next_data(end)]
    is_ended = not problem and controls.is_stop(controls.first_at_start(following))
    return End(end, is_added=True) if controls.final_stop and not is_ended else End(end, problem)


def _next_texts(renderings: Renderings, index: int, end: int) -> dict[str, str]:
    """Role of a next message -> the text from `end` on, when a probe message of that role follows `index`."""
    texts = {}
    for role in ("user", "tool", "assistant"):
        for following in ([probe(role)], [probe(role), probe("user")]):  # some templates require a user message
            text = renderings.followed(index, *following)
            if text is None:
                continue
            after = renderings.text_from(Rendering(text, renderings.lettered), end)
            if after is not None:  # else the probe changes what is written before it
                texts[role] = after
                break
    return texts


def _next_stop(renderings: Renderings, following: dict[str, str]) -> str:
    """The stop that the next turn writes; "" if what it begins with is none, but an opener that depends on the role."""
    controls = renderings.controls
    if not following:  # whatever follows, the template writes this turn otherwise: nothing shows its stop
        return renderings.usual.stop()
    stop = _same_next(renderings, {role: controls.first_at_start(text) for role, text in following.items()})
    if stop:
        return stop
    # A stop token is a stop and no opener if a header follows it: <e><u>probe, and not GLM's <|user|>probe.
    question = following.get("user", "")
    token = controls.first_at_start(question)
    header = question.partition(PROBE)[0].partition(token)[2] if token else ""
    return token if controls.is_stop(token) and controls.first(header) else ""


def _same_next(renderings: Renderings, tokens: dict[str, str]) -> str:
    """The control token that follows whatever the next role is; "" if there is none or it opens model turns."""
    controls = renderings.controls
    same = next(iter(tokens.values())) if len(tokens) > 1 and len(set(tokens.values())) == 1 else ""
    # ChatML's <|im_start|> is also the same for all roles: it opens the prompt and the first header.
    opens = not controls.is_stop(same) and same == (controls.first(renderings.usual.prompt) or same)
    return "" if opens else same


def _next_opener(renderings: Renderings, index: int, following: dict[str, str]) -> str:
    """The control token that opens the next turn; "" if there is none."""
    tokens = {role: renderings.controls.first_at_start(text) for role, text in following.items()}
    opener = tokens.get("tool" if "tool_calls" in renderings.messages[index] else "user", "") or tokens.get("user", "")
    # Where a question drops this turn's reasoning, no text after it corresponds: then the opener of other turns.
    return opener if opener or "user" in following else renderings.usual.opener


def _is_footer(renderings: Renderings, index: int, last: int, footer: str) -> bool:
    """Whether the text from `last` on ends the answer whatever follows, and is not, or begins, the next header.

    A template that writes the generation prompt though it is not requested has `### Assistant:` there if nothing
    follows, and `### User:` if a question does.
    """
    beginning = renderings.rendering(index + 1, False)
    if_last = None if beginning is None else renderings.text_from(beginning, last)
    following = _next_texts(renderings, index, last)
    questions = [following["user"]] if "user" in following else following.values()
    return (if_last is None or if_last.rstrip() == footer) and all(text.startswith(footer) for text in questions)


def check_final_stop(final_stop: str, encoder: PieceEncoder) -> None:
    """Refuse a `final_stop` that is no control token of the tokenizer: it would be encoded as ordinary text.

    Raises:
        UsageError: naming the tokenizer's control tokens.
    """
    if final_stop not in encoder.control_ids:
        known = sorted(encoder.control_ids)
        some = ", ".join(known[:_MOST_NAMED]) + (f" and {len(known) - _MOST_NAMED} more" * (len(known) > _MOST_NAMED))
        raise UsageError(
            f"final_stop is {final_stop!r}, which is no control token of {encoder.name}; expected one of its control "
            f"tokens: {some or 'it has none'}{did_you_mean(final_stop, known)}"
        )
