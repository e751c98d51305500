"""How long a prompt each model takes, as its server tells; asked for once (`client.generate`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from niels_gpt.extras import check_library
from niels_gpt.forks import make_anew, new_lock

_LOG: Final = logging.getLogger(__name__)
Key = tuple[str, str]  # a server's root and a model


def optional_httpx() -> Any:
    """The library; `Any` because it is optional."""
    check_library("httpx")
    import httpx

    return httpx


@dataclass(frozen=True)
class Answer:
    """A model's `max_model_len`, `None` if the server does not tell; `problem` if asking failed."""

    limit: int | None
    problem: str = ""


class Limits:
    """What servers told of their models. One request per key, however many calls and event loops want to know."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._known: dict[Key, int | None] = {}
        self._asked: dict[Key, Future[Answer | None]] = {}
        self._warned: set[Key] = set()
        make_anew(self)

    def after_fork(self) -> None:
        """Whoever was asking is not there to answer those who wait."""
        self._asked = {}

    async def of(self, key: Key, ask: Callable[[], Awaitable[Answer]]) -> int | None:
        """The limit; failures hold for those who wait for the same request, and are not kept."""
        while True:
            with self._lock:
                if key in self._known:
                    return self._known[key]
                asked = self._asked.get(key)
                if asked is None:
                    mine: Future[Answer | None] = Future()
                    mine.set_running_or_notify_cancel()  # else one who stops waiting would cancel it for all
                    self._asked[key] = mine
            if asked is None:
                return await self._ask(key, mine, ask)
            answer = await asyncio.wrap_future(asked)
            if answer is not None:
                return answer.limit

    async def _ask(self, key: Key, future: Future[Answer | None], ask: Callable[[], Awaitable[Answer]]) -> int | None:
        answer: Answer | None = None  # stays so if this call is cancelled: one of those who wait asks again
        try:
            answer = await ask()
        finally:
            with self._lock:
                if answer is not None and not answer.problem:
                    self._known[key] = answer.limit
                self._asked.pop(key, None)
            future.set_result(answer)
        if answer.problem and key not in self._warned:
            self._warned.add(key)
            _LOG.warning("the length of prompts for %s at %s is not checked: %s", key[1], key[0], answer.problem)
        return answer.limit


LIMITS: Final = Limits()


async def ask_limit(client: Any, root: str, model: str, headers: Mapping[str, str] | None) -> Answer:
    """What `GET /v1/models` says of a model."""
    try:
        if isinstance(client, optional_httpx().AsyncClient):
            response = await client.get(f"{root}/v1/models", headers=headers)
            listing = response.raise_for_status().json()
        else:
            listing = await client.get("/models", cast_to=dict[str, Any])
    except Exception as error:
        # Any kind: each client has its own. Nothing is hidden; the request that follows meets the same server and
        # says what is wrong with it.
        return Answer(None, f"GET {root}/v1/models failed ({type(error).__name__}: {error})")
    cards = listing.get("data") if isinstance(listing, Mapping) else None
    if not isinstance(cards, list):
        return Answer(None, f"GET {root}/v1/models answered no list of models")
    own = [card for card in cards if isinstance(card, Mapping) and card.get("id") == model]
    limit = own[0].get("max_model_len") if own else None
    return Answer(limit if type(limit) is int and limit > 0 else None)
