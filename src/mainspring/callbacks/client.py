"""Sends the requests of callbacks with aiohttp: one pool of connections for each event loop.

Invariants
- A host name is resolved once for a connection. All of its addresses are checked, and one forbidden address
  refuses the host. aiohttp connects to the checked addresses and to no others, with the name for TLS (SNI and
  certificate).
- Redirects, cookies, and proxies and credentials of the environment are not used.
- At most `max_bytes` of a body are kept in memory, compressed or not. `bounded_reading.py` bounds everything else
  that an attempt reads.
- One call of `send` sends one request. aiohttp would send some again if their connection breaks.
- No error has the query of the URL, which may have secrets.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from mainspring.callbacks.addresses import find_objection
from mainspring.callbacks.answers import NoAnswer, ReceiverAnswer
from mainspring.callbacks.bounded_reading import BoundedAnswer, make_bounded_session
from mainspring.callbacks.policy import CallbackPolicy
from mainspring.callbacks.requests import CallbackRequest
from mainspring.errors import CallbackRefused
from mainspring.plurals import format_count

LOOKUP_THREADS = 32
LOOKUP_SECONDS = 10  # how long checked addresses are reused
IDLE_SECONDS = 30  # how long an unused connection is kept
RAW_DEFLATE = -zlib.MAX_WBITS

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""A coroutine function that gets a host name and a port, and returns the host's IP addresses."""


class CallbackClient:
    """Sends requests on one event loop. The connections are closed when the loop shuts down its generators.

    - `policy`: the settings of callbacks
    - `lookup`: finds the IP addresses of a host; None asks the operating system
    """

    def __init__(self, policy: CallbackPolicy, lookup: Lookup | None = None) -> None:
        self._policy = policy
        self._lookup = lookup
        self._sessions: AsyncGenerator[aiohttp.ClientSession, None] = self._open()

    async def _open(self) -> AsyncGenerator[aiohttp.ClientSession, None]:
        """Yield one session of aiohttp again and again, and close it when the event loop ends.

        An event loop closes the generators that were started on it before it is closed itself.
        """
        resolver = CheckedResolver(self._policy, self._lookup)
        connector = aiohttp.TCPConnector(
            limit=0,  # the slots of the worker limit the requests
            resolver=resolver,
            ssl=ssl.create_default_context(),
            ttl_dns_cache=LOOKUP_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
            happy_eyeballs_delay=0.25,
        )
        session = make_bounded_session(
            connector,
            self._policy.max_bytes,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            raise_for_status=False,
            timeout=aiohttp.ClientTimeout(total=None),  # the worker ends attempts that take too long
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        session._retry_connection = False  # aiohttp has no public name for it
        try:
            while True:
                yield session
        finally:
            await session.close()
            await resolver.close()

    async def send(self, request: CallbackRequest) -> ReceiverAnswer:
        """Send a request once, and return the receiver's answer, also one with an error code.

        Raises `NoAnswer` if the receiver cannot be reached or does not answer with HTTP, and `CallbackRefused` if
        its host has a forbidden address.
        """
        session = await anext(self._sessions)
        try:
            async with session.request(
                request.method,
                URL(request.url.text, encoded=True),
                headers=request.headers,
                data=request.body or None,
                allow_redirects=False,
            ) as answer:
                body, is_cut = await _read(answer, self._policy.max_bytes)
                headers = {name.lower(): _to_text(value) for name, value in answer.headers.items()}
                return ReceiverAnswer(answer.status, headers, body, is_cut)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            refused = _find_refusal(error)
            if refused is not None:
                raise refused from None
            raise NoAnswer(f"{request.url.shown} has not answered: {_describe(error)}") from None


def _to_text(value: str) -> str:
    """Return the value of a header, with U+FFFD in place of the surrogates that aiohttp uses for invalid UTF-8.

    A store could not store surrogates.
    """
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _describe(error: Exception) -> str:
    # the whole text of a ClientResponseError has the URL with its query
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    text = text.replace("\n", " ")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _find_refusal(error: BaseException | None) -> CallbackRefused | None:
    """Return the `CallbackRefused` of the resolver, which aiohttp wraps in its errors; None if there is none."""
    for _ in range(10):
        if error is None or isinstance(error, CallbackRefused):
            return error
        if isinstance(error, ForbiddenAddress):
            return error.refusal
        error = error.__cause__ or error.__context__
    return None


async def _read(answer: aiohttp.ClientResponse, most: int) -> tuple[bytes, bool]:
    """Return at most `most` bytes of a body after decompression, and whether a part of the body is missing.

    A body with an unknown or wrong compression is returned as empty. If more than `most` bytes are received before
    decompression, the connection is closed; otherwise the client can use it again.
    """
    chunks, size, is_cut = [], 0, False
    assert isinstance(answer, BoundedAnswer)
    async for chunk in answer.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            is_cut = True
            answer.close()
            break
    is_cut |= answer.bounded.is_cut
    raw = b"".join(chunks)[:most]
    coding = answer.headers.get("Content-Encoding", "").strip().lower()
    if coding in ("", "identity"):
        return raw, is_cut
    if coding not in ("gzip", "x-gzip", "deflate"):
        return b"", True
    return _decompress(raw, most, is_cut=is_cut)


def _decompress(raw: bytes, most: int, *, is_cut: bool) -> tuple[bytes, bool]:
    for wbits in (zlib.MAX_WBITS | 32, RAW_DEFLATE):  # gzip or zlib, found by the header; or neither of them
        inflater = zlib.decompressobj(wbits)
        try:
            body = inflater.decompress(raw, most)
        except zlib.error:
            continue
        return body, is_cut or bool(inflater.unconsumed_tail)
    return b"", True


class ForbiddenAddress(OSError):
    """The resolver raises this for a host with a forbidden address.

    The exception is an `OSError` because aiohttp expects one.
    """

    def __init__(self, refusal: CallbackRefused) -> None:
        self.refusal = refusal
        super().__init__(str(refusal))


class CheckedResolver(AbstractResolver):
    """Resolves host names for aiohttp. Refuses a host that has an address which callbacks must not connect to."""

    def __init__(self, policy: CallbackPolicy, lookup: Lookup | None = None) -> None:
        self._allow_private = policy.allow_private
        self._lookup = lookup or self._ask_system
        self._threads: ThreadPoolExecutor | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises `ForbiddenAddress` if one is forbidden, `OSError` if there is none.
        """
        try:
            found = list(dict.fromkeys(await self._lookup(host, port)))
        except UnicodeError as error:
            raise OSError(f"{host!r} is not a host name") from error
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} has no address")
        for address in found:
            objection = find_objection(address, allow_private=self._allow_private)
            if objection is not None:
                raise ForbiddenAddress(self._refuse(host, address, objection, len(found)))
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in found
        ]

    def _refuse(self, host: str, address: str, objection: str, count: int) -> CallbackRefused:
        which = "its only address" if count == 1 else f"one of its {format_count(count, 'address', 'addresses')}"
        may_allow = find_objection(address, allow_private=True) is None
        return CallbackRefused(
            url=host,
            reason=f"{which}, {address}, is {objection}",
            remedy="use CallbackPolicy(allow_private=True) if callbacks may call private addresses"
            if may_allow
            else "correct the DNS entry of the host",
        )

    async def _ask_system(self, host: str, port: int) -> list[str]:
        if self._threads is None:
            # not the threads of the event loop: there are few, and slow name servers would delay other work
            self._threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="mainspring-lookup")
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return [str(address[0]) for *_, address in found]

    async def close(self) -> None:
        """End the threads for lookups: drop lookups that wait for a thread, and do not wait for running ones."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
