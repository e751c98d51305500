"""The HTTP server of the page. It listens on 127.0.0.1 only and answers its own page only."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from pydantic import ValidationError, validate_call
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from niels_gpt.errors import STORAGE_REMEDIES, MessageError, NielsError, UsageError
from niels_gpt.explorer.api import Explorer
from niels_gpt.explorer.dataset import NoSuchRow
from niels_gpt.explorer.html import STATIC

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


async def own_machine(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse requests of other sites, and add the page's security headers to every response.

    A foreign site cannot read responses without CORS, but it may make a name that it controls point at 127.0.0.1 (DNS
    rebinding): the Host header then names it. A request that another page sends carries that page's Origin.
    """
    wrong = _foreign(request)
    response = JSONResponse({"error": wrong, "kind": "Foreign"}, 403) if wrong else await call_next(request)
    response.headers.update(_HEADERS)
    return response


def _foreign(request: Request) -> str:
    """The reason to refuse a request; empty if it comes from the server's own page."""
    headers = request.headers
    host = headers.get("host", "")
    if host.rsplit(":", 1)[0] not in _NAMES:
        return f"the Host header is {host!r}; expected {HOST} or localhost: open the address that the command printed"
    # Browsers send it with requests of other sites, and with every POST.
    if headers.get("origin", f"http://{host}") != f"http://{host}":
        return "the request comes from another page; expected this server's own"
    # A form of another site can POST text without a preflight request, but not JSON.
    if request.method == "POST" and not headers.get("content-type", "").startswith("application/json"):
        return "POST without JSON; expected content-type: application/json"
    return ""


def create_app(explorer: Explorer) -> Starlette:
    """The page and its API."""
    # starlette takes the handler of the first base of an error's class that is listed.
    kinds = (NielsError, HTTPException, ClientDisconnect, OSError, Exception)
    app = Starlette(routes=_routes(explorer), exception_handlers=dict.fromkeys(kinds, _refused))
    app.add_middleware(BaseHTTPMiddleware, dispatch=own_machine)
    return app


def _routes(explorer: Explorer) -> list[Route | Mount]:
    """The page, its files, and one address for each question that it asks the explorer."""
    # Answers are computed in threads; more at once would only take memory and time from each other. The server does not
    # wait for them after Ctrl-C.
    limiter = CapacityLimiter(AT_ONCE)

    async def computed(answer: Callable[[], tuple[bytes, str]]) -> Response:
        data, kind = await to_thread.run_sync(answer, abandon_on_cancel=True, limiter=limiter)
        return Response(data, media_type=kind)

    def posts(name: str, method: Callable[..., Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await _body(request)
            return await computed(lambda: _encoded(asked(method, body)))

        return Route(f"/api/{name}", endpoint, methods=["POST"])

    async def session(request: Request) -> Response:
        return await computed(lambda: _encoded(explorer.session()))

    async def image(request: Request) -> Response:
        place = json.dumps(dict(request.query_params)).encode()
        return await computed(lambda: asked(explorer.image, place))

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    return [
        Route("/", page),
        Route("/api/session", session),
        Route("/api/image", image),
        posts("render", explorer.render),
        posts("drift", explorer.drift),
        posts("serving", explorer.serving),
        posts("rows", explorer.rows),
        posts("row", explorer.row),
        posts("stats", explorer.stats),
        posts("training", explorer.training),
        posts("export", explorer.export),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def asked(method: Callable[..., Any], body: bytes) -> Any:
    """Call a method of the explorer with the fields of a JSON object.

    Raises:
        UsageError: not JSON, or fields that the method does not take; the first wrong one is named.
    """
    try:
        fields = from_json(body or b"{}")
    except ValueError as error:
        raise UsageError(f"the request: {error}") from error
    if not isinstance(fields, dict):
        raise UsageError("the request: expected a JSON object")
    try:
        return validate_call(method)(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise UsageError(f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}") from error


def _encoded(answer: Any) -> tuple[bytes, str]:
    """An answer as bytes, and their media type."""
    is_page = isinstance(answer, str)
    text = answer if is_page else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate in the data must not fail the response.
    return text.encode("utf-8", "replace"), "text/html" if is_page else "application/json"


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            raise UsageError(f"the request is longer than {MOST_BODY_BYTES >> 20} MiB; shorten the conversation")
    return bytes(body)


_MESSAGE = re.compile(r"message (\d+)\b")


async def _refused(request: Request, error: Exception) -> Response:
    """An error as JSON; `message` is the index of the chat message that it names, so that it is shown there."""
    status, kind, text, more = 400, type(error).__name__, str(error), dict[str, Any]()
    if isinstance(error, MessageError):
        found = _MESSAGE.search(text)
        more = {"reason": error.reason, "message": int(found[1]) if found else None}
    elif isinstance(error, NielsError):
        status = 404 if isinstance(error, NoSuchRow) else 400
    elif isinstance(error, HTTPException):
        status = error.status_code
        text = f"there is nothing at {request.url.path}" if status == 404 else str(error.detail)
    elif isinstance(error, OSError):  # a file of the data is gone, or cannot be read any more
        where = f"{error.filename}: " if error.filename else ""
        remedy = STORAGE_REMEDIES.get(error.errno or 0, "see the system's message")
        text = f"{where}reading failed: {error.strerror or error}; {remedy}"
    elif not isinstance(error, ClientDisconnect):  # which nobody reads the response of
        # The traceback is for the terminal; the page gets one line.
        _LOG.error("%s failed", request.url.path, exc_info=error)
        status, text = 500, f"an error inside niels_gpt: {kind}: {error}"
    return JSONResponse({"error": text, "kind": kind, **more}, status)


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
        create_app(explorer),
        # Its errors are tracebacks of requests that Ctrl-C cuts off; others are logged by `_refused`.
        log_level="critical",
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
