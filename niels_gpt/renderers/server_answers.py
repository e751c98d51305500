"""What an inference server answers to `client.generate`: one JSON object, or a stream of them.

Every part is checked, because the result is trained on.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from niels_gpt.errors import DataError

_EXCERPT: Final = 300  # characters of a body that an error shows


class ServerError(DataError):
    """An inference server cannot be reached, refuses, or does not answer with a completion.

    `status` is the HTTP status, `None` if there was no answer.
    """

    def __init__(self, url: str, status: int | None, detail: str) -> None:
        super().__init__(f"{url}: {'no answer' if status is None else f'status {status}'}: {detail}")
        self.url, self.status, self.detail = url, status, detail

    def __reduce__(self) -> tuple[type[ServerError], tuple[str, int | None, str]]:
        """As for `MissingExtra`."""
        return type(self), (self.url, self.status, self.detail)


@dataclass(frozen=True)
class Completed:
    """A completion as the server sent it.

    Attributes:
        ids, logprobs: of the tokens that were sampled.
    """

    request_id: str
    ids: list[int]
    logprobs: list[float]
    finish_reason: str | None
    routed_experts: Any


def completed(url: str, status: int, content: bytes) -> Completed:
    """The first choice of an answer.

    `json.loads` reads routed experts with the rest. Measured: 0.9 ms per MB of base64, beside 26 ms for 32k tokens with
    their logprobs; cutting the text out beforehand would save 16 ms of 42 at 20 MB, and has to know where strings end.

    Raises:
        ServerError: it is no completion.
    """
    try:
        payload = json.loads(content)
    except (ValueError, RecursionError) as error:
        found = f"no JSON ({type(error).__name__}: {error})"
        raise _wrong(url, status, found, "an object with choices", content) from error
    return _first_choice(url, status, payload, content)


def _first_choice(url: str, status: int, payload: Any, content: bytes) -> Completed:
    """The first choice of a whole answer, or what a part of a streamed one adds to it.

    Raises:
        ServerError: it is no completion.
    """
    choices = payload.get("choices") if isinstance(payload, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _wrong(url, status, "no choice", "choices with one object", content)
    choice = choices[0]
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise _wrong(url, status, "choices[0].token_ids that are not ids, or empty", "at least one id", content)
    listed = logprobs.get("content") if isinstance(logprobs, dict) else None
    entries = listed if isinstance(listed, list) else []
    # Without this check a response with fewer logprobs would train on those of other tokens.
    values: list[Any] = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
    if len(values) != len(ids):
        raise _wrong(url, status, f"{len(values)} logprobs for {len(ids)} tokens", "one for each", content)
    if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        expected = "choices[0].logprobs.content[*].logprob"
        raise _wrong(url, status, "logprobs that are not finite numbers", expected, content)
    request_id, reason = payload.get("request_id"), choice.get("finish_reason")
    return Completed(str(request_id or ""), ids, list(map(float, values)), reason, choice.get("routed_experts"))


def _wrong(url: str, status: int, found: str, expected: str, content: bytes) -> ServerError:
    return ServerError(url, status, f"found {found}; expected {expected}. The server says {excerpt(content)}")


def excerpt(content: bytes) -> str:
    """The beginning of a body, for errors."""
    # A character has up to four bytes; the rest of a body of megabytes is not decoded.
    text = " ".join(content[: 4 * _EXCERPT].decode(errors="replace").split())
    return repr(text if len(text) <= _EXCERPT else text[: _EXCERPT - 3] + "...")


class StreamedCompletion:
    """A completion that comes in parts, each of them an object like that of `completed`, with new tokens only."""

    def __init__(self, url: str) -> None:
        self._url, self._status = url, 200
        self._parts: list[Completed] = []
        self._is_done = False

    def take(self, status: int, part: Any) -> list[int]:
        """The ids in a part of the stream: a line of server-sent events, or the JSON of one. Some hold none.

        Raises:
            ServerError: it is no part of a completion, or an error that came after the first part.
        """
        self._status, payload = status, part
        if isinstance(part, str):
            name, _, data = part.partition(":")
            is_end = name == "data" and data.strip() == "[DONE]"
            self._is_done |= is_end
            if name != "data" or is_end:  # other fields, comments, the empty lines between events
                return []
            try:
                payload = json.loads(data)
            except (ValueError, RecursionError) as error:
                found = f"no JSON ({type(error).__name__}: {error})"
                raise _wrong(self._url, status, found, "an object with choices", data.encode()) from error
        # The last part, with `usage` only, if the caller asked for it (`stream_options`).
        if isinstance(payload, dict) and payload.get("choices") == [] and "error" not in payload:
            return []
        self._parts.append(_first_choice(self._url, status, payload, json.dumps(payload).encode()))
        return self._parts[-1].ids

    def whole(self) -> Completed:
        """The completion of all parts together.

        Raises:
            ServerError: there are none, the stream broke off, or routed experts came in several parts.
        """
        reasons = [part.finish_reason for part in self._parts if part.finish_reason is not None]
        # A connection that breaks off looks like an end: only a reason or `[DONE]` says that the answer is whole.
        if not self._parts or not (reasons or self._is_done):
            found = f"the stream ended after {len(self._parts)} parts without a finish_reason"
            raise ServerError(self._url, self._status, f"{found}; expected a whole completion. Ask again")
        experts = [part.routed_experts for part in self._parts if part.routed_experts is not None]
        if len(experts) > 1:
            raise ServerError(
                self._url, self._status, "routed experts in several parts; expected one. Call generate without on_event"
            )
        return Completed(
            self._parts[0].request_id,
            [token for part in self._parts for token in part.ids],
            [value for part in self._parts for value in part.logprobs],
            reasons[-1] if reasons else None,
            experts[0] if experts else None,
        )
