"""Rights: each role with exactly those that `mainspring nats permissions` prints, on servers that log what they
forbid."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, get_args
from uuid import uuid4

import nats
import pytest

from mainspring import (
    Cancel,
    Concurrency,
    EngineUnavailable,
    EventKind,
    Every,
    JobEvent,
    JobStatus,
    Mainspring,
    NatsSettings,
    Priority,
    Rate,
    Reason,
    Retry,
    Unique,
    current_job,
)
from mainspring.cli.nats_permissions import make_grant
from mainspring.engines.nats.link import ServerError
from mainspring.engines.nats.settings import Role, inbox_of
from tests.nats.servers import MakeServers, Servers

pytestmark = pytest.mark.long

PATIENCE = 30.0
PASSWORD = "s3cret"


@dataclass(frozen=True)
class Place:
    """Servers with the rights of two applications in one account, and what is needed to get in."""

    servers: Servers
    folder: Path

    def url(self, role: Role, **settings: object) -> str:
        hosts = ",".join(f"shop-{role}:{PASSWORD}@{url.partition('://')[2]}" for url in self.servers.urls)
        query = {"prefix": "shop", "role": role, "lease": 2, "timeout": 5} | settings
        return f"nats://{hosts}?" + "&".join(f"{name}={value}" for name, value in query.items())

    def app(self, role: Role, **settings: object) -> Shop:
        return Shop(self.url(role, projection=self.folder / f"{uuid4()}.db", **settings))

    def violations(self) -> list[str]:
        said = "\n".join(node.process.log.read_text() for node in self.servers.nodes)
        return [line for line in said.splitlines() if "Violation" in line]


class Shop(Mainspring):
    """An application with handlers of every kind."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, threads=4, grace=5, **options)
        self.is_running, self.release, self.has_ticked = Event(), Event(), Event()
        soon = Retry(max_attempts=2, base=0.05)
        self.plain = self.job(name="plain")(lambda: "done")
        self.flawed = self.job(name="flawed", retry=soon)(_fail)
        self.slow = self.job(name="slow")(self._wait)
        self.called = self.job(name="called", concurrency=Concurrency(1, by="tenant"), rate=Rate(50, per=1))(_call)
        self.single = self.job(name="single", unique=Unique(by="number"))(_double)
        self.first = self.job(name="first", then=self.plain)(lambda: None)
        self.tick = self.job(name="tick")(self.has_ticked.set)
        self.brief = self.job(name="brief", expires=30, keep_result=1)(lambda: 1)

    def _wait(self) -> None:
        self.is_running.set()
        while not (current_job().cancelled or self.release.wait(0.02)):
            pass
        raise Cancel("asked to")


def _fail() -> None:
    raise RuntimeError("on purpose")


def _call(tenant: str) -> str:
    return tenant


def _double(number: int) -> int:
    return 2 * number


@pytest.fixture(params=[1, 3], ids=["one node", "three nodes"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from make_place(request, tmp_path, monkeypatch, request.param)


@pytest.fixture
def single(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from make_place(request, tmp_path, monkeypatch, 1)


def make_place(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> Iterator[Place]:
    printed = folder / "accounts.conf"
    command = ("nats", "permissions", "--prefix", "shop", "--prefix", "other", "--account", "APPS")
    printed.write_text(run_program(*command))
    for prefix in ("shop", "other"):
        for role in get_args(Role):
            monkeypatch.setenv(make_grant(prefix, role).password_variable, PASSWORD)
    make: MakeServers = request.getfixturevalue("make_nats_server" if nodes == 1 else "make_nats_cluster")
    yield Place(make(include=printed), folder)


def run_program(*arguments: str) -> str:
    """Run `mainspring` with these arguments; return what it prints."""
    command = [sys.executable, "-m", "mainspring", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def submit_all_kinds(app: Shop) -> list[Any]:
    """Submit, cancel and put off jobs of every kind; return handles of those that end well."""
    assert app.plain.after(60).submit().cancel()
    late = app.plain.after(60).submit()
    assert late.reschedule(delay=0.1)
    debounced = app.plain.options(unique=Unique("key", on_conflict="replace"))
    debounced.after(60).submit()
    kept = app.single.after(60).submit(1)
    assert app.single.submit(1).id == kept.id
    assert kept.cancel()
    for waiting in [app.plain.options(sequence="far").after(60).submit() for _ in range(3)]:
        assert waiting.cancel()
    for waiting in [app.called.after(60).submit("far") for _ in range(3)]:
        assert waiting.cancel()
    app.brief.options(expires=0.2).after(0.1).submit()
    ids = app.plain.submit_many([() for _ in range(60)])
    ids += app.plain.after(0.1).submit_many([() for _ in range(10)])
    return [
        app.plain.submit(),
        app.plain.options(queue="other", priority=Priority.USER_BLOCKING).submit(),
        late,
        debounced.after(0.1).submit(),
        app.single.submit(1),
        *(app.plain.options(sequence="near").submit() for _ in range(3)),
        *(app.called.submit(tenant) for tenant in "aabb"),
        app.first.submit(),
        app.brief.submit(),
        *map(app.handle, ids),
    ]


def test_with_the_printed_rights_every_role_does_its_work_and_nothing_is_forbidden(place: Place) -> None:
    operator = place.app("operator", replicas=len(place.servers.nodes))
    submitter, worker = place.app("submitter"), place.app("worker")
    with operator, submitter, worker:
        operator.manager()  # makes the streams
        events = submitter.events(timeout=PATIENCE)
        with worker.running():
            use_everything(operator, submitter, worker, events)
    assert place.violations() == []


def use_everything(operator: Shop, submitter: Shop, worker: Shop, events: Iterable[JobEvent]) -> None:
    submitter.schedules.put("tick", submitter.tick, Every(timedelta(seconds=1)))
    handles = submit_all_kinds(submitter) + submit_all_kinds(worker)
    letter = submitter.flawed.submit()
    slow = submitter.slow.submit()
    for handle in handles:
        assert handle.wait(PATIENCE) is JobStatus.COMPLETED
    assert letter.wait(PATIENCE) is JobStatus.FAILED
    assert worker.is_running.wait(PATIENCE)
    assert not slow.cancel()  # it runs: it is asked to stop
    assert slow.wait(PATIENCE) is JobStatus.CANCELED
    assert any(event.kind is EventKind.CANCELED and event.job_id == slow.id for event in events)

    for app in (submitter, operator, worker):
        assert app.counts()["COMPLETED"] >= len(handles)
        assert [found.id for found in app.dead_letters.list(type="flawed")] == [letter.id]
        assert "done" in str(app.get(handles[0].id).result)
        assert app.explain(letter.id).reason is Reason.FAILED
        assert app.queue("default").statistics().completed
        assert app.prune() == 0
        assert len(app.manager().engine.workers()) == 1
        app.manager().engine.backlog()
    assert submitter.schedules.pause("tick")
    assert submitter.schedules.resume("tick")
    assert worker.has_ticked.wait(PATIENCE)
    submitter.schedules.remove("tick")
    assert operator.queue("other").pause()
    assert operator.queue("other").resume()
    (replayed,) = operator.dead_letters.replay(type="flawed")
    assert operator.handle(replayed).wait(PATIENCE) is JobStatus.FAILED
    operator.retry(replayed)
    assert operator.handle(replayed).wait(PATIENCE) is JobStatus.FAILED
    assert operator.dead_letters.purge(letter.id, replayed) == 2


def test_jobs_of_a_dead_worker_are_rescued_by_one_with_the_same_rights(single: Place) -> None:
    with single.app("operator") as operator:
        operator.manager()
    dead, other = single.app("worker"), single.app("worker")
    with dead, other:
        running = dead.running()
        running.__enter__()
        job = dead.slow.submit()
        assert dead.is_running.wait(PATIENCE)
        engine: Any = dead.manager().engine
        engine._heartbeat.stop()
        engine._workers.renew = lambda _worker: True
        with other.running():
            assert other.is_running.wait(PATIENCE)
            job.cancel()
            assert job.wait(PATIENCE) is JobStatus.CANCELED
        dead.release.set()
        running.__exit__(None, None, None)
    assert single.violations() == []


def test_an_operator_moves_jobs_in_and_a_worker_runs_them(single: Place) -> None:
    url = f"sqlite:///{single.folder}/shop.db"
    shop = Shop(url)
    with shop:
        jobs = [shop.plain.options(sequence=key).submit() for key in ("a", "a", "b")]
        shop.schedules.put("tick", shop.tick, Every(timedelta(hours=1)))
    run_program("migrate", url, single.url("operator"))
    with single.app("worker") as worker, worker.running():
        for job in jobs:
            assert worker.handle(job.id).wait(PATIENCE) is JobStatus.COMPLETED
    assert single.violations() == []


# -- what is forbidden


async def refusal_to(place: Place, role: Role, subject: str) -> str:
    """Ask the server as a user of a role, without Mainspring; return in which words it forbids that."""
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def note(error: Exception) -> None:
        if not refused.done():
            refused.set_result(str(error))

    client = await nats.connect(
        place.servers.urls,
        user=f"shop-{role}",
        password=PASSWORD,
        inbox_prefix=inbox_of("shop", role).encode(),
        error_cb=note,
    )
    try:
        await client.publish(subject, b"{}", reply=client.new_inbox())
        return await asyncio.wait_for(refused, PATIENCE)
    finally:
        await client.close()


API = "$JS.API"
LANE = "shop.ready.default.plain.1.*"
CLOSED_TO_ALL = [
    f"{API}.STREAM.DELETE.shop",
    f"{API}.STREAM.SNAPSHOT.shop",
    f"{API}.STREAM.RESTORE.shop",
    f"{API}.STREAM.MSG.DELETE.shop",
    f"{API}.STREAM.LIST",
    f"{API}.STREAM.CREATE.elsewhere",
    f"{API}.CONSUMER.DELETE.shop.some",
    f"{API}.CONSUMER.CREATE.shop.some.shop.job.>",
    f"{API}.CONSUMER.DURABLE.CREATE.shop.some",
    f"{API}.STREAM.INFO.other",
    f"{API}.STREAM.MSG.GET.other",
    f"{API}.STREAM.PURGE.other",
    f"{API}.DIRECT.GET.other",
    f"{API}.CONSUMER.MSG.NEXT.other.some",
    "other.job.x",
    "other.settings",
    "elsewhere",
]
CLOSED_TO_SUBMITTERS = [
    f"{API}.CONSUMER.MSG.NEXT.shop.some",
    f"{API}.CONSUMER.CREATE.shop.some.{LANE}",
    "$JS.ACK.shop.some.1.1.1.1.0",
    "shop.worker.1",
]
CLOSED_TO_ALL_BUT_OPERATORS = [
    f"{API}.STREAM.CREATE.shop",
    f"{API}.STREAM.UPDATE.shop",
    "shop.move.x",
]
CLOSED: dict[Role, list[str]] = {
    "submitter": [
        *CLOSED_TO_SUBMITTERS,
        f"{API}.STREAM.PURGE.shop",
        *CLOSED_TO_ALL_BUT_OPERATORS,
    ],
    "worker": CLOSED_TO_ALL_BUT_OPERATORS,
    "operator": CLOSED_TO_SUBMITTERS,
}


@pytest.mark.parametrize("role", get_args(Role))
def test_what_a_role_does_not_need_is_forbidden(role: Role, single: Place) -> None:
    async def ask_all() -> dict[str, str]:
        return {subject: await refusal_to(single, role, subject) for subject in [*CLOSED_TO_ALL, *CLOSED[role]]}

    with single.app("operator") as operator:
        operator.manager()
    for subject, answer in asyncio.run(ask_all()).items():
        assert f'Permissions Violation for Publish to "{subject}"'.lower() in answer.lower()
    with single.app("operator") as operator:
        assert operator.counts()["PENDING"] == 0  # the stream is there, and well


def test_no_role_hears_the_answers_to_another(single: Place) -> None:
    async def listen() -> str:
        refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def note(error: Exception) -> None:
            refused.set_result(str(error))

        client = await nats.connect(single.servers.urls, user="shop-submitter", password=PASSWORD, error_cb=note)
        await client.subscribe(f"{inbox_of('shop', 'worker')}.>")
        try:
            return await asyncio.wait_for(refused, PATIENCE)
        finally:
            await client.close()

    assert "violation for subscription" in asyncio.run(listen()).lower()


# -- who lacks a right is told so at once


def refusal_of(app: Mainspring) -> str:
    with app, pytest.raises(EngineUnavailable) as error:
        app.manager()
    return str(error.value)


def test_a_missing_right_is_named_at_once_with_what_to_do(single: Place) -> None:
    """The timeout is longer than the test may last: nobody waits for it."""
    hosts = single.url("worker").partition("?")[0]
    patient = NatsSettings(prefix="shop", timeout=10 * PATIENCE)

    words = refusal_of(Mainspring(hosts, nats=patient))  # no role: the usual inbox, which it may not listen to
    assert "this user has no permission to subscribe to '_INBOX." in words
    assert "mainspring nats permissions --prefix shop" in words
    assert "&role=worker" in words

    words = refusal_of(Mainspring(single.url("worker", timeout=10 * PATIENCE)))
    assert "stream 'shop' does not exist" in words
    assert "role=operator" in words

    elsewhere = NatsSettings(prefix="elsewhere", inbox_prefix="_INBOX_shop_worker", timeout=10 * PATIENCE)
    words = refusal_of(Mainspring(hosts, nats=elsewhere))
    assert "has no permission to publish to '$JS.API.STREAM.INFO.elsewhere'" in words


def test_a_submit_and_a_read_without_the_right_raise_at_once(single: Place) -> None:
    with single.app("operator") as operator:
        operator.manager()
    app = Shop(single.url("submitter", timeout=10 * PATIENCE))
    with app:
        engine: Any = app.manager().engine
        names = engine.parts.names
        names.jobs = "other.job."  # as if the server gave it less
        with pytest.raises(EngineUnavailable, match=r"no permission to publish to 'other\.job\."):
            app.plain.submit()
        with pytest.raises(EngineUnavailable, match=r"no permission to publish to 'other\.job\."):
            app.plain.submit_many([() for _ in range(20)])
        with pytest.raises(
            EngineUnavailable, match=r"no permission to publish to '\$JS\.API\.DIRECT\.GET\.other'"
        ):
            engine.parts.link.scan("other.job.>", stream="other")


@pytest.mark.parametrize("role", ["submitter", "operator"])
def test_a_role_that_cannot_take_jobs_is_told_so_when_it_wants_to(role: Role, single: Place) -> None:
    with single.app("operator") as operator:
        operator.manager()
    app = single.app(role)
    with (
        app,
        pytest.raises(EngineUnavailable, match=f"the role '{role}' may not take jobs; run workers as"),
        app.running(),
    ):
        pytest.fail("it runs")
    assert single.violations() == []


def test_a_worker_can_make_no_consumer_of_anything_but_jobs_and_chores(single: Place) -> None:
    """The subject says what it is to deliver, and the server holds the request to it."""
    with single.app("operator") as operator:
        operator.manager()
    with single.app("worker") as worker:
        link: Any = worker.manager().engine.parts.link  # type: ignore[attr-defined]
        config = {"durable_name": "some", "name": "some", "ack_policy": "explicit", "filter_subject": "shop.job.>"}
        with pytest.raises(ServerError, match="filter"):
            link.api(f"CONSUMER.CREATE.shop.some.{LANE}", {"stream_name": "shop", "config": config})


def test_what_a_submitter_may_not_purge_goes_by_itself(single: Place) -> None:
    with single.app("operator") as operator:
        operator.manager()
    app = single.app("submitter")
    with app:
        assert app.plain.options(sequence="order-42").submit().cancel()
        link: Any = app.manager().engine.parts.link  # type: ignore[attr-defined]
        found = link.api("STREAM.MSG.GET.shop", {"last_by_subj": "shop.gate.>"})["message"]
        assert b64decode(found["hdrs"]).count(b"Nats-TTL: 60s") == 1
        assert not found.get("data")
    assert single.violations() == []
