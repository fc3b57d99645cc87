"""A bench on a real server that injects faults: lost replies, missing heartbeats, the death of its process.

`die` is like `kill -9` as the server sees it: the heartbeats end. But the engine still exists, so that a test can
let it act too late. The steps that the server would take after a timeout are taken at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mainspring import NatsSettings
from mainspring.clock import Clock
from mainspring.engines.nats import claiming, queueing
from mainspring.engines.nats.deliveries import IN_PROGRESS, nak
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.write_batch import Write
from mainspring.engines.sqlite import SqliteProjection
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from tests.nats.proxy import Proxy
from tests.nats.servers import Servers
from tests.support import PATIENCE


class FaultBench(Bench):
    """A bench with access to the components of its engine, and with faults."""

    def __init__(self, engine: NatsEngine) -> None:
        super().__init__(engine, ManualClock())
        self.nats = engine
        parts = engine.components
        self.jetstream, self.names = parts.jetstream, parts.names
        self.leases, self.delivery_buffer, self.streams = parts.leases, parts.delivery_buffer, parts.streams
        self._losses: list[Callable[[str], bool]] = []
        self.lost: list[str] = []
        """The first subject of each change whose reply was lost."""
        self._store, self._store_each = self.jetstream._commit, self.jetstream.store_each
        self._is_silent = False
        self._pass_on = self.jetstream.send
        vars(self.jetstream).update(
            _commit=self._commit_and_lose, store_each=self._store_each_and_lose, send=self._send
        )

    # -- faults

    def lose_reply(self, *kinds: str) -> None:
        """Lose the reply to the next change of subjects of these kinds; the server stores the change."""
        prefixes = tuple(f"{self.names.prefix}.{place}{kind}." for kind in kinds for place in ("", "guarded."))
        self._losses.append(lambda subject: subject.startswith(prefixes))

    async def _commit_and_lose(self, writes: Sequence[Write]) -> int | None:
        first = await self._store(writes)
        return None if first is not None and self._is_lost(writes) else first

    def _store_each_and_lose(self, writes: Sequence[Write]) -> list[int | None]:
        revisions = self._store_each(writes)
        return [None] * len(writes) if None not in revisions and self._is_lost(writes) else revisions

    def _is_lost(self, writes: Sequence[Write]) -> bool:
        if not self._losses or not any(self._losses[0](write.subject) for write in writes):
            return False
        self._losses.pop(0)
        self.lost.append(writes[0].subject)
        return True

    def fall_silent(self) -> None:
        """Stop the heartbeats, and delete those that were sent. Leases and deliveries stay."""
        self._is_silent = True
        workers = self.nats._workers
        numbers = workers.numbers
        workers.drop_all()
        for number in numbers:
            workers.delete(number)
        # A purge is a request of its own: the server may answer later messages first.
        assert self.eventually(lambda: not any(self.has_message(self.names.worker(number)) for number in numbers))

    def _send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        self._pass_on([message for message in messages if not (self._is_silent and message[1] == IN_PROGRESS)])

    def die(self) -> None:
        """Fall silent, and make the server deliver the messages of this process to others."""
        self.fall_silent()
        self.delivery_buffer.return_all()
        self.deliver_again(*(active.job.id for active in self.leases.all()))

    # -- messages

    def deliver_again(self, *job_ids: str) -> None:
        """Let the server deliver the messages of leased jobs again, to any worker."""
        leases = [self.leases.get(job_id) for job_id in job_ids]
        assert None not in leases, f"not all of {job_ids} are leased"
        self.jetstream.send([(active.reply, nak(0)) for active in leases if active is not None])
        self.wait_until_processed()

    def wait_until_processed(self) -> None:
        """Wait until the server has processed all messages of this process."""
        self.jetstream.wait_until_processed(f"{self.names.workers}nobody")

    def ready(self, job_id: str = "job", *, queue: str = "default", type: str = TYPE, priority: int = 1) -> str:
        """Return the subject of the message of a job that is due."""
        return self.names.ready_of(queue, type, priority, job_id)

    def lane(self, *, queue: str = "default", type: str = TYPE, priority: int = 1) -> str:
        """Return the subject of all jobs of a lane."""
        return f"{self.ready('', queue=queue, type=type, priority=priority).rpartition('.')[0]}.*"

    def has_message(self, subject: str) -> bool:
        """Return whether the stream has a message for a subject."""
        return bool(self.jetstream.read_one(subject).revision)

    def purge(self, *subjects: str) -> None:
        """Empty subjects, as an operator can."""
        for subject in subjects:
            answer = self.jetstream.api(f"STREAM.PURGE.{self.names.stream}", {"filter": subject})
            assert answer["purged"] == 1, f"{subject}: {answer}"

    def consumers(self) -> dict[str, dict[str, Any]]:
        """Return the server's descriptions of all consumers, by their subjects."""
        answer = self.jetstream.api(f"CONSUMER.LIST.{self.names.stream}")
        return {info["config"]["filter_subject"]: info for info in answer["consumers"] or ()}


@pytest.fixture
def far_ahead(monkeypatch: pytest.MonkeyPatch) -> float:
    """Let workers hold jobs a minute before they are due; return a delay within that minute, in seconds."""
    for module in (queueing, claiming):
        monkeypatch.setattr(module, "LEAD", seconds(2 * PATIENCE))
    return PATIENCE


MakeBench: TypeAlias = Callable[..., FaultBench]
"""Takes the settings to change, and `clock`."""


@contextmanager
def fault_benches(server: Servers | Proxy, prefix: str, directory: Path, **settings: Any) -> Iterator[MakeBench]:
    """Yield a factory of benches on the same store, with projections in a directory; close their engines."""
    with ExitStack() as stack:

        def make(*, clock: Clock | None = None, **changes: Any) -> FaultBench:
            engine = NatsEngine(
                server.url,
                settings=NatsSettings(prefix=prefix, **{**settings, **changes}),
                make_projection=lambda name: SqliteProjection(directory / name),
                clock=clock,
            )
            bench = FaultBench(engine)
            stack.callback(engine.close)
            return bench

        yield make


@pytest.fixture
def make_bench(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[MakeBench]:
    """Yield a factory of benches on one store, each like a process of its own."""
    with fault_benches(nats_server, nats_prefix, tmp_path) as make:
        yield make


@pytest.fixture
def bench(make_bench: MakeBench) -> FaultBench:
    return make_bench()


@pytest.fixture
def other(make_bench: MakeBench) -> FaultBench:
    """Make a second bench on the same store."""
    return make_bench()
