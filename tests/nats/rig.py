"""A process on a real server that a test can look into, and whose death and bad luck it decides.

`die` is what `kill -9` is to the server: no more signs of life, nothing is kept alive any more; but the engine is
still there, to say something too late. What the server would do in its time after that is done at once.
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
from mainspring.engines.nats.drafts import Put
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.messages import IN_PROGRESS, nak
from mainspring.engines.sqlite import SqliteProjection
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from tests.nats.servers import Servers
from tests.support import PATIENCE


class Rig(Bench):
    """A bench, and what is behind it."""

    def __init__(self, engine: NatsEngine) -> None:
        super().__init__(engine, ManualClock())
        self.nats = engine
        parts = engine.parts
        self.link, self.names = parts.link, parts.names
        self.hands, self.intake, self.streams = parts.hands, parts.intake, parts.streams
        self._losses: list[Callable[[str], bool]] = []
        self.lost: list[str] = []
        """What was stored without an answer: the first subject of each change."""
        self._store, self._store_each = self.link._commit, self.link._store_each
        self._is_silent = False
        self._pass_on = self.link.send
        vars(self.link).update(
            _commit=self._commit_and_lose, _store_each=self._store_each_and_lose, send=self._send
        )

    # -- bad luck

    def lose_answer(self, *kinds: str) -> None:
        """Let the next change that touches subjects of these kinds be stored, and lose the answer."""
        beginnings = tuple(f"{self.names.prefix}.{kind}." for kind in kinds)
        self._losses.append(lambda subject: subject.startswith(beginnings))

    async def _commit_and_lose(self, puts: Sequence[Put]) -> int | None:
        first = await self._store(puts)
        return None if first is not None and self._is_lost(puts) else first

    async def _store_each_and_lose(self, puts: Sequence[Put]) -> list[int | None]:
        revisions = await self._store_each(puts)
        return [None] * len(puts) if None not in revisions and self._is_lost(puts) else revisions

    def _is_lost(self, puts: Sequence[Put]) -> bool:
        if not self._losses or not any(self._losses[0](put.subject) for put in puts):
            return False
        self._losses.pop(0)
        self.lost.append(puts[0].subject)
        return True

    def fall_silent(self) -> None:
        """Give no more signs of life; those that were given vanish. What is here stays here."""
        self._is_silent = True
        workers = self.nats._workers
        numbers = workers.numbers
        workers.forget_ours()
        for number in numbers:
            workers.forget(number)
        self.in_order()

    def _send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        self._pass_on([message for message in messages if not (self._is_silent and message[1] == IN_PROGRESS)])

    def die(self) -> None:
        """Fall silent, and let the server give to others what is here."""
        self.fall_silent()
        self.intake.give_back()
        self.deliver_again(*(hand.job.id for hand in self.hands.all()))

    # -- messages

    def deliver_again(self, *job_ids: str) -> None:
        """Let the server deliver the messages of jobs in our hands again, to any worker that asks."""
        hands = [self.hands.get(job_id) for job_id in job_ids]
        assert None not in hands, f"not all of {job_ids} are in our hands"
        self.link.send([(hand.reply, nak(0)) for hand in hands if hand is not None])
        self.in_order()

    def in_order(self) -> None:
        """Wait until the server has taken in what was sent."""
        self.link.wait_for_order(f"{self.names.workers}nobody")

    def ready(self, job_id: str = "job", *, queue: str = "default", type: str = TYPE, priority: int = 1) -> str:
        """Return the subject of the message of a job that is due."""
        return self.names.ready_of(queue, type, priority, job_id)

    def lane(self, *, queue: str = "default", type: str = TYPE, priority: int = 1) -> str:
        """Return the subject of all jobs that are alike for those who take them."""
        return f"{self.ready('', queue=queue, type=type, priority=priority).rpartition('.')[0]}.*"

    def holds(self, subject: str) -> bool:
        """Answer whether the server has a message there."""
        return bool(self.link.read_one(subject).revision)

    def purge(self, *subjects: str) -> None:
        """Empty subjects, as an operator can."""
        for subject in subjects:
            answer = self.link.api(f"STREAM.PURGE.{self.names.stream}", {"filter": subject})
            assert answer["purged"] == 1, f"{subject}: {answer}"

    def consumers(self) -> dict[str, dict[str, Any]]:
        """Return what the server knows of consumers, by the subjects that they deliver."""
        answer = self.link.api(f"CONSUMER.LIST.{self.names.stream}")
        return {info["config"]["filter_subject"]: info for info in answer["consumers"] or ()}


@pytest.fixture
def far_ahead(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds after which a job is due that workers hold already: a minute ahead of its time, and not a second."""
    for module in (queueing, claiming):
        monkeypatch.setattr(module, "LEAD", seconds(2 * PATIENCE))
    return PATIENCE


MakeRig: TypeAlias = Callable[..., Rig]
"""Takes the settings to change, and `clock`."""


@contextmanager
def rigs(server: Servers, prefix: str, directory: Path, **settings: Any) -> Iterator[MakeRig]:
    """Lend rigs on the same jobs, with their local copies in a directory; their engines are closed in the end."""
    with ExitStack() as stack:

        def make(*, clock: Clock | None = None, **changes: Any) -> Rig:
            engine = NatsEngine(
                server.url,
                settings=NatsSettings(prefix=prefix, **{**settings, **changes}),
                make_projection=lambda name: SqliteProjection(directory / name),
                clock=clock,
            )
            rig = Rig(engine)
            stack.callback(engine.close)
            return rig

        yield make
