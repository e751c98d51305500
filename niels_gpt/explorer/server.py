"""The HTTP server of the page. It listens on 127.0.0.1 only and answers its own page only."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import webbrowser
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from niels_gpt.errors import STORAGE_REMEDIES, NielsError, StorageError, UsageError
from niels_gpt.explorer.api import Explorer
from niels_gpt.explorer.dataset import NoSuchRow
from niels_gpt.explorer.html import STATIC
from niels_gpt.explorer.requests import (
    Browse,
    Compare,
    Export,
    Open,
    Render,
    Sample,
    Train,
    error_json,
    parsed_request,
)

HOST = "127.0.0.1"
MOST_BODY_BYTES = 32 * 1024 * 1024
AT_ONCE = 2  # requests that are computed at the same time: each takes memory
END_SECONDS = 1  # for unfinished requests after Ctrl-C
_NAMES = (HOST, "localhost")
_LOG = logging.getLogger(__name__)
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class OwnMachine:
    """Middleware that refuses requests of other sites and adds the page's security headers to every response.

    A foreign site cannot read responses without CORS, but it may make a name that it controls point at 127.0.0.1 (DNS
    rebinding): the Host header then names it. A request that another page sends carries that page's Origin.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        # Start and end of the server come through here, too.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wrong = _foreign(dict(scope["headers"]), scope["method"])

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Added when the response starts, so that no route can leave them out.
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        if wrong:
            await JSONResponse({"error": wrong, "kind": "Foreign"}, 403)(scope, receive, sent)
        else:
            await self._app(scope, receive, sent)


def _foreign(headers: Mapping[bytes, bytes], method: str) -> str:
    """The reason to refuse a request; empty if it comes from the server's own page."""
    host = headers.get(b"host", b"").decode("latin-1")
    if host.rsplit(":", 1)[0] not in _NAMES:
        return f"the Host header is {host!r}; expected {HOST} or localhost: open the address that the command printed"
    # Browsers send it with requests of other sites, and with every POST.
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1") != f"http://{host}":
        return "the request comes from another page; expected this server's own"
    # A form of another site can POST text without a preflight request, but not JSON.
    if method == "POST" and not headers.get(b"content-type", b"").startswith(b"application/json"):
        return "POST without JSON; expected content-type: application/json"
    return ""


class Ending:
    """Middleware that answers requests which Ctrl-C cuts off; without it uvicorn logs a traceback for each."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except asyncio.CancelledError:  # not raised again: the task ends here in any case
            if not begun:
                await JSONResponse({"error": "the explorer was ended", "kind": "Ended"}, 503)(scope, receive, send)


def create_app(explorer: Explorer) -> Starlette:
    """The page and its API."""
    # starlette takes the handler of the first base of an error's class that is listed. A NielsError that is an OSError
    # too may come to either of these handlers.
    handlers: dict[Any, Any] = {
        NielsError: _refused,
        HTTPException: _no_such_page,
        ClientDisconnect: _left,
        OSError: _unreadable,
        Exception: _failed,
    }
    app = Starlette(routes=_routes(explorer), exception_handlers=handlers)
    app.add_middleware(OwnMachine)
    return app


def _routes(explorer: Explorer) -> list[Route | Mount]:
    """The page, its files, and one address for each question that it asks the explorer."""
    # Answers are computed in threads; more at once would only take memory and time from each other.
    limiter = CapacityLimiter(AT_ONCE)

    async def computed(answer: Callable[[], Any]) -> bytes:
        """The response body, computed in a thread; the server does not wait for it after Ctrl-C."""

        def encoded() -> bytes:
            value = answer()
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            # A lone surrogate in the data must not fail the response.
            return text.encode("utf-8", "replace")

        return await to_thread.run_sync(encoded, abandon_on_cancel=True, limiter=limiter)

    def posts(path: str, kind: Any, answer: Callable[[Any], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await _body(request)
            found = await computed(lambda: answer(parsed_request(kind, body)))
            return Response(found, media_type="text/html" if kind is Export else "application/json")

        return Route(path, endpoint, methods=["POST"])

    async def session(request: Request) -> Response:
        return Response(await computed(explorer.session), media_type="application/json")

    async def image(request: Request) -> Response:
        try:
            place = [int(request.query_params[name]) for name in ("row", "message", "part")]
            place.append(int(request.query_params.get("completion", 0)))
        except (KeyError, ValueError) as error:
            raise UsageError("expected row, message and part, and maybe completion, each a number") from error
        data, kind = await to_thread.run_sync(lambda: explorer.image(*place), abandon_on_cancel=True, limiter=limiter)
        return Response(data, media_type=kind)

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    return [
        Route("/", page),
        Route("/api/session", session),
        Route("/api/image", image),
        posts("/api/render", Render, explorer.render),
        posts("/api/drift", Compare, explorer.drift),
        posts("/api/rows", Browse, explorer.rows),
        posts("/api/row", Open, explorer.row),
        posts("/api/stats", Sample, explorer.stats),
        posts("/api/training", Train, explorer.training),
        posts("/api/export", Export, explorer.export),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            raise UsageError(f"the request is longer than {MOST_BODY_BYTES >> 20} MiB; shorten the conversation")
    return bytes(body)


async def _refused(request: Request, error: NielsError) -> Response:
    return JSONResponse(error_json(error), 404 if isinstance(error, NoSuchRow) else 400)


async def _unreadable(request: Request, error: OSError) -> Response:
    """A file of the data is gone, or cannot be read any more."""
    if isinstance(error, NielsError):
        return await _refused(request, error)
    where = f"{error.filename}: " if error.filename else ""
    remedy = STORAGE_REMEDIES.get(error.errno or 0, "see the system's message")
    return await _refused(request, StorageError(f"{where}reading failed: {error.strerror or error}; {remedy}"))


async def _no_such_page(request: Request, error: HTTPException) -> Response:
    text = f"there is nothing at {request.url.path}" if error.status_code == 404 else str(error.detail)
    return JSONResponse({"error": text, "kind": "HTTP"}, error.status_code)


async def _left(request: Request, error: ClientDisconnect) -> Response:
    """The client disconnected before its request was complete; this response is not read."""
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    # The traceback is for the terminal; the page gets one line.
    _LOG.error("%s failed", request.url.path, exc_info=error)
    return JSONResponse({"error": f"an error inside niels_gpt: {type(error).__name__}: {error}", "kind": "Fault"}, 500)


def bound(port: int) -> socket.socket:
    """A socket on this machine's own address.

    Raises:
        UsageError: the port is taken or out of range.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Else a port stays taken for a minute after the last run.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # a browser that connects before the server runs then waits instead of failing
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(
            f"port {port} cannot be used ({error}); choose another with --port, or leave it out"
        ) from error
    return listening


def server_of(explorer: Explorer) -> uvicorn.Server:
    """A server for `run(sockets=[bound(port)])`."""
    config = uvicorn.Config(
        Ending(create_app(explorer)),
        log_level="warning",
        lifespan="off",
        ws="none",
        # A line per request would hide the address and errors.
        access_log=False,
        timeout_graceful_shutdown=END_SECONDS,
    )
    return uvicorn.Server(config)


def serve(explorer: Explorer, *, port: int, browser: bool, announce: Callable[[str], None]) -> None:
    """Serve the page until interrupted, then close the explorer.

    Args:
        port: 0 takes any that is free.
        browser: open the page.
        announce: is given the address as soon as it is bound.

    Raises:
        UsageError: the port is taken.
    """
    listening = bound(port)  # before the server starts, so that the address names the port that was found free
    address = f"http://{HOST}:{listening.getsockname()[1]}/"
    announce(address)
    if browser:
        # The server blocks this thread, so the browser is opened from another, a moment after it listens.
        threading.Timer(0.3, webbrowser.open, [address]).start()
    try:
        server_of(explorer).run(sockets=[listening])
    finally:
        explorer.close()
