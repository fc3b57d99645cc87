"""Live pages: what a stream sends, what streams share, when they end, and how often the store is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from mainspring import Mainspring
from mainspring.clock import NANOSECONDS
from mainspring.jobs.pace import Pace
from mainspring.jobs.periodic_reads import periodic_reads
from mainspring.security.asgi_types import AsgiMessage
from mainspring.security.http_limits import HttpLimits
from mainspring.testing.manual_clock import ManualClock
from mainspring.web.dashboard import live
from mainspring.web.dashboard.dashboard import Dashboard
from mainspring.web.dashboard.live import LivePage, LiveStreams, UpdateRounds
from mainspring.web.dashboard.rendering import CSRF_PLACEHOLDER
from mainspring.web.dashboard.snapshots import Snapshots, Source
from mainspring.web.problems import Refused
from tests.dashboard_client import DashboardBrowser
from tests.support import PATIENCE


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(limited())


def dashboard_of(browser: DashboardBrowser, interval: float = 0.01) -> Dashboard:
    """Return the dashboard that a browser uses, with quicker updates."""
    dashboard: Dashboard = browser.asgi._app.state.dashboard  # type: ignore[attr-defined]
    dashboard.streams.interval = interval
    return dashboard


class Stream:
    """What a browser has received of a stream."""

    def __init__(self) -> None:
        self.status = 0
        self.blocks: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.events: list[str] = []
        self.gone = asyncio.Event()

    async def receive(self) -> AsgiMessage:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.has_begun.set()
        for block in message.get("body", b"").decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in fields:
                self.events.append(fields["event"])
            if fields.get("event") == "blocks":
                self.blocks.put_nowait(msgspec.json.decode(fields["data"]))


@asynccontextmanager
async def streaming(browser: DashboardBrowser, path: str = "/live/") -> AsyncIterator[Stream]:
    stream = Stream()
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"testserver"), (b"cookie", cookie.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def serve() -> None:
        await browser.asgi(scope, stream.receive, stream.send)

    task = asyncio.get_running_loop().create_task(serve())
    task.add_done_callback(lambda _: stream.has_ended.set())
    try:
        yield stream
    finally:
        stream.gone.set()
        await task


def test_a_stream_sends_all_blocks_once_and_then_what_changes(app: Mainspring) -> None:
    job = app.job(name="ping", queue="mail")(lambda: None)
    browser = DashboardBrowser(app)
    browser.get("/")
    dashboard_of(browser)
    names = {"problems", "headline", "tiles", "clock", "charts", "groups"}

    async def main() -> None:
        async with streaming(browser) as stream:
            first = await stream.blocks.get()
            assert set(first) == names
            assert "ping" not in first["groups"]
            job.after(timedelta(hours=1)).submit()
            while "ping" not in (blocks := await stream.blocks.get()).get("groups", ""):
                assert set(blocks) < names, "what has not changed is not sent"

    run(main)


def test_a_form_in_a_block_has_the_csrf_token_of_its_browser(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DashboardBrowser(app)
    second = DashboardBrowser(app, asgi=first.asgi)
    dashboard = dashboard_of(first)
    first.get("/")
    second.get("/")
    assert first.csrf != second.csrf
    renderer = dashboard._renderer
    blocks = renderer.blocks
    monkeypatch.setattr(
        renderer, "blocks", lambda *given: blocks(*given) | {"tiles": f"<i>{CSRF_PLACEHOLDER}</i>"}
    )

    async def main() -> None:
        async with streaming(first) as one, streaming(second) as two:
            assert (await one.blocks.get())["tiles"] == f"<i>{first.csrf}</i>"
            assert (await two.blocks.get())["tiles"] == f"<i>{second.csrf}</i>"

    run(main)


def test_a_stream_ends_when_its_token_is_revoked(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.0)
    browser = DashboardBrowser(app)
    dashboard = dashboard_of(browser)

    async def main() -> None:
        async with streaming(browser) as stream:
            await stream.blocks.get()
            await app.off_loop.write(app.tokens.revoke, browser.token_id)
            await stream.has_ended.wait()
            assert stream.events[-1] == "end"
        assert len(dashboard.streams) == 0

    run(main)


def test_a_stream_ends_when_the_server_stops_or_the_browser_leaves(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    dashboard = dashboard_of(browser)

    async def main() -> None:
        async with streaming(browser) as left:
            await left.blocks.get()
        async with streaming(browser) as stream:
            await stream.blocks.get()
            assert len(dashboard.streams) == 1
            browser.asgi.end_streams()  # type: ignore[attr-defined]
            await stream.has_ended.wait()
        async with streaming(browser) as refused:
            await refused.has_ended.wait()
            assert refused.status == 503

    run(main)


def test_a_stream_needs_a_session(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    browser.cookies.clear()

    async def main() -> None:
        async with streaming(browser) as stream:
            await stream.has_ended.wait()
            assert stream.status == 401

    run(main)


def test_streams_are_bounded() -> None:
    async def main() -> None:
        streams = LiveStreams(HttpLimits(event_readers=1))
        end = streams.enter()
        with pytest.raises(Refused, match="1 pages are open"):
            streams.enter()
        streams.leave(end)
        streams.enter()

    run(main)


def test_the_open_pages_of_one_token_leave_room_for_others(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(event_readers=4))
    browser, other = DashboardBrowser(app, asgi=asgi), DashboardBrowser(app, asgi=asgi)

    async def main() -> None:
        async with streaming(browser) as one:
            await one.blocks.get()
            async with streaming(browser) as two:
                await two.has_ended.wait()
                assert two.status == 429
            async with streaming(other) as three:
                await three.blocks.get()

    run(main)


class Painter:
    """Renders a page, and counts how often."""

    def __init__(self) -> None:
        self.renders = 0
        self.blocks = {"a": "b"}

    async def render(self) -> dict[str, str]:
        self.renders += 1
        await asyncio.sleep(0)
        return dict(self.blocks)


class Browser:
    """A stream that reads one page of the rounds."""

    def __init__(self, page: LivePage) -> None:
        self._page = page
        self._seen = 0

    def read(self) -> str:
        """Return the message of the last round."""
        text = self._page.message(has_last=self._seen == self._page.round - 1)
        self._seen = self._page.round
        return text


def test_a_round_renders_a_page_once_whatever_the_number_of_browsers() -> None:
    overview, jobs = Painter(), Painter()

    async def main() -> None:
        rounds = UpdateRounds(Pace(share=1, interval=PATIENCE))
        with ExitStack() as stack:
            browsers = [Browser(stack.enter_context(rounds.reading("/", overview.render))) for _ in range(10)]
            stack.enter_context(rounds.reading("/jobs", jobs.render))
            for number in range(1, 4):
                overview.blocks["a"] = str(number)
                await rounds.update()
                messages = [browser.read() for browser in browsers]
                assert messages[0] == f'event: blocks\ndata: {{"a":"{number}"}}\n\n'
                assert all(message is messages[0] for message in messages), "they share the encoded message"
                assert (overview.renders, jobs.renders) == (number, number)

    run(main)


def test_a_page_without_browsers_is_not_rendered() -> None:
    painter, other = Painter(), Painter()

    async def main() -> None:
        rounds = UpdateRounds(Pace(share=1, interval=PATIENCE))
        with rounds.reading("/", painter.render):
            with rounds.reading("/jobs", other.render):
                await rounds.update()
            await rounds.update()
        await rounds.update()
        assert (painter.renders, other.renders) == (2, 1)

    run(main)


def test_a_browser_gets_what_has_changed_and_all_blocks_if_it_is_new_or_was_slow() -> None:
    painter = Painter()

    async def main() -> None:
        rounds = UpdateRounds(Pace(share=1, interval=PATIENCE))
        with rounds.reading("/", painter.render) as page:
            first, slow = Browser(page), Browser(page)
            painter.blocks |= {"a": "1", "c": "1"}
            await rounds.update()
            assert first.read() == slow.read() == 'event: blocks\ndata: {"a":"1","c":"1"}\n\n'
            painter.blocks["c"] = "2"
            await rounds.update()
            assert first.read() == 'event: blocks\ndata: {"c":"2"}\n\n'
            assert Browser(page).read() == 'event: blocks\ndata: {"a":"1","c":"2"}\n\n'
            await rounds.update()
            assert first.read() == "", "nothing has changed"
            assert slow.read() == 'event: blocks\ndata: {"a":"1","c":"2"}\n\n'

    run(main)


def test_a_page_whose_numbers_are_old_says_how_old_they_are() -> None:
    ages = [5 * NANOSECONDS, NANOSECONDS, 0]

    async def render() -> dict[str, str]:
        reads = periodic_reads()
        assert reads is not None
        reads.note_age(ages.pop(0))
        return {"a": "b"}

    async def main() -> None:
        rounds = UpdateRounds(Pace(share=1, interval=PATIENCE))
        with rounds.reading("/", render) as page:
            browser, messages = Browser(page), []
            for _ in range(3):
                await rounds.update()
                messages.append(browser.read())
        assert messages == [
            'event: blocks\ndata: {"a":"b"}\n\nevent: age\ndata: 5\n\n',
            "event: age\ndata: 0\n\n",
            "",
        ]

    run(main)


def test_a_round_notes_its_processor_time() -> None:
    costs: list[int] = []

    class NotingPace(Pace):
        def end(self, cost_ns: int, availability: float = 1.0) -> None:
            costs.append(cost_ns)
            super().end(cost_ns, availability)

    async def render() -> dict[str, str]:
        reads = periodic_reads()
        assert reads is not None
        reads.add(7 * NANOSECONDS)  # as a thread that reads the store does
        return {}

    async def main() -> None:
        rounds = UpdateRounds(NotingPace(share=1, interval=PATIENCE))
        with rounds.reading("/", render):
            await rounds.update()
            await rounds.update()

    run(main)
    assert len(costs) == 2
    assert all(7 * NANOSECONDS <= cost < 8 * NANOSECONDS for cost in costs)


def test_a_round_begins_when_its_pace_allows_it() -> None:
    painter, asked = Painter(), asyncio.Event()

    class SlowPace(Pace):
        is_open = False

        def is_due(self, expected_ns: int = 0) -> bool:
            asked.set()
            return self.is_open

    async def main() -> None:
        pace = SlowPace(share=1, interval=0.001)
        with UpdateRounds(pace).reading("/", painter.render) as page:
            await asked.wait()
            asked.clear()
            await asked.wait()
            assert painter.renders == 0
            pace.is_open = True
            await page.renewed
            assert painter.renders > 0

    run(main)


def test_ten_open_pages_read_the_statistics_once_in_a_round(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.job(name="ping", queue="mail")(lambda: None).submit()
    browser = DashboardBrowser(app)
    dashboard = dashboard_of(browser, interval=PATIENCE)
    browser.get("/")
    engine = app.manager().engine
    counted = Mock(wraps=engine.statistics)
    monkeypatch.setattr(engine, "statistics", counted)
    paths = [*["/live/"] * 4, *["/live/jobs"] * 2, "/live/queues", *["/live/queues/mail"] * 2, "/live/workers"]

    async def main() -> None:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(streaming(browser, path)) for path in paths]
            rounds = dashboard.streams.rounds()
            for stream in streams:
                await stream.has_begun.wait()
            for number in range(1, 3):
                dashboard.snapshots.forget()
                await rounds.update()
                assert counted.call_count == number
            for stream in streams:
                assert await stream.blocks.get()

    run(main)


# -- reading the store


class Counter:
    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None

    async def read(self, _app: Mainspring) -> int:
        self.reads += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.reads


def test_the_store_is_read_once_a_second_whatever_the_number_of_pages(app: Mainspring) -> None:
    clock, counter = ManualClock(), Counter()
    source = Source(name="count", read=counter.read)

    async def main() -> None:
        snapshots = Snapshots(app, clock)
        assert await asyncio.gather(*(snapshots.get(source) for _ in range(20))) == [1] * 20
        clock.advance(timedelta(seconds=0.9))
        assert await snapshots.get(source) == 1
        clock.advance(timedelta(seconds=0.2))
        assert await asyncio.gather(*(snapshots.get(source) for _ in range(20))) == [2] * 20

    run(main)


def test_an_error_is_not_kept(app: Mainspring) -> None:
    counter = Counter()
    source = Source(name="count", read=counter.read)

    async def main() -> None:
        snapshots = Snapshots(app, ManualClock())
        counter.error = OSError("gone")
        with pytest.raises(OSError, match="gone"):
            await snapshots.get(source)
        counter.error = None
        assert await snapshots.get(source) == 2

    run(main)


def test_a_page_does_not_wait_for_a_slow_answer(app: Mainspring) -> None:
    clock, counter = ManualClock(), Counter()
    source = Source(name="slow", read=counter.read, seconds=60)

    async def main() -> None:
        snapshots = Snapshots(app, clock)
        assert snapshots.peek(source) is None
        assert await snapshots.get(source) == 1
        assert (snapshots.peek(source), counter.reads) == (1, 1)
        clock.advance(timedelta(seconds=61))
        assert snapshots.peek(source) == 1, "the old answer, while the new one is read"
        assert await snapshots.get(source) == 2
        assert (snapshots.peek(source), counter.reads) == (2, 2)

    run(main)
