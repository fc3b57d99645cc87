"""Compressed bodies: gzip arrives as it was, bombs are refused before they grow, and damage is a clear error."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator
from itertools import pairwise
from tracemalloc import get_traced_memory, start, stop

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Mainspring
from mainspring.security.asgi_types import AsgiApp, AsgiScope, Receive, Send
from mainspring.security.http_limits import HttpLimits
from mainspring.web.decompression import ALWAYS_ALLOWED, Inflater, inflater_for
from mainspring.web.guard import CALLER, RequestGuard
from mainspring.web.problems import Refused
from tests.asgi_client import Answer, request

JSON = ("content-type", "application/json")
GZIP = ("content-encoding", "gzip")
MEGABYTE = 1_048_576


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[first:last] for first, last in pairwise(bounds)]


def inflate(parts: list[bytes], limits: HttpLimits | None = None) -> bytes:
    inflater = Inflater(limits or HttpLimits())
    return b"".join(inflater.inflate(part, is_last=n == len(parts) - 1) for n, part in enumerate(parts))


def problem_of(parts: list[bytes], limits: HttpLimits | None = None) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        inflate(parts, limits)
    return caught.value.problem.status, caught.value.problem.type


@given(st.binary(max_size=20_000), st.lists(st.integers(0, 100_000), max_size=8))
def test_a_body_is_the_same_in_whatever_parts_it_arrives(body: bytes, places: list[int]) -> None:
    assert inflate(cut(gzip.compress(body), places)) == body


@given(st.binary(max_size=2_000), st.lists(st.integers(0, 100_000), max_size=4))
def test_anything_else_is_a_clear_problem(body: bytes, places: list[int]) -> None:
    parts = cut(body, places)
    assert problem_of(parts) == (400, "body-not-gzip")


@given(st.binary(min_size=1, max_size=500), st.integers(0, 10_000))
def test_a_cut_body_is_refused(body: bytes, place: int) -> None:
    packed = gzip.compress(body)
    assert problem_of([packed[: place % len(packed)]]) == (400, "body-not-gzip")


def test_data_behind_the_end_is_refused() -> None:
    packed = gzip.compress(b"{}")
    assert problem_of([packed + b"x"]) == (400, "body-not-gzip")
    assert problem_of([packed, b"x"]) == (400, "body-not-gzip")
    assert problem_of([packed + packed]) == (400, "body-not-gzip")
    assert inflate([packed, b""]) == b"{}"


@pytest.mark.long
def test_a_bomb_is_refused_before_it_grows() -> None:
    bomb = gzip.compress(bytes(100 * MEGABYTE))
    assert len(bomb) < 150_000
    start()
    try:
        assert problem_of([bomb]) == (413, "body-too-large")
        assert problem_of(cut(bomb, [1_000, 2_000, 50_000])) == (413, "body-ratio")
        assert get_traced_memory()[1] < 30 * MEGABYTE
    finally:
        stop()


def test_the_size_of_the_result_is_limited_also_with_a_small_ratio() -> None:
    body = random.Random(1).randbytes(10_000)
    assert inflate([gzip.compress(body)], HttpLimits(max_body=10_000)) == body
    assert problem_of([gzip.compress(body + b"x")], HttpLimits(max_body=10_000)) == (413, "body-too-large")


def test_a_ratio_is_allowed_up_to_its_limit_and_for_small_bodies() -> None:
    limits = HttpLimits(max_ratio=20)
    assert inflate([gzip.compress(bytes(ALWAYS_ALLOWED))], limits) == bytes(ALWAYS_ALLOWED)
    assert problem_of([gzip.compress(bytes(ALWAYS_ALLOWED + 1))], limits) == (413, "body-ratio")
    jobs = json.dumps(
        [{"type": "shop.cancel_order", "arguments": {"order_id": n}} for n in range(10_000)]
    ).encode()
    assert inflate([gzip.compress(jobs)]) == jobs  # a real batch is far from the default


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "GZIP,br", "compress"])
def test_other_encodings_are_refused_with_the_one_that_is_accepted(encoding: str) -> None:
    with pytest.raises(Refused) as caught:
        inflater_for(encoding, HttpLimits())
    problem = caught.value.problem
    assert (problem.status, problem.type, problem.headers) == (
        415,
        "content-encoding",
        {"Accept-Encoding": "gzip"},
    )


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity "])
def test_a_body_without_an_encoding_is_left_alone(encoding: str | None) -> None:
    assert inflater_for(encoding, HttpLimits()) is None


# -- behind the guard


async def echo(scope: AsgiScope, receive: Receive, send: Send) -> None:
    names = {name for name, _ in scope["headers"]}
    assert not names & {b"content-encoding"}
    scope[CALLER] = "ann"  # an identified caller may send compressed bodies
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def post(app: AsgiApp, *parts: bytes, headers: tuple[tuple[str, str], ...] = (JSON, GZIP)) -> Answer:
    return request(app, "/", method="POST", headers=headers, chunks=parts)


def test_the_application_gets_the_decompressed_body() -> None:
    guard = RequestGuard(echo, limits=HttpLimits())
    packed = gzip.compress(b'{"a": 1}' * 1_000)
    answer = post(guard, packed[:10], packed[10:], headers=(JSON, ("Content-Encoding", "GZip")))
    assert (answer.status, answer.body) == (200, b'{"a": 1}' * 1_000)
    assert post(guard, b'{"a": 1}', headers=(JSON,)).body == b'{"a": 1}'


def test_the_compressed_size_is_limited_too() -> None:
    guard = RequestGuard(echo, limits=HttpLimits(max_body=1_000))
    body = random.Random(1).randbytes(2_000)
    length = ("content-length", str(len(gzip.compress(body))))
    assert post(guard, gzip.compress(body), headers=(JSON, GZIP, length)).problem == "body-too-large"
    assert post(guard, gzip.compress(body)).problem == "body-too-large"


def test_two_content_encodings_are_refused() -> None:
    guard = RequestGuard(echo, limits=HttpLimits())
    assert post(guard, gzip.compress(b"{}"), headers=(JSON, GZIP, GZIP)).problem == "header-repeated"


def test_a_raw_deflate_stream_is_no_gzip() -> None:
    guard = RequestGuard(echo, limits=HttpLimits())
    assert post(guard, zlib.compress(b"{}")).problem == "body-not-gzip"


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        app.job(name="ping")(lambda: None)
        yield app


@pytest.mark.long
def test_a_compressed_submit_makes_a_job_and_a_bomb_makes_none(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens")
    token = app.tokens.create("shop", scopes=["submit"]).secret
    for body, status in ((b'{"type": "ping"}', 201), (b'{"type": "ping"}' + b" " * 50 * MEGABYTE, 413)):
        answer = request(
            asgi, "/api/v1/jobs", method="POST", token=token, headers=[JSON, GZIP], body=gzip.compress(body)
        )
        assert answer.status == status
    assert app.counts()["PENDING"] == 1


def test_the_same_request_compressed_and_not_is_one_request_for_a_key(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens")
    token = app.tokens.create("shop", scopes=["submit"]).secret
    key = ("idempotency-key", "k1")
    body = b'{"type": "ping"}'
    answers = [
        request(asgi, "/api/v1/jobs", method="POST", token=token, headers=headers, body=content)
        for headers, content in (([JSON, key, GZIP], gzip.compress(body)), ([JSON, key], body))
    ]
    assert answers[0].body == answers[1].body
    assert app.counts()["PENDING"] == 1
