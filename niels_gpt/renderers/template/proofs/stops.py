"""Finds what ends an answer: a stop in its own turn, or one that the next turn writes; where there is none, a problem.

Probe messages of each role are rendered after the answer. A control token that depends on the next role opens the next
turn (GLM's `<|user|>`); one that is the same for all roles is the stop, wherever the template writes it. Of user "Hi",
assistant "Yo" and a probe::

    next           the turn's own stop      the next turn's stop      openers (GLM)
    user           <a>Yo<e> <u>probe        <a>Yo <e><u>probe         <a>Yo<|user|>probe
    tool           <a>Yo<e> <t>probe        <a>Yo <e><t>probe         <a>Yo<|observation|>probe
    nothing        <a>Yo<e>                 <a>Yo                     <a>Yo
    found by       `stop_after`             `_same_next`              `opener` differs by role
    the stop is    <e>                      <e>, in the next turn     "", serving stops at the opener
"""

from __future__ import annotations

from typing import Any, Final

from niels_gpt.errors import MessageError, UsageError, did_you_mean
from niels_gpt.renderers.template.attribution import texts_of
from niels_gpt.renderers.template.proofs.renderings import Rendering, Renderings
from niels_gpt.renderers.template.sampled_span import added_prompt
from niels_gpt.tokenizer.pieces import PieceEncoder

NO_STOP: Final = "no stop token follows message"  # the beginning of a problem
_MOST_NAMED: Final = 12  # control tokens in an error
PROBE: Final = "probe"  # the content of messages that are rendered only to see what the template writes around it


class Stops(Renderings):
    """One conversation: where its answers end."""

    problems: list[str]  # what the renderings do not prove
    added_stops: dict[int, str]  # answers that end in `final_stop` -> what the template lacks there

    def _stop(self, index: int, last: int, end: int, limit: int) -> int:
        """The position after the stop token of a message.

        Args:
            last: where its content ends; where its turn begins, if no letter shows where the content is.
            end: where its turn ends.
            limit: where the data of the next message begins.
        """
        message = self.messages[index]
        # After a plain text the first control token is the end; after calls, or reasoning alone, markup comes first.
        plain = bool("".join(texts_of(message["content"])).strip()) and "tool_calls" not in message
        end = min(end, limit)
        stop = self.controls.stop_after(self.output[:end], last, at_once=plain) if last <= end else None
        if stop is not None:
            token = self.controls.at_end(self.output[last:stop])
            if plain or self.controls.is_stop(token) or token == self._usual_end():
                return stop
            # Without content the header's last token was found (gpt-oss: `<|message|>`); the stop may follow it.
            following = self._next_texts(index, stop)
            token = self._same_next({role: self.controls.first_at_start(text) for role, text in following.items()})
            between = self.output[stop:limit]
            spaces = len(between) - len(between.lstrip())  # a content of white space alone
            found = token and self.output.startswith(token, stop + spaces, limit)
            # Ordinary text follows in every case, so that the token was within the turn and not at its end.
            goes_on = following and all(
                text.strip() and not self.controls.first_at_start(text) for text in following.values()
            )
            has_letters = (self.substitute_message == index).any()  # without them nothing shows what markup is the end
            if (goes_on or not found) and not has_letters:
                self.problems.append(f"{NO_STOP} {index}")
            return stop + spaces + len(token) if found else stop
        return self._stop_in_next_turn(index, last, max(last, end), limit)

    def _stop_in_next_turn(self, index: int, begin: int, end: int, limit: int) -> int:
        """The position after a stop that the template writes at the start of the next turn.

        A token there is a stop if it is the same whatever role comes next, or if a header follows it. A token that
        depends on the next role is an opener (GLM's `<|user|>`): it ends the turn before but is not part of it. If
        nothing ends the turn, that is added to `self.problems`, or the option `final_stop` ends it.

        Args:
            begin: where the content ends. Ordinary text from there to `end` is the stop (`</answer>`) or the end of a
                call's markup, if no control token follows.
        """
        following = self._next_texts(index, end)
        tokens = {role: self.controls.first_at_start(text) for role, text in following.items()}
        beginning = self.rendering(index + 1, False)
        if_last = self.controls.first_at_start((beginning and self._text_from(beginning, end)) or "")
        stop = self._same_next(tokens)
        if not stop:
            # A stop token is a stop and no opener if a header follows it: <e><u>probe, and not GLM's <|user|>probe.
            question = following.get("user", "")
            token = self.controls.first_at_start(question)
            header = question.partition(PROBE)[0].partition(token)[2] if token else ""
            stop = token if self.controls.is_stop(token) and self.controls.first(header) else ""
        if not following:  # whatever follows, the template writes this turn otherwise: nothing shows its stop
            stop = self._usual_stop()
        text = self.output[end:limit]
        if stop and self.controls.first_at_start(text) == stop:
            return end + len(text) - len(text.lstrip()) + len(stop)
        if stop or if_last:
            return self._without_stop(index, end, f"message {index} ends without its stop {stop or if_last!r}")
        footer = self.output[begin:end].rstrip()
        is_footer = not footer or self._is_footer(index, begin, footer)
        opener = tokens.get("tool" if "tool_calls" in self.messages[index] else "user", "") or tokens.get("user", "")
        # Where a question drops this turn's reasoning, no text after it corresponds: then the opener of other turns.
        opener = opener if "user" in following else opener or self._usual_opener()
        if self.controls.is_stop(opener) and is_footer:
            # White space before the opener is emitted, too: the model stops at the opener.
            before = len(text) - len(text.lstrip()) if self.controls.first_at_start(text) == opener else 0
            return self._without_stop(index, end + before, "")
        problem = f"{NO_STOP} {index}" + (f"; {opener!r}, which opens the next turn, is none" if opener else "")
        if not footer:
            return self._without_stop(index, begin if self.controls.final_stop else end, problem)
        if not is_footer:
            self.problems.append(problem)
            return begin
        # Ordinary text ends an answer only in formats without a stop. Elsewhere it is something else, such as the end
        # of a question, in a template that takes every second message for one. Calls may end in their markup.
        usual = self._usual_stop()
        if usual and following.get("user") and "tool_calls" not in self.messages[index]:
            self.problems.append(f"message {index} ends without its stop {usual!r}")
            return begin + len(footer)
        problem = f"message {index} ends without its stop {usual!r}" if usual else problem
        return self._without_stop(index, begin + len(footer), problem)

    def _without_stop(self, index: int, end: int, problem: str) -> int:
        """The end of an answer after which the template writes no stop: the option `final_stop` writes one there.

        Args:
            problem: what is not proven without that option; "" where a header or ordinary text ends the turn. If
                serving stops at that header (GLM's `<|user|>`), no other stop is needed.
        """
        is_ended = not problem and self.controls.is_stop(
            self.controls.first_at_start(self.output[end : self._next_data(end)])
        )
        if self.controls.final_stop and not is_ended:
            self.added_stops[index] = problem or f"{NO_STOP} {index}"
        elif problem:
            self.problems.append(problem)
        return end

    def _is_footer(self, index: int, last: int, footer: str) -> bool:
        """Whether a text ends the answer whatever follows, and is not, or begins, the next header.

        A template that writes the generation prompt though it is not requested has `### Assistant:` there if nothing
        follows, and `### User:` if a question does.

        Args:
            last: where the content ends.
            footer: the text from there on.
        """
        beginning = self.rendering(index + 1, False)
        if_last = None if beginning is None else self._text_from(beginning, last)
        following = self._next_texts(index, last)
        questions = [following["user"]] if "user" in following else following.values()
        return (if_last is None or if_last.rstrip() == footer) and all(text.startswith(footer) for text in questions)

    def _same_next(self, tokens: dict[str, str]) -> str:
        """The control token that follows whatever the next role is; "" if there is none or it opens model turns."""
        same = next(iter(tokens.values())) if len(tokens) > 1 and len(set(tokens.values())) == 1 else ""
        # ChatML's <|im_start|> is the same for all roles, too: it opens the prompt and the first header.
        opens = not self.controls.is_stop(same) and same == (self.controls.first(self._usual_prompt()) or same)
        return "" if opens and same in self._first_header() else same

    def _first_header(self) -> str:
        """The text before the first content of a conversation, with a system message if the template allows one."""
        for roles in (("system", "user"), ("user",)):
            probe: Any = [{"role": role, "content": f"{PROBE} {role}"} for role in roles]
            try:
                return self.render(probe, False).partition(PROBE)[0]
            except MessageError:
                continue
        return self.output

    def _next_texts(self, index: int, end: int) -> dict[str, str]:
        """Role of a next message -> the text from `end` on, when a probe message of that role follows `index`."""
        texts = {}
        user: Any = {"role": "user", "content": PROBE}
        for role in ("user", "tool", "assistant"):
            probe: Any = {"role": role, "content": PROBE}
            for following in ([probe], [probe, user]):  # some templates refuse messages without a user message
                try:
                    text = self.render([*self.substituted.messages[: index + 1], *following], False)
                except MessageError:
                    continue
                after = self._text_from(Rendering(text, self.substituted.find(text)), end)
                if after is not None:  # else the probe changes what is written before it
                    texts[role] = after
                    break
        return texts

    def _usual_prompt(self) -> str:
        """The generation prompt after a single user message; empty if the template refuses that, too."""
        probe: Any = [{"role": "user", "content": PROBE}]
        try:
            return added_prompt(self.render(probe, True), self.render(probe, False), self.controls)
        except MessageError:
            return ""

    def _usual_stop(self, role: str = "assistant") -> str:
        """The stop token directly after an answer that a question follows, or after a question; "" if there is none."""
        token = self._usual_end(role)
        return token if self.controls.is_stop(token) else ""

    def _usual_end(self, role: str = "assistant") -> str:
        """The control token there, whether it is a stop or not; "" for an opener of questions (GLM's `<|user|>`)."""
        token, is_opener = self._usual_next(role)
        return "" if is_opener else token

    def _usual_opener(self) -> str:
        """The control token there, if it opens the next question; else ""."""
        token, is_opener = self._usual_next("assistant")
        return token if is_opener else ""

    def _usual_next(self, role: str) -> tuple[str, bool]:
        """The control token after a message of this role, which others follow, and whether it opens questions."""
        probe: Any = [{"role": one, "content": f"{PROBE} {one}"} for one in ("user", "assistant", "user")]
        try:
            text = self.render(probe, False)
        except MessageError:
            return "", False
        lead = text.partition(f"{PROBE} user")[0]
        token = self.controls.first_at_start(text.partition(f"{PROBE} {role}")[2])
        return token, token == self.controls.at_end(lead.rstrip())


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
