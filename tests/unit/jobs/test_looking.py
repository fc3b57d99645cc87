"""When a worker looks for jobs: at the instants that the store names, and no more often than that."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.clock import SystemClock, deadline_after
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, Registry
from mainspring.jobs.io_layer import IoLayer
from mainspring.jobs.records import Lease
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.alarms import Alarms
from mainspring.jobs.working.attempts import calls_of
from mainspring.jobs.working.hands import Hands
from mainspring.jobs.working.looking import LEAD, Looking
from mainspring.jobs.working.progress import Reporting
from mainspring.runners.rest import Rest
from mainspring.runners.thread_pool import ThreadPool
from mainspring.testing import ManualClock
from mainspring.timing.timer import Timer
from tests.unit.jobs.engines import TestEngine
from tests.unit.jobs.leases import make_active, make_lease

MILLISECOND = 1_000


class ScriptedEngine(TestEngine):
    """Answers every look as a test says, and notes when it was asked what."""

    __test__ = False

    def __init__(self, *, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.answers: list[Taken] = []
        self.asked: list[int] = []
        self.demands: list[list[Demand]] = []

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        self.asked.append(self.now())
        self.demands.append(list(demands))
        return self.answers.pop(0) if self.answers else Taken([], None, is_more=False, stops=[])


class Bench:
    """What looks for jobs, without a worker around it."""

    def __init__(self, clock: ManualClock) -> None:
        self.engine = ScriptedEngine(clock=clock)
        self.start = self.engine.now()
        self.registry = Registry()
        self.taken: list[Taken] = []
        self.number = 1
        self._pool = ThreadPool(2, clock=clock)
        control = Control(self._pool.sequenced())
        io = IoLayer(self.engine, self._pool)
        timer = Timer(clock, name="test")
        self._timer = timer
        self._rest = Rest(clock)
        clock.attach(self)
        reporting = Reporting(io, timer, clock, self.engine, worker=lambda: 1, announce=lambda: None)
        self.hands = Hands(self.registry, reporting, threads=2, coroutines=3, processes=4, queues=None)
        self.looking = Looking(
            io,
            control,
            self.engine,
            Alarms(timer, clock, self.engine, control),
            self.hands,
            worker=lambda: self.number,
            on_taken=self._take,
            announce=lambda: None,
        )

    def _take(self, taken: Taken) -> None:
        self.taken.append(taken)
        for lease in taken.leases:
            self.hands.accept(lease)
        self.looking.plan(taken)
        self._rest.announce()

    def add(self, name: str, function: Any, **options: Any) -> None:
        self.registry.add(Handler(name, function, HandlerOptions(**options), JsonSerializer()))

    def answer(self, **answer: Any) -> None:
        """Script the next answer; instants are microseconds from the start."""
        for name in ("next_due", "next_look"):
            if name in answer:
                answer[name] += self.start
        self.engine.answers.append(
            Taken(**{"leases": [], "next_due": None, "is_more": False, "stops": [], **answer})
        )

    def asked(self) -> list[int]:
        return [instant - self.start for instant in self.engine.asked]

    def close(self) -> None:
        self._timer.close()
        self._pool.shutdown(timeout=0)

    # -- as a member of its clock

    def next_due(self) -> int | None:
        return self._timer.next_due()

    def activity(self) -> object:
        return len(self.engine.asked), len(self.taken)

    def settle(self, real_seconds: float) -> str | None:
        real = SystemClock()
        if not self._timer.settle(real_seconds):
            return "the timer"
        is_settled = self._rest.wait(self.looking.is_settled, deadline_after(real, real_seconds), real)
        return None if is_settled else "the store"


@pytest.fixture
def bench(clock: ManualClock) -> Iterator[Bench]:
    bench = Bench(clock)
    bench.add("ping", lambda: None)
    yield bench
    bench.close()


# -- when


def test_a_look_comes_exactly_when_the_store_names_an_instant(bench: Bench, clock: ManualClock) -> None:
    bench.answer(next_look=2_500 * MILLISECOND)
    bench.looking.look()
    clock.advance(10)
    assert bench.asked() == [0, 2_500 * MILLISECOND]


def test_a_job_is_looked_for_a_lead_before_it_is_due(bench: Bench, clock: ManualClock) -> None:
    bench.answer(next_due=60_000 * MILLISECOND)
    bench.looking.look()
    clock.advance(60)
    assert bench.asked() == [0, 60_000 * MILLISECOND - LEAD]


def test_the_earlier_of_two_reasons_decides(bench: Bench, clock: ManualClock) -> None:
    bench.answer(next_due=60_000 * MILLISECOND, next_look=7 * MILLISECOND)
    bench.looking.look()
    clock.advance(1)
    assert bench.asked() == [0, 7 * MILLISECOND]


def test_an_instant_that_has_passed_is_looked_at_soon_and_not_without_end(
    bench: Bench, clock: ManualClock
) -> None:
    for _ in range(3):
        bench.answer(next_look=-5)
    bench.looking.look()
    clock.advance(1)
    assert bench.asked() == [0, MILLISECOND, 2 * MILLISECOND, 3 * MILLISECOND]


def test_what_the_store_names_is_looked_at_without_room_as_well(bench: Bench, clock: ManualClock) -> None:
    lease = replace(make_lease(), type="ping")
    bench.answer(leases=[lease, replace(lease, ref=2)])
    bench.answer(next_look=5 * MILLISECOND)
    bench.looking.look()
    clock.settle()
    bench.looking.look()
    clock.advance(1)
    assert bench.engine.demands[1][0].starts == 0
    assert bench.asked() == [0, 0, 5 * MILLISECOND]


def test_what_was_left_for_lack_of_room_is_looked_at_when_there_is_some(bench: Bench, clock: ManualClock) -> None:
    lease = replace(make_lease(), type="ping")
    bench.answer(leases=[lease, replace(lease, ref=2)])
    bench.answer(next_due=60_000 * MILLISECOND)
    bench.looking.look()
    clock.settle()
    bench.looking.look()
    clock.settle()
    bench.looking.use_room()
    clock.settle()
    assert len(bench.asked()) == 3


def test_with_nothing_left_room_is_no_reason_to_look(bench: Bench, clock: ManualClock) -> None:
    bench.looking.look()
    clock.settle()
    bench.looking.use_room()
    clock.settle()
    assert len(bench.asked()) == 1


def test_after_the_end_nobody_looks(bench: Bench, clock: ManualClock) -> None:
    bench.looking.end()
    bench.looking.look()
    clock.settle()
    assert bench.asked() == []


# -- for what


def demands(bench: Bench) -> dict[tuple[str, ...], int]:
    return {demand.types: demand.starts for demand in bench.hands.demands()}


async def coroutine() -> None: ...


def many(items: list[int]) -> None: ...


async def many_on_a_loop(items: list[int]) -> None: ...


def test_each_kind_of_handler_has_slots_of_its_own(bench: Bench) -> None:
    bench.add("loop", coroutine)
    bench.add("process", many, execution="process")
    bench.add("batch", many, batch=50)
    bench.add("loop batch", many_on_a_loop, batch=60)
    assert demands(bench) == {
        ("ping",): 2,
        ("loop",): 3,
        ("process",): 4,
        ("batch",): 50,
        ("loop batch",): 60,
    }


def test_a_handler_is_asked_for_under_all_its_names(bench: Bench) -> None:
    bench.add("batch", many, batch=50, aliases=("old",))
    assert demands(bench) == {("ping",): 2, ("batch", "old"): 50}


def test_a_handler_that_is_registered_later_is_asked_for(bench: Bench) -> None:
    before = demands(bench)
    bench.add("pong", coroutine)
    assert (("pong",) in before, ("pong",) in demands(bench)) == (False, True)


def test_a_call_of_a_batch_handler_uses_a_place_of_its_kind(bench: Bench) -> None:
    bench.add("batch", many, batch=50)
    for number in range(10):
        bench.hands.accept(replace(make_lease(b'{"items":1}'), ref=number, type="batch"))
    assert demands(bench) == {("ping",): 1, ("batch",): 0}


# -- how a batch becomes calls


def batch_job(number: int, crashes: int = 0) -> ActiveJob:
    lease: Lease = replace(make_lease(b'{"items":1}', crashes=crashes), ref=number, id=str(number))
    return make_active(many, lease, batch=3)


def ids_of(jobs: list[ActiveJob]) -> list[list[str]]:
    return [[job.lease.id for job in call.jobs] for call in calls_of(jobs)]


def test_a_batch_is_cut_into_calls_in_order() -> None:
    assert ids_of([batch_job(number) for number in range(7)]) == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


def test_what_somebody_else_has_claimed_is_in_no_call() -> None:
    jobs = [batch_job(number) for number in range(4)]
    for job in jobs[1:3]:
        job.claim_start()
    assert ids_of(jobs) == [["0"], ["3"]]


def test_a_call_is_claimed_when_its_turn_comes() -> None:
    jobs = [batch_job(number) for number in range(4)]
    next(calls_of(jobs))
    assert [job.is_waiting for job in jobs] == [False, False, False, True]


def test_a_suspect_is_called_alone() -> None:
    jobs = [batch_job(0), batch_job(1, crashes=2), batch_job(2), batch_job(3, crashes=1)]
    assert ids_of(jobs) == [["0", "2"], ["1"], ["3"]]


def test_an_answer_to_an_earlier_life_is_not_mistaken_for_one_to_this(bench: Bench) -> None:
    bench.engine.answers = [Taken([], None, is_more=False, stops=[], is_alive=False)]
    with bench.engine.unit(durable=False):  # the answer waits until this is over
        bench.looking.look()
        bench.number = 2
    bench.settle(5)
    assert [taken.is_alive for taken in bench.taken] == [True]


def test_nothing_is_asked_while_a_worker_has_no_number_of_its_own(bench: Bench) -> None:
    bench.looking.hold()
    bench.looking.look()
    assert (bench.engine.asked, bench.looking.is_busy) == ([], True)
    bench.looking.go_on()
    bench.settle(5)
    assert len(bench.engine.asked) == 1
