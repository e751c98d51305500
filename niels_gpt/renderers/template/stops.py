"""What ends an answer: its own stop, the one that the next turn writes, or none, which is a problem.

Who speaks next is tried out with probes, because a control token that depends on it is an opener of the next turn
(GLM's `<|user|>`), and one that does not is the stop, wherever the template writes it.
"""

from __future__ import annotations

from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.renderers.template.renderings import Rendering, Renderings
from niels_gpt.renderers.template.sampled_span import added_prompt

PROBE: Final = "probe"  # a content to try


class Stops(Renderings):
    """One conversation: where its answers end."""

    problems: list[str]  # what could not be proven

    def _stop(self, index: int, last: int, end: int, limit: int) -> int:
        """The character after the stop of the message whose content ends at `last`, and whose turn at `end`."""
        message = self.messages[index]
        plain = bool(message["content"]) and "tool_calls" not in message
        end = min(end, limit)
        stop = self.controls.stop_after(self.real[:end], last, at_once=plain) if last <= end else None
        if stop is not None:
            if plain or self.controls.is_stop(self.controls.at_end(self.real[last:stop])):
                return stop
            # Without content the header's last token was found (gpt-oss: `<|message|>`); the stop may follow it.
            following = self._next_texts(index, stop)
            token = self._same_next({role: self.controls.first_at_start(text) for role, text in following.items()})
            return stop + len(token) if self.real.startswith(token, stop, limit) else stop
        footer = self.real[last:end]
        text_end = last + len(footer.rstrip()) if footer.strip() else None
        return self._stop_in_next_turn(index, max(last, end), limit, text_end)

    def _stop_in_next_turn(self, index: int, end: int, limit: int, text_end: int | None) -> int:
        """The stop that the next turn writes, if it is the same whoever speaks next, or if a header follows it.

        A control token that depends on who speaks next is an opener (GLM's `<|user|>`): it ends the turn before, and is
        no part of it. A turn that nothing ends is a problem.

        Args:
            text_end: where ordinary text behind the content ends; it is the stop (`</answer>`), or the end of a call's
                markup, if no control token follows.
        """
        following = self._next_texts(index, end)
        tokens = {role: self.controls.first_at_start(text) for role, text in following.items()}
        part = self.rendering(index + 1, False)
        last = self.controls.first_at_start((part and self._after(part, end)) or "")  # where nothing follows
        stop = self._same_next(tokens) or self._before_header(following.get("user", ""))
        text = self.real[end:limit]
        if stop:
            if self.controls.first_at_start(text) == stop:
                return end + len(text) - len(text.lstrip()) + len(stop)
            self.problems.append(f"message {index} ends without its stop {stop!r}")
        elif last:
            self.problems.append(f"message {index} ends without its stop {last!r}")
        elif text_end is not None:
            usual = "" if following.get("user") else self._usual_stop()  # reasoning may be gone once a user has spoken
            if usual:
                self.problems.append(f"message {index} ends without its stop {usual!r}")
            return text_end
        elif not tokens.get("user") and not tokens.get("tool"):
            self.problems.append(f"no stop token follows message {index}")
        return end

    def _same_next(self, tokens: dict[str, str]) -> str:
        """The control token that follows whoever speaks next, "" if it depends on that or opens every turn."""
        same = next(iter(tokens.values())) if len(tokens) > 1 and len(set(tokens.values())) == 1 else ""
        opens = not self.controls.is_stop(same) and same == self.controls.first(self._usual_prompt())
        return "" if opens and same in self._first_header() else same

    def _first_header(self) -> str:
        """What is written before the first content of a conversation, with a system message if that is possible."""
        for roles in (("system", "user"), ("user",)):
            probe: Any = [{"role": role, "content": f"{PROBE} {role}"} for role in roles]
            try:
                return self.render(probe, False).partition(PROBE)[0]
            except MessageError:
                continue
        return self.real

    def _before_header(self, text: str) -> str:
        """The stop with which the next turn begins, if its header follows; an opener is the header (GLM's)."""
        token = self.controls.first_at_start(text)
        header = text.partition(PROBE)[0].partition(token)[2] if token else ""
        return token if self.controls.is_stop(token) and self.controls.first(header) else ""

    def _next_texts(self, index: int, end: int) -> dict[str, str]:
        """By the role of the next message, what follows the end of a message."""
        texts = {}
        user: Any = {"role": "user", "content": PROBE}
        for role in ("user", "tool", "assistant"):
            probe: Any = {"role": role, "content": PROBE}
            for following in ([probe], [probe, user]):  # some templates want a question somewhere
                try:
                    text = self.render([*self.made.messages[: index + 1], *following], False)
                except MessageError:
                    continue
                after = self._after(Rendering(text, self.made.find(text)), end)
                if after is not None:
                    texts[role] = after
                    break
        return texts

    def _usual_prompt(self) -> str:
        """The generation prompt after another conversation; empty if the template refuses that, too."""
        probe: Any = [{"role": "user", "content": PROBE}]
        try:
            return added_prompt(self.render(probe, True), self.render(probe, False), self.controls)
        except MessageError:
            return ""

    def _usual_stop(self, role: str = "assistant") -> str:
        """The stop token right behind an answer that a user follows, or behind a question; empty if there is none."""
        probe: Any = [{"role": one, "content": f"{PROBE} {one}"} for one in ("user", "assistant", "user")]
        try:
            text = self.render(probe, False)
        except MessageError:
            return ""
        opening = text.partition(f"{PROBE} user")[0]
        after = text.partition(f"{PROBE} {role}")[2]
        token = self.controls.first_at_start(after)
        is_opener = token == self.controls.at_end(opening.rstrip())  # of questions (GLM's `<|user|>`)
        return token if self.controls.is_stop(token) and not is_opener else ""
