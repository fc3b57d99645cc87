"""The client of callbacks against a real receiver: addresses, TLS, redirects, proxies and sizes of answers."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import trustme

from mainspring import CallbackPolicy, CallbackRefused
from mainspring.callbacks.answers import NoAnswer, ReceiverAnswer
from mainspring.callbacks.client import CallbackClient, Lookup
from mainspring.callbacks.requests import CallbackRequest
from tests.receiver import Receiver, Reply, receiver

T = TypeVar("T")


@pytest.fixture
def local() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def policy_for(server: Receiver, host: str = "localhost", **options: object) -> CallbackPolicy:
    settings: dict[str, object] = {"allow_http": True, "allow_private": True, **options}
    return CallbackPolicy(allow=[server.url("/*", host=host)], **settings)  # type: ignore[arg-type]


def looking_up(*answers: list[str]) -> Lookup:
    """Return a lookup that gives these answers one after the other, and then the last one for ever."""
    left = list(answers)

    async def lookup(_host: str, _port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return lookup


def send(policy: CallbackPolicy, url: str, lookup: Lookup | None = None, **headers: str) -> ReceiverAnswer:
    async def run() -> ReceiverAnswer:
        client = CallbackClient(policy, lookup)
        return await client.send(CallbackRequest(policy.check(url), "POST", headers, b"{}"))

    return asyncio.run(run())


def run_with(policy: CallbackPolicy, lookup: Lookup | None, work: Callable[[CallbackClient], Awaitable[T]]) -> T:
    async def run() -> T:
        return await work(CallbackClient(policy, lookup))

    return asyncio.run(run())


def test_a_request_arrives_as_it_was_made(local: Receiver) -> None:
    url = local.url("/hooks/a%20b/%c3%bc?x=%2F&y=/..")
    answer = send(policy_for(local), url, None, **{"X-Key": "1"})
    (request,) = local.requests
    assert answer.status == 204
    assert request.path == "/hooks/a%20b/%c3%bc?x=%2F&y=/.."
    assert request.headers["host"] == f"localhost:{local.port}"
    assert request.headers["x-key"] == "1"
    assert {"cookie", "authorization", "user-agent", "accept"}.isdisjoint(request.headers)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["100.64.0.1"],
        ["169.254.169.254"],
        ["168.63.129.16"],
        ["192.0.0.192"],
        ["0.0.0.0"],
        ["93.184.216.34", "127.0.0.1"],
        ["2606:4700::1111", "fd00:ec2::254"],
    ],
)
def test_a_host_with_one_forbidden_address_is_refused(local: Receiver, addresses: list[str]) -> None:
    policy = policy_for(local, "hooks.example.com", allow_private=False)
    with pytest.raises(CallbackRefused) as caught:
        send(policy, local.url(host="hooks.example.com"), looking_up(addresses))
    assert addresses[-1] in str(caught.value)
    assert not local.requests


def test_a_metadata_service_is_refused_also_among_private_addresses(local: Receiver) -> None:
    policy = policy_for(local, "hooks.example.com")
    with pytest.raises(CallbackRefused, match="metadata service"):
        send(policy, local.url(host="hooks.example.com"), looking_up(["169.254.169.254"]))


def test_the_remedy_fits_the_address(local: Receiver) -> None:
    policy = policy_for(local, allow_private=False)
    with pytest.raises(CallbackRefused, match=r"allow_private=True"):
        send(policy, local.url())


def test_a_name_server_that_changes_its_answer_cannot_redirect_a_request(local: Receiver) -> None:
    """The address that is checked is the one that is connected to: the name is looked up once."""
    asked: list[str] = []
    rebinding = looking_up(["203.0.113.1"], ["127.0.0.1"])

    async def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return await rebinding(host, port)

    strict = policy_for(local, "hooks.example.com", allow_private=False)
    with pytest.raises(CallbackRefused):  # first a forbidden address, then another forbidden one
        send(strict, local.url(host="hooks.example.com"), lookup)
    assert (asked, local.requests) == (["hooks.example.com"], [])

    changing = looking_up(["127.0.0.1"], ["169.254.169.254"])
    policy = policy_for(local, "hooks.example.com")

    async def twice(client: CallbackClient) -> list[int]:
        url = policy.check(local.url(host="hooks.example.com"))
        request = CallbackRequest(url, "POST", {"Connection": "close"}, b"")
        return [(await client.send(request)).status for _ in range(2)]

    # the second request uses the checked address of before, or the new one is checked: it never connects elsewhere
    assert run_with(policy, changing, twice) == [204, 204]
    assert [request.headers["host"] for request in local.requests] == [f"hooks.example.com:{local.port}"] * 2


def test_a_new_lookup_is_checked_again(local: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.callbacks.client.LOOKUP_SECONDS", 0)
    policy = policy_for(local, "hooks.example.com")

    async def twice(client: CallbackClient) -> None:
        url = policy.check(local.url(host="hooks.example.com"))
        for _ in range(2):
            await client.send(CallbackRequest(url, "POST", {"Connection": "close"}, b""))

    with pytest.raises(CallbackRefused, match=r"169\.254\.169\.254"):
        run_with(policy, looking_up(["127.0.0.1"], ["169.254.169.254"]), twice)
    assert len(local.requests) == 1


def test_tls_uses_the_name_with_the_checked_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("hooks.example.com").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    lookup = looking_up(["127.0.0.1"])
    with receiver(context=context) as server:
        policy = CallbackPolicy(allow=[server.url("/*", host="*.example.com", scheme="https")], allow_private=True)
        with pytest.raises(NoAnswer, match=r"(?i)certificate"):  # an unknown authority
            send(policy, server.url(host="hooks.example.com", scheme="https"), lookup)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        answer = send(policy, server.url(host="hooks.example.com", scheme="https"), lookup)
        assert (answer.status, server.requests[0].sni) == (204, "hooks.example.com")
        with pytest.raises(NoAnswer, match=r"(?i)certificate"):  # of another name
            send(policy, server.url(host="other.example.com", scheme="https"), lookup)
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(local: Receiver, status: int) -> None:
    local.answer = lambda _: Reply(status, {"Location": local.url("/elsewhere")})
    assert send(policy_for(local), local.url()).status == status
    assert len(local.requests) == 1


def test_proxies_and_credentials_of_the_environment_are_not_used(
    local: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine localhost login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert send(policy_for(local), local.url()).status == 204
    assert "authorization" not in local.requests[0].headers


def test_cookies_are_not_kept(local: Receiver) -> None:
    local.answer = lambda _: Reply(204, {"Set-Cookie": "a=b; Path=/"})
    policy = policy_for(local)

    async def twice(client: CallbackClient) -> None:
        for _ in range(2):
            await client.send(CallbackRequest(policy.check(local.url()), "POST", {}, b""))

    run_with(policy, None, twice)
    assert all("cookie" not in request.headers for request in local.requests)


BOMB = b"\x00" * 5_000_000


BODIES = {
    "plain": (None, b"x" * 100, b"x" * 100, False),
    "plain and long": (None, b"x" * 2_000, b"x" * 1_000, True),
    "identity": ("identity", b"x" * 100, b"x" * 100, False),
    "gzip": ("gzip", gzip.compress(b"hello"), b"hello", False),
    "zlib": ("deflate", zlib.compress(b"hello"), b"hello", False),
    "raw deflate": ("deflate", zlib.compress(b"hello", wbits=-15), b"hello", False),
    "bomb": ("gzip", gzip.compress(BOMB), b"\x00" * 1_000, True),
    "no gzip": ("gzip", b"no gzip at all", b"", True),
    "brotli": ("br", b"anything", b"", True),
    "twice": ("gzip, gzip", gzip.compress(gzip.compress(b"a")), b"", True),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_are_cut_after_decompression(local: Receiver, name: str) -> None:
    coding, body, start, is_cut = BODIES[name]
    headers = {} if coding is None else {"Content-Encoding": coding}
    local.answer = lambda _: Reply(200, headers, body)
    answer = send(policy_for(local, max_bytes=1_000), local.url())
    assert (answer.body, answer.is_cut) == (start, is_cut)


def test_a_receiver_that_is_not_there_is_no_answer(local: Receiver) -> None:
    policy = CallbackPolicy(allow=["http://localhost:9/*"], allow_http=True, allow_private=True)
    with pytest.raises(NoAnswer, match="has not answered"):
        send(policy, "http://localhost:9/x?token=secret")


def test_a_name_without_an_address_is_no_answer(local: Receiver) -> None:
    policy = policy_for(local, "hooks.example.com")
    with pytest.raises(NoAnswer, match="has no address"):
        send(policy, local.url(host="hooks.example.com"), looking_up([]))


class RawReceiver:
    """A receiver that answers with these bytes, and ends the connection. It counts the requests."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._answers:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            answer = self._answers.pop(0)
            writer.write(answer)
            await writer.drain()
            if b"keep-alive" not in answer:
                break
        writer.close()

    def send(self, method: str = "POST", times: int = 1) -> ReceiverAnswer:
        """Send requests to this receiver one after the other, and return the last answer."""

        async def run() -> ReceiverAnswer:
            server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            url = f"http://localhost:{server.sockets[0].getsockname()[1]}/x"
            policy = CallbackPolicy(allow=[url], allow_http=True, allow_private=True)
            client = CallbackClient(policy)
            async with server:
                request = CallbackRequest(policy.check(f"{url}?token=secret"), method, {}, b"")
                return [await client.send(request) for _ in range(times)][-1]

        return asyncio.run(run())


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-babble\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n"]
)
def test_an_answer_that_is_no_http_is_no_answer_and_the_error_shows_no_query(answer: bytes) -> None:
    with pytest.raises(NoAnswer, match="has not answered") as caught:
        RawReceiver(answer).send()
    assert "secret" not in str(caught.value)


def test_headers_that_are_no_text_can_be_stored() -> None:
    answer = RawReceiver(b"HTTP/1.1 200 OK\r\nETag: \xff\r\nContent-Length: 0\r\n\r\n").send()
    assert answer.headers["etag"] == "\ufffd"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "GET"])
def test_a_request_whose_connection_breaks_is_not_sent_again(method: str) -> None:
    first = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
    server = RawReceiver(first, b"", first)
    with pytest.raises(NoAnswer):
        server.send(method, times=2)
    assert server.requests == 2, "one for each attempt"
