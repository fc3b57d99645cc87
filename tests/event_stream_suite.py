"""Tests of `GET /api/v1/events` for every engine: what a stream has, and how it continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from mainspring import Mainspring
from mainspring.jobs.event_stream import EventFollower
from mainspring.jobs.manager import JobManager
from tests.event_client import event_server
from tests.support import Background, eventually

READERS = 50


class Shop:
    """An application with two job types, whose jobs no worker runs."""

    def __init__(self, app: Mainspring) -> None:
        self.app = app
        self._pack = app.job(name="shop.pack", queue="orders")(_nothing)
        self._mail = app.job(name="shop.mail", queue="mails")(_nothing)

    def pack(self, *ids: str) -> None:
        """Submit jobs of the type `shop.pack`, to the queue `orders`."""
        for job_id in ids:
            self._pack.options(id=job_id).submit()

    def mail(self, *ids: str) -> None:
        """Submit jobs of the type `shop.mail`, to the queue `mails`."""
        for job_id in ids:
            self._mail.options(id=job_id).submit()


def _nothing() -> None: ...


@contextmanager
def open_shop(url: str) -> Iterator[Shop]:
    """Open the store as another process would."""
    with Mainspring(url) as app:
        yield Shop(app)


def submitted(*ids: str) -> list[tuple[str, str]]:
    """Return the stories of submits."""
    return [("submitted", job_id) for job_id in ids]


class EventStreamSuite:
    """The tests. A subclass has the fixture `url`, and says how events are deleted."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def shop(self, url: str) -> Iterator[Shop]:
        with open_shop(url) as shop:
            yield shop

    def delete_events(self, app: Mainspring) -> None:
        """Delete all events, as the store does by itself when they are old."""
        raise NotImplementedError

    # -- what a stream has

    def test_a_stream_has_the_events_from_now_on(self, shop: Shop) -> None:
        shop.pack("before")
        with event_server(shop.app) as server, server.follow() as client:
            client.begin()
            shop.pack("a")
            shop.mail("b")
            shop.app.cancel("a")
            assert client.next().story == ("submitted", "a")
            second = client.next()
            at = second.data.pop("at")
            assert second.data == {
                "kind": "submitted",
                "job_id": "b",
                "type": "shop.mail",
                "queue": "mails",
                "note": None,
            }
            assert at.endswith("Z")
            assert client.next().story == ("canceled", "a")

    def test_every_event_has_an_id_and_so_has_the_beginning(self, shop: Shop) -> None:
        with event_server(shop.app) as server, server.follow() as client:
            client.begin()
            ids = [client.last_id]
            shop.pack("a", "b")
            ids += [client.next().id, client.next().id]
            assert all(ids)
            assert len(set(ids)) == 3
            assert client.retry == 2_000

    def test_no_proxy_may_store_or_buffer_a_stream(self, shop: Shop) -> None:
        with event_server(shop.app) as server, server.follow() as client:
            headers = client.answer.headers
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["cache-control"] == "no-store"
            assert headers["x-accel-buffering"] == "no"
            assert headers["transfer-encoding"] == "chunked"
            assert headers["x-request-id"]

    # -- continuing

    def test_a_client_continues_where_it_was(self, shop: Shop) -> None:
        with event_server(shop.app) as server, server.follow() as stays:
            stays.begin()  # so that events are kept in memory
            with server.follow() as client:
                client.begin()
                shop.pack("a", "b")
                first = client.next()
                assert first.story == ("submitted", "a")
            shop.pack("c")
            assert stays.stories(3) == submitted("a", "b", "c")
            with server.follow(last_id=first.id) as client:
                assert client.begin().last_id == first.id
                assert client.stories(2) == submitted("b", "c")
                shop.pack("d")
                assert client.stories(1) == submitted("d")

    def test_a_client_continues_after_a_restart_of_the_server(self, url: str) -> None:
        with open_shop(url) as shop, event_server(shop.app) as server, server.follow() as client:
            client.begin()
            shop.pack("a", "b")
            last_id = client.next().id
            server.stop()
            client.wait_for_end()
        with open_shop(url) as shop:
            shop.pack("c")
            with event_server(shop.app) as server, server.follow(last_id=last_id) as client:
                client.begin()
                assert client.stories(2) == submitted("b", "c")
                shop.pack("d")
                assert client.stories(1) == submitted("d")

    def test_a_client_that_got_no_event_continues_after_a_restart(self, url: str) -> None:
        with open_shop(url) as shop, event_server(shop.app) as server, server.follow() as client:
            last_id = client.begin().last_id
        with open_shop(url) as shop:
            shop.pack("a")
            with event_server(shop.app) as server, server.follow(last_id=last_id) as client:
                assert client.begin().stories(1) == submitted("a")

    @pytest.mark.parametrize("last_id", ["0", "nonsense", "9" * 18, "9" * 400, "1-1", "\xe9"])
    def test_an_id_that_the_store_does_not_know_resets(self, shop: Shop, last_id: str) -> None:
        with event_server(shop.app) as server, server.follow(last_id=last_id) as client:
            reset = client.begin().next()
            assert (reset.name, list(reset.data)) == ("reset", ["reason"])
            shop.pack("a")
            assert client.stories(1) == submitted("a")
            with server.follow(last_id=reset.id) as again:
                assert again.begin().stories(1) == submitted("a")

    def test_events_that_were_deleted_reset(self, shop: Shop) -> None:
        with event_server(shop.app) as server, server.follow() as client:
            client.begin()
            shop.pack("a", "b", "c")
            last_id = client.next().id
            client.stories(2)
        self.delete_events(shop.app)
        with event_server(shop.app) as server, server.follow(last_id=last_id) as client:
            reset = client.begin().next()
            assert reset.name == "reset"
            assert reset.id != last_id
            shop.pack("d")
            assert client.stories(1) == submitted("d")

    # -- one follower

    def test_fifty_readers_have_one_follower(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        followers: list[EventFollower] = []
        follow_events = JobManager.follow_events

        def follow(manager: JobManager) -> EventFollower:
            followers.append(follow_events(manager))
            return followers[-1]

        monkeypatch.setattr(JobManager, "follow_events", follow)
        with event_server(shop.app, event_readers=READERS, caller_share=1) as server:
            with ExitStack() as stack:
                clients = [stack.enter_context(server.follow()).begin() for _ in range(READERS)]
                shop.pack("a", "b")
                assert all(client.stories(2) == submitted("a", "b") for client in clients)
                assert len(followers) == 1
                with server.follow() as refused:
                    assert refused.status == 503
                    problem = refused.problem
                    assert problem["type"] == "urn:mainspring:problem:too-many-event-readers"
                    assert problem["detail"].startswith("50 clients read events, which is the limit")
                    assert refused.answer.headers["retry-after"] == "10"

            def is_admitted() -> bool:
                with server.follow() as client:
                    return client.status == 200

            # The server notices that clients are gone. After the last one, the next reader has a new follower.
            assert eventually(lambda: is_admitted() and len(followers) > 1)

    # -- the end

    def test_a_stopping_server_ends_its_streams(self, shop: Shop) -> None:
        with event_server(shop.app, grace_seconds=1_000) as server, server.follow() as client:
            client.begin()
            Background(server.stop).result()
            client.wait_for_end()
