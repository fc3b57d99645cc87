"""Submits on the thread of their caller: they go straight to the server, and an interrupted one leaves nothing."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident, main_thread
from typing import Any

import pytest

from mainspring import EngineUnavailable, JobHandle, JobStatus, Mainspring, NatsSettings
from mainspring.engines.nats import connection
from mainspring.engines.nats.engine import NatsEngine
from tests.nats.chaos_workers import projection_in
from tests.nats.proxy import Proxy
from tests.nats.server_access import tls
from tests.nats.servers import MakeServers, Servers
from tests.support import PATIENCE, Background, eventually

pytestmark = pytest.mark.long


@pytest.fixture
def proxy(nats_server: Servers) -> Proxy:
    return nats_server.proxy()


@pytest.fixture
def app(proxy: Proxy, nats_prefix: str, tmp_path: Path) -> Iterator[Mainspring]:
    settings = NatsSettings(prefix=nats_prefix, timeout=20 * PATIENCE)
    with Mainspring(f"{proxy.url}?{projection_in(tmp_path)}", nats=settings, threads=2) as app:
        submit(app, 0)  # the lane is known from now on
        yield app


def double(number: int) -> int:
    return 2 * number


def submit(app: Mainspring, number: int) -> JobHandle[int]:
    return app.job(name="double")(double).submit(number)


def engine_of(app: Mainspring) -> NatsEngine:
    engine = app.manager().engine
    assert isinstance(engine, NatsEngine)
    return engine


def waits_for_server(app: Mainspring) -> bool:
    """Return whether a submit waits for a reply, to its messages or later to a request."""
    return bool(engine_of(app).components.jetstream._inbox._collected) or waits_for_request(app)


def waits_for_request(app: Mainspring) -> bool:
    """Return whether a submit had no reply to its messages, and asks whether they are stored."""
    return bool(engine_of(app).components.jetstream._inbox._requests)


def test_a_submit_calls_the_engine_on_the_thread_of_its_caller(app: Mainspring) -> None:
    engine = engine_of(app)
    submit_jobs, threads = engine.submit, []

    def note_thread(jobs: Any) -> Any:
        threads.append(get_ident())
        return submit_jobs(jobs)

    vars(engine)["submit"] = note_thread
    handle = submit(app, 4)
    assert threads == [get_ident()]
    with app.running():
        assert handle.result(PATIENCE) == 8


@contextmanager
def parsed_by(app: Mainspring) -> Iterator[list[bytes]]:
    """Note the data that passes the parser of the client."""
    client = engine_of(app).components.jetstream.client
    assert client is not None
    parse, parsed = client._ps.parse, []

    async def parse_and_note(data: bytes = b"") -> None:
        parsed.append(data)
        await parse(data)

    vars(client._ps)["parse"] = parse_and_note
    yield parsed
    del vars(client._ps)["parse"]


def gets_direct_replies(app: Mainspring) -> bool:
    """Submit a job; return whether the acknowledgements reach it without the parser and its task.

    They pass the parser if they come together with another message.
    """
    inbox = engine_of(app).components.jetstream._inbox.subject.encode()
    with parsed_by(app) as parsed:
        submit(app, 1)
    return not any(inbox in data for data in parsed)


def test_the_acknowledgements_of_a_submit_do_not_pass_the_parser(app: Mainspring, proxy: Proxy) -> None:
    assert eventually(lambda: gets_direct_replies(app))
    before = proxy.accepted
    proxy.drop()
    assert eventually(lambda: proxy.accepted > before and engine_of(app).components.jetstream.is_connected)
    assert eventually(lambda: gets_direct_replies(app))


def test_the_acknowledgements_of_a_submit_do_not_pass_the_parser_with_tls(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    access = tls(tmp_path)
    server = make_nats_server(access)
    settings = NatsSettings(tls=ssl.create_default_context(cafile=access.ca_file))
    with Mainspring(f"{server.url}?{projection_in(tmp_path)}", nats=settings, threads=2) as app:
        submit(app, 0)  # the lane is known from now on
        assert eventually(lambda: gets_direct_replies(app))


def test_a_submit_waits_while_its_connection_is_lost_and_is_stored_once(app: Mainspring, proxy: Proxy) -> None:
    proxy.freeze()
    caller = Background(lambda: submit(app, 5).id)
    assert eventually(lambda: waits_for_server(app))
    proxy.cut()
    proxy.heal()
    job_id = caller.result()
    assert app.get(job_id).status is JobStatus.PENDING
    assert app.counts()["PENDING"] == 2


def test_a_submit_ends_with_an_error_when_its_application_is_closed(app: Mainspring, proxy: Proxy) -> None:
    engine = engine_of(app)
    proxy.freeze()
    caller = Background(lambda: submit(app, 5))
    assert eventually(lambda: waits_for_server(app))
    engine.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        caller.result()
    proxy.heal()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt`; a process that a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("waits", [waits_for_server, waits_for_request])
def test_an_interrupted_submit_leaves_nothing_behind(
    waits: Callable[[Mainspring], bool], app: Mainspring, proxy: Proxy
) -> None:
    assert get_ident() == main_thread().ident, "a signal interrupts the main thread"

    def interrupt() -> None:
        assert eventually(lambda: waits(app))
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    proxy.freeze()
    interrupter = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        submit(app, 6)
    interrupter.result()
    assert eventually(lambda: not waits_for_server(app))
    assert connection._shared_deadline.get() is None
    proxy.heal()
    handle = submit(app, 7)
    with app.running():
        assert handle.result(PATIENCE) == 14
    assert app.counts()["COMPLETED"] in {2, 3}, "the interrupted submit may have been stored"
