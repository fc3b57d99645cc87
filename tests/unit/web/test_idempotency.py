"""`Idempotency-Key`: the form of keys, the same answer for the same request, and what a repetition finds after a
crash. Without a server.
"""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Mainspring
from mainspring.errors import EngineUnavailable
from mainspring.jobs import submission as submission_module
from mainspring.jobs.manager import JobManager
from mainspring.jobs.request_records import RequestEnd, RequestIds
from mainspring.jobs.submission import PreparedJob
from mainspring.security import Identity, Permissions, Scope
from mainspring.security.asgi_types import AsgiApp
from mainspring.security.http_limits import HttpLimits
from mainspring.web import idempotency
from mainspring.web.idempotency import (
    BUSY_SECONDS,
    MAX_ANSWER,
    MAX_KEY,
    MAX_UNPACKED,
    IdempotentWrites,
    StoredAnswer,
    WriteAnswer,
    decode_answer,
    digest_of,
    encode_answer,
    is_kept,
    parse_key,
)
from mainspring.web.problems import Refused, refuse
from tests.asgi_client import Answer, request, request_async

pytestmark = pytest.mark.long

JSON = ("content-type", "application/json")
VISIBLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=MAX_KEY)
BARE = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='",\\'), min_size=1, max_size=MAX_KEY
)
IDENTITY = Identity(name="shop", permissions=Permissions(scopes=frozenset({Scope.SUBMIT})), token="abc")


# -- keys


@given(VISIBLE)
def test_a_quoted_key_is_read_back_as_it_was_written(key: str) -> None:
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key(quoted) == key
    assert parse_key(f" \t{quoted} ") == key


@given(BARE)
def test_a_key_without_quotation_marks_is_the_same_key(key: str) -> None:
    assert parse_key(key) == parse_key(f'"{key}"') == key


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda raw: raw.decode("latin-1"))))
def test_any_other_text_is_a_clear_problem_and_nothing_else(text: str) -> None:
    key, problem = "fine", None
    try:
        key = parse_key(text)
    except Refused as refused:
        problem = refused.problem
    assert problem is None or (problem.status, problem.type) == (400, "idempotency-key-invalid")
    assert problem is None or "such as a UUID" in problem.detail
    assert 1 <= len(key) <= MAX_KEY
    assert key.isascii()
    assert key.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", '""', '"', '"a', 'a"', 'a"b', '"a"b"', '"a\\"', '"a\\b"', '"a";p=1', '"a", "b"', "a,b", "a b"),
        *("ä", "a\\b", "a\x00b", '"a\nb"', "x" * (MAX_KEY + 1), f'"{"x" * (MAX_KEY + 1)}"'),
    ],
)
def test_malformed_keys_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_key(text)


def test_requests_with_the_same_bytes_at_other_places_are_other_requests() -> None:
    parts = [(b"POST", b"/a", b"b"), (b"POST", b"/ab", b""), (b"POST/a", b"", b"b"), (b"PUT", b"/a", b"b")]
    assert len({digest_of(*each) for each in parts}) == len(parts)


# -- answers


@given(st.integers(200, 499), st.dictionaries(st.text(), st.text(), max_size=3), st.binary(max_size=5_000))
def test_an_answer_is_read_back_as_it_was_stored(status: int, headers: dict[str, str], body: bytes) -> None:
    answer = StoredAnswer(status, headers, body, problem=None if status < 400 else "a", members={"n": 1})
    assert decode_answer(encode_answer(answer)) == answer


def test_the_ids_of_the_largest_batch_are_small_enough_to_be_kept() -> None:
    ids = RequestIds("01a1eb0dc51976d7a34cad8d78f1f75a").take(10_000)
    answer = StoredAnswer(201, {}, json.dumps({"ids": ids}).encode())
    assert len(encode_answer(answer)) < MAX_ANSWER / 2
    assert decode_answer(encode_answer(answer)) == answer


def test_an_answer_that_is_too_large_is_not_kept_but_its_status_is() -> None:
    stored = encode_answer(StoredAnswer(201, {}, random.Random(1).randbytes(2 * MAX_ANSWER)))
    assert len(stored) < 100
    kept = decode_answer(stored)
    assert kept is not None
    assert (kept.status, kept.is_too_large) == (201, True)


def test_an_answer_that_compresses_well_is_kept_only_if_it_can_be_read_again() -> None:
    frame = len(msgspec.msgpack.encode(StoredAnswer(201, {}, bytes(MAX_UNPACKED - 100)))) - (MAX_UNPACKED - 100)
    largest = StoredAnswer(201, {}, bytes(MAX_UNPACKED - frame))
    assert decode_answer(encode_answer(largest)) == largest
    kept = decode_answer(encode_answer(StoredAnswer(201, {}, bytes(MAX_UNPACKED - frame + 1))))
    assert kept is not None
    assert kept.is_too_large


@cache
def bomb() -> bytes:
    """Return data of 100 kB that become 100 MB."""
    packer = zlib.compressobj()
    return b"z" + b"".join(packer.compress(bytes(2**20)) for _ in range(100)) + packer.flush()


def test_a_stored_answer_is_not_decompressed_without_a_bound() -> None:
    data = bomb()
    assert len(data) < MAX_ANSWER
    tracemalloc.start()
    try:
        assert decode_answer(data) is None
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_UNPACKED
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("status", [200, 201, 204, 400, 404, 409, 410, 413, 422])
def test_answers_that_stay_the_same_are_kept(status: int) -> None:
    assert is_kept(status)


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 500, 501, 502, 503, 504])
def test_answers_that_may_change_are_not_kept(status: int) -> None:
    assert not is_kept(status)


# -- requests


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:

        @app.job(name="add")
        def add(n: int = 0) -> int:
            return n

        yield app


@pytest.fixture
def asgi(app: Mainspring) -> AsgiApp:
    return app.asgi(auth="tokens")


@pytest.fixture
def token(app: Mainspring) -> str:
    return app.tokens.create("shop", scopes=["submit"]).secret


def submit(asgi: AsgiApp, token: str, key: str | None, **body: Any) -> Answer:
    headers = [JSON] if key is None else [JSON, ("idempotency-key", key)]
    content = json.dumps({"type": "add"} | body).encode()
    return request(asgi, "/api/v1/jobs", method="POST", token=token, headers=headers, body=content)


def number_of_jobs(app: Mainspring) -> int:
    return sum(app.counts().values())


@pytest.fixture
def later(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that lets time pass for the store and its records."""

    def pass_time(seconds: float) -> None:
        engine: Any = app.manager().engine
        before = engine.now

        def now() -> int:
            return int(before() + round(seconds * 1_000_000))

        monkeypatch.setattr(engine, "now", now)
        monkeypatch.setattr(engine._requests, "_now", now)

    return pass_time


def test_a_repetition_whose_stored_answer_was_changed_is_not_carried_out(
    app: Mainspring, asgi: AsgiApp, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, data in enumerate((bomb(), bomb()[:1_000], b"", b"z", b"zx", b"-", b"-x")):
        monkeypatch.setattr(idempotency, "encode_answer", lambda _, data=data: data)
        assert submit(asgi, token, f"k{number}").status == 201
        again = submit(asgi, token, f"k{number}")
        assert (again.status, again.problem) == (409, "idempotency-answer-too-large")
        assert "was carried out" in again.json["detail"]
        assert number_of_jobs(app) == number + 1


def test_the_same_key_and_body_get_the_same_answer_and_make_one_job(
    app: Mainspring, asgi: AsgiApp, token: str
) -> None:
    first = submit(asgi, token, "k1", arguments={"n": 1})
    assert first.status == 201
    assert "idempotency-replayed" not in first.headers
    for key in ("k1", '"k1"', " k1 "):
        again = submit(asgi, token, key, arguments={"n": 1})
        assert (again.status, again.body) == (first.status, first.body)
        assert again.headers["location"] == first.headers["location"]
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["content-type"] == first.headers["content-type"]
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert number_of_jobs(app) == 1


def test_without_a_key_each_request_makes_a_job(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    assert submit(asgi, token, None).json["id"] != submit(asgi, token, None).json["id"]
    assert number_of_jobs(app) == 2


def test_the_same_key_with_another_body_is_refused(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    assert submit(asgi, token, "k1", arguments={"n": 1}).status == 201
    other = submit(asgi, token, "k1", arguments={"n": 2})
    assert (other.status, other.problem) == (422, "idempotency-key-reused")
    assert "'k1'" in other.json["detail"]
    assert number_of_jobs(app) == 1


def test_keys_belong_to_a_token(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    other = app.tokens.create("mail", scopes=["submit"]).secret
    ids = {submit(asgi, each, "k1").json["id"] for each in (token, other, token, other)}
    assert len(ids) == number_of_jobs(app) == 2


def test_another_caller_learns_nothing_from_a_key(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    assert submit(asgi, token, "k1").status == 201
    reader = app.tokens.create("reader", scopes=["read"]).secret
    assert (answer := submit(asgi, reader, "k1")).status == 403
    assert answer.problem == "not-allowed"
    app.tokens.revoke("shop")
    assert submit(asgi, token, "k1").status == 401


def test_two_keys_in_one_request_are_refused(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    headers = [JSON, ("idempotency-key", "a"), ("idempotency-key", "a")]
    answer = request(asgi, "/api/v1/jobs", method="POST", token=token, headers=headers, body=b'{"type": "add"}')
    assert (answer.status, answer.problem) == (400, "header-repeated")
    assert number_of_jobs(app) == 0


def test_a_malformed_key_is_refused_and_nothing_is_done(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    answer = submit(asgi, token, "a b")
    assert (answer.status, answer.problem) == (400, "idempotency-key-invalid")
    assert number_of_jobs(app) == 0


def test_a_problem_that_stays_the_same_is_repeated_even_if_it_would_succeed_now(
    app: Mainspring, asgi: AsgiApp, token: str
) -> None:
    first = submit(asgi, token, "k1", type="later")
    assert (first.status, first.problem) == (422, "unknown-handler")
    app.job(name="later")(lambda: None)
    again = submit(asgi, token, "k1", type="later")
    assert (again.status, again.problem, again.json["detail"]) == (422, "unknown-handler", first.json["detail"])
    assert again.headers["idempotency-replayed"] == "true"
    assert submit(asgi, token, "k2", type="later").status == 201


def test_a_duplicate_is_repeated_with_all_its_members(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    assert submit(asgi, token, None, id="order-42").status == 201
    first, again = (submit(asgi, token, "k1", id="order-42") for _ in range(2))
    assert (first.status, first.problem) == (again.status, again.problem) == (409, "duplicate-job")
    assert first.json["existing_id"] == again.json["existing_id"] == "order-42"


def test_a_refusal_that_may_pass_is_not_kept(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    app.queue("full", max_depth=1)
    assert submit(asgi, token, None, queue="full", id="first").status == 201
    assert submit(asgi, token, "k1", queue="full").status == 429
    assert app.cancel("first")
    assert submit(asgi, token, "k1", queue="full").status == 201
    assert submit(asgi, token, "k1", queue="full").headers["idempotency-replayed"] == "true"


def test_a_key_is_forgotten_after_its_time(app: Mainspring, token: str, later: Callable[[float], None]) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(idempotency_seconds=3_600))
    first = submit(asgi, token, "k1")
    later(3_599)
    assert submit(asgi, token, "k1").body == first.body
    later(2)
    assert submit(asgi, token, "k1", arguments={"n": 2}).status == 201
    assert number_of_jobs(app) == 2


def test_a_token_with_too_many_keys_is_told_so(app: Mainspring, token: str) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(idempotency_keys=2))
    assert [submit(asgi, token, key).status for key in ("a", "b", "a", "b")] == [201] * 4
    answer = submit(asgi, token, "c")
    assert (answer.status, answer.problem) == (429, "too-many-idempotency-keys")
    assert answer.headers["retry-after"] == "60"
    assert "keeps at most 2 of a token, each for 24 h" in answer.json["detail"]
    assert submit(asgi, token, None).status == 201
    other = app.tokens.create("mail", scopes=["submit"]).secret
    assert submit(asgi, other, "c").status == 201


# -- batches


def submit_batch(
    asgi: AsgiApp, token: str, key: str | None, jobs: list[dict[str, Any]], query: str = ""
) -> Answer:
    headers = [JSON] if key is None else [JSON, ("idempotency-key", key)]
    path = f"/api/v1/jobs/batch{query}"
    body = json.dumps(jobs).encode()
    return request(asgi, path, method="POST", token=token, headers=headers, body=body)


def test_a_repeated_batch_gets_the_same_ids(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    jobs = [{"type": "add", "arguments": {"n": n}} for n in range(1_000)]
    first, again = (submit_batch(asgi, token, "k1", jobs) for _ in range(2))
    assert first.status == again.status == 201
    assert first.body == again.body
    assert again.headers["idempotency-replayed"] == "true"
    assert [job.id for job in app.jobs(limit=1_000)] == first.json["ids"]
    assert number_of_jobs(app) == 1_000
    other = submit_batch(asgi, token, "k1", jobs[:-1])
    assert (other.status, other.problem) == (422, "idempotency-key-reused")


def test_the_path_and_the_query_are_part_of_a_request(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    jobs = [{"type": "add"}]
    assert submit_batch(asgi, token, "k1", jobs).status == 201
    assert submit_batch(asgi, token, "k1", jobs, "?atomic=true").problem == "idempotency-key-reused"
    assert submit(asgi, token, "k1").problem == "idempotency-key-reused"
    assert number_of_jobs(app) == 1


def test_a_batch_with_a_wrong_line_is_repeated_as_it_was(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    jobs: list[dict[str, Any]] = [{"type": "add"}, {"type": "add", "arguments": {"n": "x"}}]
    first, again = (submit_batch(asgi, token, "k1", jobs) for _ in range(2))
    assert (first.status, first.problem) == (again.status, again.problem) == (422, "invalid-arguments")
    assert first.json["line"] == again.json["line"] == 2
    assert number_of_jobs(app) == 0


def test_a_batch_beyond_the_limit_of_the_server_is_refused(app: Mainspring, token: str) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(max_batch=2))
    assert submit_batch(asgi, token, None, [{"type": "add"}] * 2).status == 201
    answer = submit_batch(asgi, token, None, [{"type": "add"}] * 3)
    assert (answer.status, answer.problem) == (413, "batch-too-large")
    assert "the limit is 2" in answer.json["detail"]


def test_each_job_of_a_batch_counts_for_the_rate(app: Mainspring, token: str) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(max_batch=10, submit_burst=10, submit_rate=0.001))
    assert submit_batch(asgi, token, None, [{"type": "add"}] * 6).headers["ratelimit"].startswith('"submits";r=4;')
    answer = submit_batch(asgi, token, None, [{"type": "add"}] * 5)
    assert (answer.status, answer.problem) == (429, "submit-rate")
    assert submit_batch(asgi, token, None, [{"type": "add"}] * 4).status == 201


def test_the_depth_of_a_body_is_a_limit_of_the_server(app: Mainspring, token: str) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(max_depth=3))
    deep = {"n": [[1]]}
    for answer in (
        submit(asgi, token, None, arguments=deep),
        submit_batch(asgi, token, None, [{"type": "add", "arguments": deep}]),
    ):
        assert (answer.status, answer.problem) == (422, "too-deep")
        assert "more than 3 levels" in answer.json["detail"]


# -- crashes


class Killed(BaseException):
    """Ends a request at a point, as the end of the process would."""


def die(*_arguments: Any, **_options: Any) -> Any:
    raise Killed


def submit_and_die(asgi: AsgiApp, token: str, key: str, **body: Any) -> None:
    with pytest.raises(Killed):
        submit(asgi, token, key, **body)


@pytest.mark.parametrize("step", ["after the beginning", "after the submit"])
@pytest.mark.parametrize(
    "body",
    [{}, {"id": "order-42"}, {"unique": "only"}, {"unique": {"key": "only", "on_conflict": "raise"}}],
    ids=str,
)
def test_a_repetition_after_a_crash_makes_the_same_job(
    app: Mainspring,
    asgi: AsgiApp,
    token: str,
    later: Callable[[float], None],
    *,
    step: str,
    body: dict[str, Any],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # the process ends: neither the answer nor a release of the key is stored
        patch.setattr(JobManager, "end_request", die)
        if step == "after the beginning":
            patch.setattr(type(app.manager().submission), "store_async", die)
        submit_and_die(asgi, token, "k1", **body)
    before = [job.id for job in app.jobs()]
    assert len(before) == (step == "after the submit")
    busy = submit(asgi, token, "k1", **body)
    assert (busy.status, busy.problem) == (409, "idempotency-key-busy")
    assert 1 <= int(busy.headers["retry-after"]) <= BUSY_SECONDS
    later(BUSY_SECONDS + 1)
    other = submit(asgi, token, "k1", **body, queue="other")
    assert (other.status, other.problem) == (422, "idempotency-key-reused")
    answer = submit(asgi, token, "k1", **body)
    assert answer.status == 201
    assert answer.json["is_new"]
    assert [job.id for job in app.jobs()] == [answer.json["id"]]
    assert not before or before == [answer.json["id"]]
    assert submit(asgi, token, "k1", **body).body == answer.body


@pytest.mark.parametrize("stored", [0, 3, 50, 53, 90])
def test_a_repetition_of_a_batch_after_a_crash_completes_it(
    app: Mainspring, asgi: AsgiApp, token: str, later: Callable[[float], None], *, stored: int
) -> None:
    jobs: list[dict[str, Any]] = [{"type": "add", "arguments": {"n": n}} for n in range(90)]
    jobs[1]["id"] = "order-1"
    jobs[2] |= {"unique": "only"}
    jobs[80] |= {"unique": "only", "id": "order-80"}  # line 3 has the key
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobManager, "end_request", die)
        submission = app.manager().submission
        prepared: list[PreparedJob] = []

        def die_in_the_middle(ready: list[PreparedJob], _chunks: object) -> Any:
            prepared.extend(ready)
            app.manager().engine.submit([each.job for each in ready[:stored]])
            raise Killed

        patch.setattr(submission, "_store_in_order", die_in_the_middle)
        with pytest.raises(Killed):
            submit_batch(asgi, token, "k1", jobs)
    later(BUSY_SECONDS + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission_module, "CHUNK", 50)
        answer = submit_batch(asgi, token, "k1", jobs)
    assert answer.status == 201
    expected = [each.job.id for each in prepared]
    expected[80] = expected[2]
    assert answer.json["ids"] == expected
    assert answer.json["existing"] == [81]
    assert number_of_jobs(app) == len(set(expected)) == 89
    assert submit_batch(asgi, token, "k1", jobs).body == answer.body


def test_after_a_crash_a_job_of_another_request_with_the_chosen_id_is_still_a_duplicate(
    app: Mainspring, asgi: AsgiApp, token: str, later: Callable[[float], None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobManager, "end_request", die)
        patch.setattr(type(app.manager().submission), "store_async", die)
        submit_and_die(asgi, token, "k1", id="order-42", arguments={"n": 1})
    assert submit(asgi, token, None, id="order-42", arguments={"n": 2}).status == 201
    later(BUSY_SECONDS + 1)
    answer = submit(asgi, token, "k1", id="order-42", arguments={"n": 1})
    assert (answer.status, answer.problem) == (409, "duplicate-job")


def test_a_failure_of_the_server_releases_the_key_at_once(app: Mainspring, asgi: AsgiApp, token: str) -> None:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise EngineUnavailable(engine="e", reason="r", remedy="m")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(app.manager().submission), "store_async", fail)
        assert submit(asgi, token, "k1").status == 503
        patch.setattr(type(app.manager().submission), "store_async", lambda *_: 1 / 0)
        assert submit(asgi, token, "k1").status == 500
    assert submit(asgi, token, "k1").status == 201
    assert number_of_jobs(app) == 1


def test_an_answer_that_cannot_be_stored_is_sent_nevertheless(
    app: Mainspring, asgi: AsgiApp, token: str, later: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_manager: JobManager, _end: RequestEnd) -> bool:
        raise EngineUnavailable(engine="e", reason="r", remedy="m")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobManager, "end_request", fail)
        first = submit(asgi, token, "k1")
    assert first.status == 201
    assert "could not be stored" in caplog.text
    later(BUSY_SECONDS + 1)
    assert submit(asgi, token, "k1").body == first.body
    assert number_of_jobs(app) == 1


def test_while_the_first_request_is_carried_out_a_repetition_is_refused(
    app: Mainspring, asgi: AsgiApp, token: str
) -> None:
    async def both() -> None:
        is_begun, may_end = asyncio.Event(), asyncio.Event()
        submission = app.manager().submission
        store = submission.store_async

        async def slow(*arguments: Any) -> Any:
            is_begun.set()
            await may_end.wait()
            return await store(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(submission, "store_async", slow)
            options: dict[str, Any] = {
                "method": "POST",
                "token": token,
                "headers": [JSON, ("idempotency-key", "k1")],
                "body": b'{"type": "add"}',
            }
            first = asyncio.ensure_future(request_async(asgi, "/api/v1/jobs", **options))
            await is_begun.wait()
            busy = await request_async(asgi, "/api/v1/jobs", **options)
            assert (busy.status, busy.problem) == (409, "idempotency-key-busy")
            may_end.set()
            assert (await first).status == 201
            assert (await request_async(asgi, "/api/v1/jobs", **options)).body == (await first).body

    asyncio.run(both())
    assert number_of_jobs(app) == 1


# -- any write


def perform(app: Mainspring, carry_out: Callable[[RequestIds], Awaitable[WriteAnswer]]) -> WriteAnswer:
    writes = IdempotentWrites(app, HttpLimits())
    return asyncio.run(writes.perform(IDENTITY, "k", "d", carry_out))


def test_each_repetition_gets_the_same_ids_until_there_is_an_answer(app: Mainspring) -> None:
    taken: list[tuple[bool, list[str]]] = []

    async def fail(ids: RequestIds) -> WriteAnswer:
        taken.append((ids.is_resumed, ids.take(3)))
        raise refuse(503, "store-unavailable", "try again")

    async def succeed(ids: RequestIds) -> WriteAnswer:
        taken.append((ids.is_resumed, ids.take(3)))
        return WriteAnswer(status=200, body=b"done", headers={"Location": "/x"})

    for _ in range(2):
        with pytest.raises(Refused):
            perform(app, fail)
    answer = perform(app, succeed)
    repeated = perform(app, fail)
    assert (repeated.status, repeated.body) == (answer.status, answer.body)
    assert repeated.headers == {"Location": "/x", "Idempotency-Replayed": "true"}
    assert [is_resumed for is_resumed, _ in taken] == [False, True, True]
    assert taken[0][1] == taken[1][1] == taken[2][1]


def test_a_repetition_whose_answer_was_too_large_says_that_it_was_carried_out(app: Mainspring) -> None:
    async def answer(_ids: RequestIds) -> WriteAnswer:
        return WriteAnswer(status=200, body=random.Random(1).randbytes(2 * MAX_ANSWER))

    assert perform(app, answer).status == 200
    with pytest.raises(Refused, match="was carried out, with the status 200"):
        perform(app, answer)


def test_callers_without_tokens_have_keys_of_their_own(app: Mainspring) -> None:
    people = iter(["ann", "bob", "ann"])

    def identify(_scope: object) -> Identity:
        return Identity(name=next(people), permissions=Permissions(scopes=frozenset({Scope.SUBMIT})))

    asgi = app.asgi(auth=identify)
    ids = [submit(asgi, "unused", "k1").json["id"] for _ in range(3)]
    assert ids[0] == ids[2] != ids[1]
