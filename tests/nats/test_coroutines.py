"""Asynchronous calls on NATS: the same answers as on SQLite, and a server that does not answer blocks no loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import JobFailed, JobStatus, Mainspring, NatsSettings, Retry
from tests.nats.chaos_workers import projection_in
from tests.nats.proxy import Proxy
from tests.nats.servers import Servers
from tests.support import PATIENCE

pytestmark = pytest.mark.long


@pytest.fixture
def proxy(nats_server: Servers) -> Proxy:
    return nats_server.proxy()


@pytest.fixture
def app(proxy: Proxy, nats_prefix: str, tmp_path: Path) -> Iterator[Mainspring]:
    settings = NatsSettings(prefix=nats_prefix, timeout=20 * PATIENCE)
    with Mainspring(f"{proxy.url}?{projection_in(tmp_path)}", nats=settings, threads=2) as app:
        yield app


def test_coroutines_submit_wait_and_operate(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def double(number: int) -> int:
        if number < 0:
            raise ValueError("too small")
        return 2 * number

    async def scenario() -> None:
        async with app.running_async():
            assert await (await double.submit_async(21)) == 42
            ids = await double.submit_many_async([(number,) for number in range(10)])
            assert await asyncio.gather(*[await app.handle_async(job_id) for job_id in ids]) == [*range(0, 20, 2)]
            letter = await double.submit_async(-1)
            with pytest.raises(JobFailed, match="too small"):
                await letter
            await app.dead_letters.edit_async(letter.id, {"number": 4})
            (replayed,) = await app.dead_letters.replay_async(letter.id)
            assert await (await app.handle_async(replayed)) == 8
            later = await double.after(3600).submit_async(1)
            assert await later.reschedule_async(delay=7200) is True
            assert await later.cancel_async() is True
            assert await later.wait_async(PATIENCE) is JobStatus.CANCELED
            assert (await app.counts_async())["COMPLETED"] == 12
            assert await app.queue("other").pause_async() is True
            assert await app.queue("other").is_paused_async() is True
            assert len(await app.workers_async()) == 1

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_leaves_the_loop_free(app: Mainspring, proxy: Proxy) -> None:
    @app.job
    def double(number: int) -> int:
        return 2 * number

    async def scenario() -> list[object]:
        later = await double.after(3600).submit_async(1)
        proxy.freeze()
        calls = [
            double.after(3600).submit_async(2),
            later.status_async(),
            later.reschedule_async(delay=60),
            app.queue("other").pause_async(),
            app.explain_async(later.id),
            app.schedules.list_async(),
            app.counts_async(),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not tasks[0].done()
        assert not tasks[1].done()
        proxy.heal()  # by the loop, which is free
        return list(await asyncio.gather(*tasks))

    answers = asyncio.run(scenario())
    assert answers[1:4] == [JobStatus.PENDING, True, True]
    assert app.counts()["PENDING"] == 2
