"""The ready queues: first-in-first-out, and by priority with ageing."""

import gc
import weakref
from collections.abc import Callable, Iterable
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainspring.runners import Priority, TaskTraits, task_queue
from mainspring.runners.task import stamp_for
from mainspring.runners.task_queue import AGEING_NS, FifoTaskQueue, PriorityTaskQueue, TaskQueue
from mainspring.runners.worker import WorkerThread
from tests.support import amount
from tests.traced_memory import TracedMemory, in_a_quiet_process

BURST = 50_000
BEST_EFFORT, USER_VISIBLE, USER_BLOCKING = Priority


class Item:
    """An entry that only waits, until it is canceled."""

    def __init__(self, number: int = 0, queued_at: int | None = None) -> None:
        self.number = number
        self.queued_at = queued_at
        self.runs_made = 0
        self.is_canceled = False
        self.traits = TaskTraits(category=str(number))

    def __repr__(self) -> str:
        return f"Item({self.number})"

    def run_on(self, worker: WorkerThread) -> bool:
        return not self.is_canceled

    def is_live(self) -> bool:
        return not self.is_canceled

    def is_tombstone(self) -> bool:
        return self.is_canceled

    def peek_traits(self) -> TaskTraits | None:
        return None if self.is_canceled else self.traits


class Now:
    """A time that tests set."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def fifo_queue() -> TaskQueue:
    return FifoTaskQueue()


def priority_queue() -> TaskQueue:
    return PriorityTaskQueue(Now())


def push_all(queue: TaskQueue, items: Iterable[Item], priority: Priority = USER_VISIBLE) -> None:
    for item in items:
        queue.push(item, priority)


def cancel(*items: Item) -> None:
    for item in items:
        item.is_canceled = True


def clear(queue: TaskQueue) -> None:
    queue.clear()


def pop_all(queue: TaskQueue) -> None:
    while queue:
        queue.pop()


both = pytest.mark.parametrize("make", [fifo_queue, priority_queue])


@both
def test_an_empty_queue_has_nothing_to_pop(make: Callable[[], TaskQueue]) -> None:
    queue = make()
    assert (len(queue), bool(queue), queue.entries(), queue.pop_up_to(5), queue.clear()) == (0, False, [], [], [])
    assert (queue.peek_traits(), queue.compact()) == (None, 0)
    with pytest.raises(IndexError):
        queue.pop()


@both
def test_entries_of_one_priority_leave_in_the_order_of_arrival(make: Callable[[], TaskQueue]) -> None:
    queue = make()
    items = [Item(number) for number in range(10)]
    push = queue.appender(USER_VISIBLE)
    for item in items[::2]:
        push(item)
        queue.push(items[item.number + 1], USER_VISIBLE)
    assert [queue.pop() for _ in items] == items


def test_a_fifo_queue_ignores_priorities() -> None:
    queue = FifoTaskQueue()
    items = [Item(number) for number in range(3)]
    for item, priority in zip(items, Priority, strict=True):
        queue.push(item, priority)
    assert queue.pop_up_to(3) == items


def test_a_priority_queue_serves_the_urgent_first_and_then_by_arrival() -> None:
    queue = PriorityTaskQueue(Now())
    items = [Item(number, queued_at=0) for number in range(6)]
    for item, priority in zip(items, [*Priority, *Priority], strict=True):
        queue.push(item, priority)
    assert queue.pop_up_to(6) == [items[n] for n in (2, 5, 1, 4, 0, 3)]


@both
def test_a_batch_belongs_to_the_caller(make: Callable[[], TaskQueue]) -> None:
    """The seeds return the live slice: a task that posts overwrites tasks that have not run."""
    queue = make()
    items = [Item(number) for number in range(8)]
    for item in items[:4]:
        queue.push(item, USER_VISIBLE)
    batch = queue.pop_up_to(3)
    for item in items[4:]:
        queue.push(item, USER_VISIBLE)
    assert batch == items[:3]
    batch.clear()
    assert queue.entries() == items[3:]


@both
def test_what_entries_returns_is_a_copy(make: Callable[[], TaskQueue]) -> None:
    queue = make()
    queue.push(Item(), USER_VISIBLE)
    queue.entries().clear()
    assert len(queue) == 1


@pytest.mark.long
@both
@pytest.mark.parametrize("empty", [clear, pop_all])
@in_a_quiet_process
def test_a_burst_leaves_no_storage_behind(
    make: Callable[[], TaskQueue], empty: Callable[[TaskQueue], object]
) -> None:
    queue, item = make(), Item(queued_at=0)
    with TracedMemory() as memory:
        for number in range(BURST):
            queue.push(item, number % 3)
        assert memory.used() > BURST * 8  # it was really there
        empty(queue)
        memory.check_below(32_000)  # a deque keeps sixteen free blocks


def test_the_lanes_of_a_fifo_queue_are_one() -> None:
    queue = FifoTaskQueue()
    queue.push(Item(), USER_VISIBLE)
    assert [len(lane) for lane in queue.lanes] == [1, 1, 1]


def test_the_lanes_of_a_priority_queue_begin_with_the_most_urgent() -> None:
    queue = PriorityTaskQueue(Now())
    queue.push(Item(), USER_BLOCKING)
    assert [len(lane) for lane in queue.lanes] == [1, 0, 0]


# -- ageing


def test_only_entries_that_may_be_overtaken_need_a_stamp() -> None:
    now = Now()
    now.ns = 7
    assert [stamp_for(priority, now) for priority in Priority] == [7, None, None]


@pytest.mark.parametrize("load", [USER_VISIBLE, USER_BLOCKING])
def test_a_background_entry_goes_first_once_it_has_aged(load: Priority) -> None:
    now = Now()
    queue = PriorityTaskQueue(now)
    old, urgent = Item(1, queued_at=0), Item(2)
    queue.push(old, BEST_EFFORT)
    now.ns = AGEING_NS - 1
    queue.push(urgent, load)
    assert queue.pop() is urgent
    queue.push(urgent, load)
    now.ns = AGEING_NS
    assert queue.pop() is old


def test_visible_entries_that_were_passed_over_for_long_go_first() -> None:
    now = Now()
    queue = PriorityTaskQueue(now)
    visible, urgent = [Item(1), Item(2)], Item(3)
    for item in visible:
        queue.push(item, USER_VISIBLE)
    queue.push(urgent, USER_BLOCKING)
    assert queue.pop() is urgent  # the lane is passed over from now on
    queue.push(urgent, USER_BLOCKING)
    now.ns = AGEING_NS - 1
    assert queue.pop() is urgent
    queue.push(urgent, USER_BLOCKING)
    now.ns = AGEING_NS
    for _ in range(3):
        queue.push(urgent, USER_BLOCKING)
    assert [item for item in queue.pop_up_to(4) if item is not urgent] == visible


def test_aged_entries_and_urgent_ones_alternate() -> None:
    now = Now()
    queue = PriorityTaskQueue(now)
    old, urgent = [Item(n, queued_at=0) for n in range(2)], [Item(n) for n in range(2, 4)]
    for item in old:
        queue.push(item, BEST_EFFORT)
    for item in urgent:
        queue.push(item, USER_BLOCKING)
    now.ns = AGEING_NS
    assert queue.pop_up_to(4) == [old[0], urgent[0], old[1], urgent[1]]


def test_visible_entries_that_wait_when_the_first_has_aged_go_with_it_and_later_ones_do_not() -> None:
    now = Now()
    queue = PriorityTaskQueue(now)
    old, fresh, urgent = [Item(n) for n in range(3)], Item(3), [Item(n) for n in range(4, 12)]
    for item in old:
        queue.push(item, USER_VISIBLE)
    for item in urgent:
        queue.push(item, USER_BLOCKING)
    assert queue.pop() is urgent[0]
    now.ns = AGEING_NS
    assert queue.pop() is old[0]
    queue.push(fresh, USER_VISIBLE)
    assert queue.pop_up_to(4) == [urgent[1], old[1], urgent[2], old[2]]
    assert queue.pop_up_to(5) == urgent[3:]
    assert queue.pop() is fresh


def test_an_idle_queue_keeps_no_entry_alive() -> None:
    queue = PriorityTaskQueue(Now())
    visible = Item(1)
    is_alive = weakref.ref(visible)
    queue.push(visible, USER_VISIBLE)
    queue.push(Item(2), USER_BLOCKING)
    assert queue.pop_up_to(3)[1] is visible  # it was passed over before
    del visible
    gc.collect()
    assert is_alive() is None


def test_what_was_owed_to_visible_entries_that_have_left_is_not_given_to_new_ones() -> None:
    now = Now()
    queue = PriorityTaskQueue(now)
    old, urgent, fresh = [Item(n) for n in range(3)], Item(3), Item(4)
    for item in old:
        queue.push(item, USER_VISIBLE)
    queue.push(urgent, USER_BLOCKING)
    assert queue.pop() is urgent
    now.ns = AGEING_NS
    queue.push(urgent, USER_BLOCKING)
    assert queue.pop() is old[0]  # two more are owed their turn
    assert set(queue.pop_up_to(3)) == {old[1], old[2], urgent}
    for _ in range(3):
        queue.push(fresh, USER_VISIBLE)
        queue.push(urgent, USER_BLOCKING)
    assert queue.pop_up_to(3) == [urgent] * 3


def test_a_sequence_that_comes_back_is_not_taken_for_one_that_has_waited_ever_since() -> None:
    now = Now()
    queue = PriorityTaskQueue(now)
    sequence, urgent = Item(1), Item(2)
    queue.push(sequence, USER_VISIBLE)
    queue.push(urgent, USER_BLOCKING)
    assert queue.pop_up_to(2) == [urgent, sequence]
    sequence.runs_made += 1
    now.ns = 10 * AGEING_NS
    queue.push(sequence, USER_VISIBLE)  # it has just become ready again
    queue.push(urgent, USER_BLOCKING)
    assert queue.pop() is urgent


# -- canceled entries


@both
def test_compaction_removes_canceled_entries_and_keeps_the_order_of_the_others(
    make: Callable[[], TaskQueue],
) -> None:
    queue, items = make(), [Item(number) for number in range(10)]
    push_all(queue, items)
    cancel(*items[::3])
    assert queue.compact() == 4
    left = [items[number] for number in (1, 2, 4, 5, 7, 8)]
    assert queue.entries() == left
    assert queue.compact() == 0
    assert queue.pop_up_to(10) == left


def test_compaction_removes_canceled_entries_of_all_priorities() -> None:
    queue, items = PriorityTaskQueue(Now()), [Item(number, queued_at=0) for number in range(6)]
    for item, priority in zip(items, [*Priority, *Priority], strict=True):
        queue.push(item, priority)
    cancel(*items[:3])
    assert queue.compact() == 3
    assert queue.entries() == [items[5], items[4], items[3]]


def test_compaction_does_nothing_without_the_global_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_queue, "_has_global_lock", lambda: False)
    for queue in (fifo_queue(), priority_queue()):
        item = Item()
        push_all(queue, [item])
        cancel(item)
        assert queue.compact() == 0
        assert queue.entries() == [item]


@both
def test_compaction_releases_the_entries(make: Callable[[], TaskQueue]) -> None:
    queue, items = make(), [Item(number) for number in range(3)]
    push_all(queue, items)
    are_alive = [weakref.ref(item) for item in items]
    cancel(*items[:2])
    queue.compact()
    del items
    gc.collect()
    assert [is_alive() is not None for is_alive in are_alive] == [False, False, True]


def test_an_entry_behind_a_canceled_one_takes_its_age() -> None:
    now = Now()
    queue, old, next_one = PriorityTaskQueue(now), Item(1), Item(2)
    push_all(queue, [old, next_one])
    push_all(queue, [Item(number) for number in range(3, 6)], USER_BLOCKING)
    assert queue.pop().queued_at is None  # the visible lane is passed over from now on
    cancel(old)
    assert queue.compact() == 1
    now.ns = AGEING_NS
    assert queue.pop() is next_one


def test_an_entry_that_is_left_keeps_its_age() -> None:
    now = Now()
    queue, old, canceled = PriorityTaskQueue(now), Item(1), Item(2)
    push_all(queue, [old, canceled])
    push_all(queue, [Item(number) for number in range(3, 6)], USER_BLOCKING)
    queue.pop()
    cancel(canceled)
    assert queue.compact() == 1
    now.ns = AGEING_NS
    assert queue.pop() is old


def begin_to_serve_aged_entries(now: Now) -> tuple[PriorityTaskQueue, list[Item], Item, list[Item]]:
    """Return a queue that serves aged entries: the first has left, three wait, and a later one has not aged."""
    queue, old, fresh = PriorityTaskQueue(now), [Item(number) for number in range(4)], Item(4)
    urgent = [Item(number) for number in range(5, 15)]
    push_all(queue, old)
    push_all(queue, urgent, USER_BLOCKING)
    assert queue.pop() is urgent[0]
    now.ns = AGEING_NS
    assert queue.pop() is old[0]
    push_all(queue, [fresh])
    return queue, old[1:], fresh, urgent[1:]


def test_if_the_last_entry_that_has_aged_is_canceled_the_one_before_is_the_last() -> None:
    queue, old, fresh, urgent = begin_to_serve_aged_entries(Now())
    cancel(old[2])
    assert queue.compact() == 1
    assert queue.pop_up_to(5) == [urgent[0], old[0], urgent[1], old[1], urgent[2]]
    assert queue.pop_up_to(3) == urgent[3:6]
    assert fresh in queue.entries()


def test_if_all_entries_that_have_aged_are_canceled_later_ones_do_not_go_first() -> None:
    now = Now()
    queue, old, fresh, urgent = begin_to_serve_aged_entries(now)
    cancel(*old)
    assert queue.compact() == 3
    assert queue.pop_up_to(4) == urgent[:4]
    now.ns += AGEING_NS
    assert queue.pop() is fresh


def test_after_all_entries_that_have_aged_others_can_be_canceled() -> None:
    queue, old, fresh, urgent = begin_to_serve_aged_entries(Now())
    cancel(*old)
    assert queue.compact() == 3
    cancel(fresh)
    assert queue.compact() == 1
    assert queue.pop_up_to(4) == urgent[:4]


def test_if_the_first_of_the_entries_that_have_aged_is_canceled_the_next_goes_first() -> None:
    queue, old, _, urgent = begin_to_serve_aged_entries(Now())
    cancel(old[0])
    assert queue.compact() == 1
    assert queue.pop_up_to(4) == [urgent[0], old[1], urgent[1], old[2]]


def test_an_empty_queue_after_a_compaction_keeps_no_entry_alive() -> None:
    queue, visible = PriorityTaskQueue(Now()), Item(1)
    is_alive = weakref.ref(visible)
    push_all(queue, [visible])
    push_all(queue, [Item(2), Item(3)], USER_BLOCKING)
    queue.pop()  # the visible entry is passed over
    cancel(visible)
    queue.compact()
    del visible
    gc.collect()
    assert is_alive() is None


# -- the traits of the next task


@both
def test_the_traits_of_the_next_task_are_those_of_the_first_that_can_run(make: Callable[[], TaskQueue]) -> None:
    queue, items = make(), [Item(number) for number in range(3)]
    push_all(queue, items)
    assert queue.peek_traits() is items[0].traits
    cancel(*items[:2])
    assert queue.peek_traits() is items[2].traits
    cancel(items[2])
    assert queue.peek_traits() is None
    assert len(queue) == 3


def test_a_priority_with_canceled_tasks_only_is_skipped() -> None:
    queue, urgent, visible = PriorityTaskQueue(Now()), Item(1), Item(2)
    push_all(queue, [urgent], USER_BLOCKING)
    push_all(queue, [visible])
    assert queue.peek_traits() is urgent.traits
    cancel(urgent)
    assert queue.peek_traits() is visible.traits


def test_the_traits_of_the_next_task_are_those_of_one_that_was_passed_over_for_long() -> None:
    now = Now()
    queue, visible, urgent = PriorityTaskQueue(now), Item(1), [Item(2), Item(3)]
    push_all(queue, [visible])
    push_all(queue, urgent, USER_BLOCKING)
    queue.pop()  # the visible lane is passed over from now on
    now.ns = AGEING_NS - 1
    assert queue.peek_traits() is urgent[1].traits
    now.ns = AGEING_NS
    assert queue.peek_traits() is visible.traits
    assert queue.pop() is visible


def test_the_traits_of_the_next_task_follow_the_ageing_and_do_not_change_it() -> None:
    now = Now()
    queue, old, fresh, urgent = begin_to_serve_aged_entries(now)
    for expected in (urgent[0], old[0], urgent[1], old[1], urgent[2], old[2], urgent[3], urgent[4]):
        for _ in range(3):
            assert queue.peek_traits() is expected.traits
        assert queue.pop() is expected
    background = Item(20, queued_at=now.ns)
    push_all(queue, [background], BEST_EFFORT)
    now.ns += AGEING_NS
    assert queue.peek_traits() is background.traits
    assert queue.pop() is background
    assert fresh in queue.entries()


# -- against a list


class QueueMachine(RuleBasedStateMachine):
    """Random pushes, pops and steps of time, compared with a list that is searched."""

    has_priorities = True

    @initialize()
    def begin(self) -> None:
        self.now = Now()
        self.queue: TaskQueue = PriorityTaskQueue(self.now) if self.has_priorities else FifoTaskQueue()
        self.waiting: list[tuple[Priority, Item, int]] = []  # in order of arrival, with the time of it
        self.entitled: set[int] = set()  # visible ones that waited beside one that had aged: they go with it
        self.left_behind = 0  # how often in a row an aged background entry has seen others go first
        self.numbers = count()

    def lane(self, priority: Priority) -> list[tuple[Priority, Item, int]]:
        return [waiting for waiting in self.waiting if waiting[0] == priority]

    def in_order(self) -> list[Item]:
        by_urgency = (lambda waiting: -waiting[0]) if self.has_priorities else (lambda waiting: 0)
        return [item for _, item, _ in sorted(self.waiting, key=by_urgency)]

    def has_aged(self, since: int) -> bool:
        return self.now.ns - since >= AGEING_NS

    def take(self, item: object) -> None:
        """Check that `item` was the right one to pop, and forget it."""
        found = [waiting for waiting in self.waiting if waiting[1] is item]
        assert len(found) == 1, "popped something that was not there"
        priority, popped, since = found[0]
        if self.has_priorities:
            self.check(priority, popped, since)
        else:
            assert popped is self.waiting[0][1]
        self.waiting.remove(found[0])

    def check(self, priority: Priority, popped: Item, since: int) -> None:
        assert popped is self.lane(priority)[0][1], "not the first of its lane"
        background = self.lane(BEST_EFFORT)
        if background and self.has_aged(background[0][2]) and priority != BEST_EFFORT:
            self.left_behind += 1
            assert self.left_behind <= 1, "something aged was left behind twice in a row"
        else:
            self.left_behind = 0
        if any(waiting[0] > priority for waiting in self.waiting):
            assert self.has_aged(since) or popped.number in self.entitled, "overtook without reason"
            if priority == USER_VISIBLE:
                self.entitled |= {item.number for _, item, _ in self.lane(USER_VISIBLE)}

    @rule(priority=st.sampled_from(Priority), by_appender=st.booleans())
    def push(self, priority: Priority, by_appender: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        item = Item(next(self.numbers), stamp_for(priority, self.now))
        if by_appender:
            self.queue.appender(priority)(item)
        else:
            self.queue.push(item, priority)
        self.waiting.append((priority, item, self.now.ns))

    @rule(step=st.sampled_from([1, AGEING_NS // 3, AGEING_NS - 1, AGEING_NS, 3 * AGEING_NS]))
    def pass_time(self, step: int) -> None:
        self.now.ns += step

    @rule(choice=st.integers(0, 1_000))
    def cancel(self, choice: int) -> None:
        if self.waiting:
            cancel(self.waiting[choice % len(self.waiting)][1])

    @rule()
    def compact(self) -> None:
        left = [waiting for waiting in self.waiting if waiting[1].is_live()]
        assert self.queue.compact() == len(self.waiting) - len(left)
        before, after = self.lane(USER_VISIBLE), [waiting for waiting in left if waiting[0] == USER_VISIBLE]
        if after and after[0] is not before[0]:  # the first takes the age of the one that was the first
            left[left.index(after[0])] = (*after[0][:2], before[0][2])
        self.waiting = left

    @rule()
    def pop(self) -> None:
        traits = self.queue.peek_traits()
        if self.waiting:
            popped = self.queue.pop()
            if all(item.is_live() for _, item, _ in self.waiting):
                assert popped.peek_traits() is traits
            self.take(popped)
        else:
            with pytest.raises(IndexError):
                self.queue.pop()

    @rule(limit=st.integers(0, 5))
    def pop_up_to(self, limit: int) -> None:
        expected = min(limit, len(self.waiting))
        batch = self.queue.pop_up_to(limit)
        assert len(batch) == expected
        for item in batch:
            self.take(item)

    @rule()
    def clear(self) -> None:
        removed = self.queue.clear()
        assert len(removed) == len(self.waiting)
        for item in removed:
            self.take(item)

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        assert self.queue.entries() == self.in_order()
        assert len(self.queue) == len(self.waiting)
        assert bool(self.queue) == bool(self.waiting)

    @invariant()
    def peeks_at_the_first_of_a_priority_that_can_run(self) -> None:
        first: dict[Priority, TaskTraits] = {}
        for priority, item, _ in self.waiting:
            if item.is_live():
                first.setdefault(priority if self.has_priorities else USER_VISIBLE, item.traits)
        traits = self.queue.peek_traits()
        assert traits in first.values() if first else traits is None


class FifoMachine(QueueMachine):
    has_priorities = False


QueueMachine.TestCase.settings = settings(max_examples=amount(60, thorough=150), stateful_step_count=40)
FifoMachine.TestCase.settings = settings(max_examples=amount(40, thorough=60), stateful_step_count=30)

TestPriorityQueueAgainstAList = QueueMachine.TestCase
TestFifoQueueAgainstAList = FifoMachine.TestCase
