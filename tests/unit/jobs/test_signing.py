"""Signed jobs: which jobs reach a handler, through retries, schedules, follow-ups, replays and edits."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring import (
    DeadLetter,
    EngineUnavailable,
    Every,
    JobStatus,
    KeyRing,
    Mainspring,
    NoSigningKey,
    Retry,
    SignatureInvalid,
    Snooze,
    Unique,
)
from mainspring.jobs.commands import Delete, PutDeadLetterHandler, PutSchedule
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.engine import Retention
from mainspring.jobs.job_policies import RETRY, SIGNATURE
from mainspring.jobs.records import FollowUp, Lease, NewJob
from mainspring.jobs.recurrence.planning import plan_firing, plan_trigger
from mainspring.jobs.recurrence.rules import encode_rule
from mainspring.jobs.recurrence.schedule_records import Firing, Overlap, ScheduleRecord
from mainspring.jobs.signing import SHORT, JobSigner, count_keys, key_of, occurrence_id
from mainspring.jobs.submission import JobCall
from mainspring.testing import TimeTravel, time_travel
from tests.unit.jobs.call_log import START
from tests.unit.jobs.process_handlers import square

SECRET = KeyRing.generate()
PAIR = KeyRing.generate("ed25519")
RING = KeyRing({"2026-11": SECRET, "old": KeyRing.generate()}, sign_with="2026-11")
DAY = 86_400 * 1_000_000


class Shop(Mainspring):
    """An application that records the calls of its handlers."""

    def __init__(self, url: str, signing: KeyRing | None = RING) -> None:
        super().__init__(url, durability="normal", grace=0, signing=signing)
        self.calls: list[Any] = []
        self.failing = True
        self.pay = self.job(name="pay")(self._pay)
        self.flawed = self.job(name="flawed", retry=Retry(max_attempts=3, base=60, factor=1, jitter=0))(self._fail)
        self.once = self.job(name="once", retry=Retry(max_attempts=1))(self._fail)

    def _pay(self, order: int) -> int:
        self.calls.append(order)
        return order + 1

    def _fail(self, order: int) -> None:
        self.calls.append(order)
        if self.failing:
            raise ValueError("no")

    @property
    def signer(self) -> JobSigner:
        """Signs with all keys, whatever keys the application has."""
        signing = KeyRing({"2026-11": SECRET, "pair": PAIR}, sign_with="2026-11")
        return JobSigner(signing, self.manager().engine.now)

    def new_job(self, job_id: str, type_: str = "pay", order: int = 7, **options: Any) -> NewJob:
        now = self.manager().engine.now()
        return NewJob(job_id, type_, "default", 1, now, b'{"order":%d}' % order, "json", **options)

    def store(self, *jobs: NewJob) -> None:
        """Store jobs as they are, as a program that writes into the store does."""
        assert self.manager().engine.submit(jobs) == [None] * len(jobs)

    def error(self, job_id: str) -> str:
        info = self.get(job_id)
        assert info.status is JobStatus.FAILED
        return str(info.error)


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    shop = Shop(url)
    with shop:
        yield shop


@pytest.fixture
def travel(shop: Shop) -> Iterator[TimeTravel]:
    with time_travel(shop, start=START) as travel:
        yield travel


class Verifier(Shop):
    """An application that can only verify, and its time."""

    travel: TimeTravel

    def __init__(self, url: str) -> None:
        super().__init__(url, KeyRing({"2026-11": SECRET, "pair": KeyRing.public(PAIR)}))

    def status(self, job_id: str) -> JobStatus:
        self.travel.settle()
        return self.get(job_id).status


@pytest.fixture
def verifier(url: str) -> Iterator[Verifier]:
    shop = Verifier(url)
    with shop, time_travel(shop, start=START) as shop.travel:
        yield shop


# -- submits


def test_jobs_of_every_kind_of_submit_are_signed_and_run(shop: Shop, travel: TimeTravel) -> None:
    shop.pay.submit(1)
    shop.pay.options(headers={"user": "7"}, sequence="s").after(60).submit(2)
    shop.pay.submit_many([(3,), (4,)])
    asyncio.run(_submit_async(shop, 5))
    submission = shop.manager().submission
    calls = [JobCall(shop.pay.handler, shop.pay.chosen, (order,), {}) for order in (6, 7)]
    submission.submit_mixed(map(submission.prepare, calls), atomic=False)
    travel.fast_forward(minutes=1)
    assert sorted(shop.calls) == [1, 2, 3, 4, 5, 6, 7]
    assert count_keys(job.headers for job in shop.jobs()) == {"2026-11": 7}


async def _submit_async(shop: Shop, order: int) -> None:
    await shop.pay.submit_async(order)


def test_jobs_that_a_handler_submits_have_signatures_of_their_own(shop: Shop, travel: TimeTravel) -> None:
    @shop.job
    def outer() -> None:
        shop.pay.submit(1)

    outer.options(headers={"user": "7"}).submit()
    travel.settle()
    assert shop.calls == [1]
    assert {job.headers["user"] for job in shop.jobs()} == {"7"}
    assert len({job.headers[SIGNATURE] for job in shop.jobs()}) == 2


def test_a_program_without_a_signing_key_cannot_submit(verifier: Verifier) -> None:
    with pytest.raises(NoSigningKey, match="a job of 'pay' must be signed"):
        verifier.pay.submit(1)
    with pytest.raises(NoSigningKey):
        verifier.pay.submit_many([(1,)])
    assert list(verifier.jobs()) == []


def test_the_header_of_the_signature_is_reserved(shop: Shop) -> None:
    with pytest.raises(ValueError, match="'mainspring-signature' is reserved"):
        shop.pay.options(headers={SIGNATURE: "1j"})


def test_an_application_without_keys_ignores_signatures(url: str) -> None:
    shop = Shop(url, signing=None)
    with shop, time_travel(shop, start=START) as travel:
        shop.store(shop.new_job("signed wrongly", headers={SIGNATURE: "1j"}), shop.new_job("not signed"))
        travel.settle()
        assert shop.calls == [7, 7]


# -- what is refused


def test_a_job_without_a_signature_does_not_run(shop: Shop, travel: TimeTravel) -> None:
    shop.store(shop.new_job("forged"), shop.new_job("headers", headers={"user": "7"}))
    travel.settle()
    assert shop.calls == []
    assert shop.error("forged") == shop.error("headers") == "SignatureInvalid: it has no signature"
    info = shop.get("forged")
    assert (info.starts, info.failures, info.result) == (1, 0, None)


CHANGES: dict[str, Any] = {
    "id": "another",
    "type": "flawed",
    "queue": "other",
    "payload": b'{"order":8}',
    "codec": "msgpack",
    "sequence": "a sequence",
    "follow_up": FollowUp("pay", "default", 1),
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_field_is_noticed(shop: Shop, travel: TimeTravel, field: str) -> None:
    job = shop.signer.sign(shop.new_job("job"))
    changed = replace(job, **{field: CHANGES[field]})
    shop.store(changed)
    travel.settle()
    assert shop.calls == []
    assert "signature with the key '2026-11' is wrong" in shop.error(changed.id)


def test_changed_headers_are_noticed(shop: Shop, travel: TimeTravel) -> None:
    job = shop.signer.sign(shop.new_job("job", headers={"user": "7"}))
    assert job.headers is not None
    others = {
        "added": {**job.headers, RETRY: "{}"},
        "changed": {**job.headers, "user": "8"},
        "removed": {SIGNATURE: job.headers[SIGNATURE]},
        "unreadable": {**job.headers, SIGNATURE: "1j.2026-11.0.1"},
    }
    for job_id, headers in others.items():
        signed = shop.signer.sign(shop.new_job(job_id, headers={"user": "7"}))
        assert signed.headers is not None
        own = {**headers, SIGNATURE: signed.headers[SIGNATURE]} if job_id != "unreadable" else headers
        shop.store(replace(signed, headers=own))
    travel.settle()
    assert shop.calls == []
    for job_id in others:
        assert shop.error(job_id).startswith("SignatureInvalid: ")
    assert "cannot be read" in shop.error("unreadable")


def test_fields_that_may_change_are_not_signed(shop: Shop, travel: TimeTravel) -> None:
    job = shop.signer.sign(shop.new_job("job"))
    shop.store(replace(job, due=job.due - 5, priority=2, steps_aside=True))
    travel.settle()
    assert shop.calls == [7]


def test_an_unknown_key_and_one_that_was_removed_are_refused(shop: Shop, travel: TimeTravel) -> None:
    stranger = KeyRing({"stranger": KeyRing.generate()}, sign_with="stranger")
    shop.store(JobSigner(stranger, shop.manager().engine.now).sign(shop.new_job("job")))
    travel.settle()
    assert shop.error("job") == "SignatureInvalid: its signature is of the unknown key 'stranger'"


def test_the_arguments_of_a_refused_job_are_not_decoded(shop: Shop, travel: TimeTravel) -> None:
    secret = shop.job(name="secret", redact=("order",))(shop._pay)
    shop.store(
        *(
            replace(shop.new_job(f"{codec} {type_}", type_), payload=b"\xc1", codec=codec)
            for codec in ("msgpack", "no such codec")
            for type_ in ("pay", secret.name)
        )
    )
    travel.settle()
    assert {job.error for job in shop.jobs(status="FAILED")} == {"SignatureInvalid: it has no signature"}
    assert len(list(shop.jobs(status="FAILED"))) == 4


def test_batches_and_coroutines_get_only_the_jobs_that_are_right(shop: Shop, travel: TimeTravel) -> None:
    @shop.job(name="batch", batch=10)
    def batch(orders: list[int]) -> list[int]:
        shop.calls.append(sorted(orders))
        return orders

    @shop.job(name="coroutine")
    async def coroutine(order: int) -> None:
        shop.calls.append(order)

    @shop.job(name="async batch", batch=10)
    async def async_batch(orders: list[int]) -> None:
        shop.calls.append(sorted(orders))

    names = ("batch", "coroutine", "async batch")
    with shop.manager().engine.unit(durable=True):
        for name in names:
            parameter = b"order" if name == "coroutine" else b"orders"
            jobs = [shop.new_job(f"{name} {number}", name) for number in range(3)]
            jobs = [replace(job, payload=b'{"%s":7}' % parameter) for job in jobs]
            shop.store(shop.signer.sign(jobs[0]), jobs[1], shop.signer.sign(jobs[2]))
    shop.queue("default").resume()
    travel.fast_forward(1)
    ended = {job.id: job.status for job in shop.jobs()}
    assert {job_id for job_id, status in ended.items() if status is JobStatus.FAILED} == {f"{n} 1" for n in names}
    assert sum(len(call) if isinstance(call, list) else 1 for call in shop.calls) == 6


@pytest.mark.long
def test_a_child_process_gets_only_the_jobs_that_are_right(shop: Shop) -> None:
    shop.job(name="square", execution="process")(square)
    with time_travel(shop, start=START) as travel:
        jobs = [replace(shop.new_job(name, "square"), payload=b'{"number":7}') for name in ("right", "forged")]
        shop.store(shop.signer.sign(jobs[0]), jobs[1])
        travel.settle()
        assert shop.get("right").result == 49
        assert "SignatureInvalid" in shop.error("forged")


def test_unsigned_jobs_run_while_an_application_begins_to_sign(url: str) -> None:
    ring = KeyRing({"2026-11": SECRET}, sign_with="2026-11", accept_unsigned=True)
    shop = Shop(url, ring)
    with shop, time_travel(shop, start=START) as travel:
        shop.store(shop.new_job("unsigned"), shop.new_job("wrong", order=8, headers={SIGNATURE: "1j"}))
        shop.pay.submit(9)
        travel.settle()
        assert shop.calls == [7, 9]
        assert "cannot be read" in shop.error("wrong")


def test_a_public_key_is_enough_to_run_jobs(verifier: Verifier) -> None:
    ring = KeyRing({"pair": PAIR}, sign_with="pair")
    signer = JobSigner(ring, verifier.manager().engine.now)
    verifier.store(signer.sign(verifier.new_job("right")), verifier.new_job("forged"))
    assert verifier.status("right") is JobStatus.COMPLETED
    assert verifier.status("forged") is JobStatus.FAILED
    assert verifier.calls == [7]


# -- the end of a signature


def test_a_job_that_starts_too_late_does_not_run(shop: Shop, travel: TimeTravel) -> None:
    shop.queue("default").pause()
    late, on_time = shop.pay.submit(1), shop.pay.after(timedelta(days=1)).submit(2)
    travel.fast_forward(days=7.5)
    shop.queue("default").resume()
    travel.settle()
    assert shop.calls == [2]
    assert shop.error(late.id) == "SignatureInvalid: its signature was valid until 2026-03-08 12:00:00 UTC"
    assert shop.get(on_time.id).status is JobStatus.COMPLETED


def test_retries_need_no_new_signature_before_its_end(shop: Shop, travel: TimeTravel) -> None:
    handle = shop.flawed.submit(1)
    before = shop.get(handle.id).headers
    travel.fast_forward(minutes=1)
    shop.failing = False
    travel.fast_forward(minutes=1)
    assert (shop.calls, shop.get(handle.id).status) == ([1, 1, 1], JobStatus.COMPLETED)
    assert shop.get(handle.id).headers == before


def test_a_retry_after_its_end_is_signed_anew(shop: Shop, travel: TimeTravel) -> None:
    @shop.job(name="snoozed")
    def snoozed(order: int) -> None:
        shop.calls.append(order)
        if len(shop.calls) < 3:
            raise Snooze(timedelta(days=8))

    handle = snoozed.options(headers={"user": "7"}).submit(1)
    before = shop.get(handle.id).headers
    travel.fast_forward(days=17)
    assert (shop.calls, shop.get(handle.id).status) == ([1, 1, 1], JobStatus.COMPLETED)
    after = shop.get(handle.id).headers
    assert (after["user"], after[SIGNATURE] != before[SIGNATURE]) == ("7", True)


def test_a_worker_without_a_key_gives_a_job_up_whose_retry_is_after_its_end(verifier: Verifier) -> None:
    @verifier.job(
        name="patient", retry=Retry(max_attempts=2, base=timedelta(days=8), max_delay=timedelta(days=9), jitter=0)
    )
    def patient(order: int) -> None:
        raise ValueError("not yet")

    verifier.store(verifier.signer.sign(verifier.new_job("job", "patient")))
    assert verifier.status("job") is JobStatus.FAILED
    assert verifier.error("job").startswith("SignatureInvalid: the next attempt would be at 2026-03-09")
    assert "ValueError: not yet" in verifier.error("job")


def test_a_reschedule_after_its_end_is_signed_anew(shop: Shop, travel: TimeTravel) -> None:
    handle = shop.pay.after(60).submit(1)
    first = shop.get(handle.id).headers[SIGNATURE]
    assert handle.reschedule(delay=timedelta(days=3))
    assert shop.get(handle.id).headers[SIGNATURE] == first
    assert handle.reschedule(delay=timedelta(days=30))
    assert shop.get(handle.id).headers[SIGNATURE] != first
    asyncio.run(_reschedule_async(shop, handle.id))
    travel.fast_forward(days=59)
    assert shop.calls == []
    travel.fast_forward(days=1)
    assert shop.calls == [1]


async def _reschedule_async(shop: Shop, job_id: str) -> None:
    assert await shop.reschedule_async(job_id, delay=timedelta(days=60))


def test_without_a_key_a_reschedule_after_the_end_is_refused(verifier: Verifier) -> None:
    job = verifier.signer.sign(replace(verifier.new_job("job"), due=verifier.manager().engine.now() + DAY))
    verifier.store(job)
    assert verifier.reschedule("job", delay=timedelta(days=6))
    with pytest.raises(NoSigningKey, match="job 'job' must be signed"):
        verifier.reschedule("job", delay=timedelta(days=9))
    assert verifier.get("job").due == START + timedelta(days=6)


def test_a_forged_job_is_not_signed_by_a_reschedule(shop: Shop, travel: TimeTravel) -> None:
    job = shop.signer.sign(replace(shop.new_job("job"), due=shop.manager().engine.now() + DAY))
    shop.store(replace(job, payload=b'{"order":8}'))
    with pytest.raises(SignatureInvalid, match="cannot change the due time of job 'job'"):
        shop.reschedule("job", delay=timedelta(days=9))
    assert shop.run_now("job")
    travel.settle()
    assert shop.calls == []


# -- follow-ups, dead letters and their handlers


def test_follow_up_jobs_run_one_after_the_other(shop: Shop, travel: TimeTravel) -> None:
    shop.pay.options(then=shop.pay.options(then=shop.pay)).submit(1)
    travel.settle()
    assert shop.calls == [1, 2, 3]


def test_a_worker_without_a_key_makes_follow_up_jobs_that_do_not_run(verifier: Verifier) -> None:
    plan = verifier.pay.follow_up()
    verifier.store(verifier.signer.sign(verifier.new_job("first", follow_up=plan)))
    assert verifier.status("first") is JobStatus.COMPLETED
    (second,) = [job for job in verifier.jobs() if job.id != "first"]
    assert verifier.status(second.id) is JobStatus.FAILED
    assert verifier.calls == [7]


def test_dead_letter_handlers_hear_of_failures_and_of_forged_jobs(shop: Shop) -> None:
    @shop.on_dead_letter
    def alert(letter: DeadLetter) -> None:
        shop.calls.append((letter.id, letter.reason))

    with time_travel(shop, start=START) as travel:
        shop.store(shop.new_job("forged"))
        failed = shop.once.submit(1)
        travel.settle()
    told = {call for call in shop.calls if isinstance(call, tuple)}
    assert told == {("forged", "SignatureInvalid: it has no signature"), (failed.id, "ValueError: no")}


def test_a_forged_dead_letter_handler_runs_nothing(shop: Shop, travel: TimeTravel) -> None:
    plan = replace(shop.pay.follow_up(), argument=None, bound=b'{"order":666}')
    other = JobSigner(KeyRing({"2026-11": KeyRing.generate()}, sign_with="2026-11"), lambda: 1)
    forged = [DeadLetterHandler(plan), other.sign_handler(DeadLetterHandler(replace(plan, type="flawed")))]
    shop.manager().engine.arrange([PutDeadLetterHandler(handler) for handler in forged])
    shop.once.submit(1)
    travel.settle()
    assert shop.calls == [1]
    refused = [job for job in shop.jobs(status="FAILED") if job.type != "once"]
    assert {job.error for job in refused} == {"SignatureInvalid: it has no signature"}
    assert {job.type for job in refused} == {"pay", "flawed"}


def test_a_replay_and_an_edit_are_signed_anew(shop: Shop, travel: TimeTravel) -> None:
    letters = [shop.once.submit(number) for number in range(3)]
    travel.fast_forward(days=30)  # the signatures have ended
    shop.failing, shop.calls = False, []
    shop.dead_letters.replay(letters[0].id, changes={"order": 10})
    shop.dead_letters.edit(letters[1].id, {"order": 11})
    shop.retry(letters[1].id)
    asyncio.run(_retry_async(shop, letters[2].id))
    travel.settle()
    assert sorted(shop.calls) == [2, 10, 11]


async def _retry_async(shop: Shop, job_id: str) -> None:
    await shop.retry_async(job_id)


def test_forged_dead_letters_are_not_signed_by_a_replay(shop: Shop, travel: TimeTravel) -> None:
    shop.store(shop.new_job("forged"))
    right = shop.once.submit(1)
    travel.settle()
    shop.failing = False
    for action in (
        lambda: shop.dead_letters.replay("forged"),
        lambda: shop.dead_letters.edit("forged", {"order": 8}),
    ):
        with pytest.raises(SignatureInvalid, match="job 'forged': it has no signature; submit another job"):
            action()
    shop.retry("forged")
    travel.settle()
    assert shop.error("forged") == "SignatureInvalid: it has no signature"
    assert len(shop.dead_letters.replay(all=True)) == 1
    travel.settle()
    assert (shop.calls, shop.get(right.id).replayed_as is not None) == ([1, 1], True)


def test_without_a_key_dead_letters_cannot_be_replayed(verifier: Verifier) -> None:
    verifier.store(verifier.signer.sign(verifier.new_job("job", "once")))
    assert verifier.status("job") is JobStatus.FAILED
    with pytest.raises(NoSigningKey):
        verifier.dead_letters.replay("job")
    verifier.failing = False
    verifier.retry("job")  # its signature has not ended
    assert verifier.status("job") is JobStatus.COMPLETED


def test_a_job_that_is_replaced_has_the_signature_of_the_last_submit(shop: Shop, travel: TimeTravel) -> None:
    debounced = shop.pay.options(unique=Unique("key", on_conflict="replace"))
    handles = [debounced.after(60).submit(number) for number in range(3)]
    travel.fast_forward(minutes=1)
    assert shop.calls == [2]
    assert len({handle.id for handle in handles}) == 1


# -- schedules


def test_the_jobs_of_schedules_refer_to_the_signature_of_their_schedule(shop: Shop) -> None:
    @shop.cron("0 * * * *")
    def hourly() -> None:
        shop.calls.append("hourly")

    with time_travel(shop, start=START) as travel:
        shop.schedules.put("daily", shop.pay, "0 6 * * *", arguments={"order": 1}, overlap="queue", jitter=30)
        travel.fast_forward(days=1)
        assert (shop.calls.count("hourly"), shop.calls.count(1)) == (24, 1)
        (daily,) = shop.schedules.jobs("daily")
        assert daily.occurrence is not None
        assert daily.id == occurrence_id("daily", round(daily.occurrence.timestamp() * 1e6))
        assert key_of(daily.headers[SIGNATURE]) == "2026-11"
        triggered = shop.schedules.trigger("daily")
        travel.settle()
        assert triggered.wait(timeout=20) is JobStatus.COMPLETED
        assert shop.calls.count(1) == 2


def alter(shop: Shop, name: str, **changes: Any) -> None:
    """Change the stored record of a schedule, as a program that writes into the store does."""
    (record,) = shop.manager().engine.schedules(names=[name])
    assert shop.manager().engine.arrange([PutSchedule(replace(record, **changes), record.revision)]) == [True]


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"payload": b'{"order":666}'},
        {"type": "flawed"},
        {"queue": "other"},
        {"rule": '{"anchor":0,"interval":60000000,"kind":"every"}'},
        {"signature": None},
        {"signature": "1d"},
        {"follow_up": FollowUp("pay", "default", 1, argument="order")},
        {"start": 5},
    ],
    ids=lambda changes: "=".join(f"{k}-{str(v)[:4]}" for k, v in changes.items()),
)
def test_an_altered_schedule_fires_jobs_that_do_not_run(
    shop: Shop, travel: TimeTravel, changes: dict[str, Any]
) -> None:
    shop.schedules.put("hourly", shop.pay, "0 * * * *", arguments={"order": 1})
    alter(shop, "hourly", **changes)
    travel.fast_forward(hours=1)
    assert shop.calls == []
    assert {str(job.error).partition(":")[0] for job in shop.jobs()} == {"SignatureInvalid"}
    with pytest.raises(SignatureInvalid, match="cannot trigger schedule 'hourly'"):
        shop.schedules.trigger("hourly")
    shop.schedules.put("hourly", shop.pay, "0 * * * *", arguments={"order": 2})  # it is signed again
    travel.fast_forward(hours=1)
    assert shop.calls == [2]


def test_a_schedule_that_is_made_due_by_hand_does_not_run_before_its_time(shop: Shop, travel: TimeTravel) -> None:
    shop.schedules.put("daily", shop.pay, "0 6 * * *", arguments={"order": 1})
    alter(shop, "daily", next_due=shop.manager().engine.now() + 5_000_000)
    travel.fast_forward(10)
    (job,) = shop.jobs()
    assert "2026-03-01 12:00:05 UTC is no occurrence of schedule 'daily'" in str(job.error)
    travel.fast_forward(days=1)
    assert shop.calls == [1]


def test_the_reference_to_a_schedule_cannot_be_used_for_another_job(shop: Shop, travel: TimeTravel) -> None:
    shop.schedules.put("daily", shop.pay, "0 6 * * *", arguments={"order": 1})
    travel.fast_forward(days=1)
    (record,) = shop.manager().engine.schedules()
    (done,) = shop.schedules.jobs("daily")
    reference = dict(done.headers)
    tomorrow = round((START + timedelta(days=1, hours=18)).timestamp() * 1e6)
    signer = shop.signer
    early = signer.refer_to_schedule(record, _firing(record, tomorrow)).jobs[0]
    shop.store(
        replace(shop.new_job("copy", order=1), headers=reference),
        replace(shop.new_job("other arguments", order=2), headers=reference),
        replace(early, due=shop.manager().engine.now(), schedule=None, occurrence=None),
        replace(shop.new_job("policies", order=1), headers={**reference, RETRY: "{}"}),
    )
    travel.settle()
    assert shop.calls == [1]
    assert "its id is not that of an occurrence" in shop.error("copy")
    assert "is wrong" in shop.error("other arguments")
    assert "has not come" in shop.error(early.id)


def _firing(record: ScheduleRecord, occurrence: int) -> Firing:
    firing = plan_trigger(record, occurrence, "id")
    return replace(firing, jobs=tuple(replace(job, occurrence=occurrence) for job in firing.jobs))


def test_an_occurrence_runs_once_also_after_its_job_was_deleted(shop: Shop, travel: TimeTravel) -> None:
    shop.schedules.put("daily", shop.pay, "0 6 * * *", arguments={"order": 1})
    travel.fast_forward(days=1)
    (job,) = shop.schedules.jobs("daily")
    assert shop.manager().engine.change([Delete(job.id)])[0].is_done
    assert job.occurrence is not None
    alter(shop, "daily", next_due=round(job.occurrence.timestamp() * 1e6))
    travel.fast_forward(1)
    assert shop.calls == [1]
    assert "was used before" in shop.error(job.id)


def test_a_worker_without_a_key_fires_signed_schedules(verifier: Verifier, url: str) -> None:
    author = Shop(url)
    with author, time_travel(author, start=START):
        author.schedules.put("every minute", author.pay, "* * * * *", arguments={"order": 1})
        (record,) = author.manager().engine.schedules()
    assert verifier.manager().engine.arrange([PutSchedule(record, None)]) == [True]
    verifier.travel.fast_forward(60)
    assert verifier.calls == [1]
    with pytest.raises(NoSigningKey, match="schedule 'mine' must be signed"):
        verifier.schedules.put("mine", verifier.pay, "* * * * *", arguments={"order": 1})


def test_a_worker_without_a_key_refuses_to_declare_schedules(url: str) -> None:
    shop = Shop(url, KeyRing({"2026-11": SECRET}))
    with shop:
        shop.cron("0 * * * *")(_tick)
        with pytest.raises(NoSigningKey, match="schedule"), shop.running():
            pass


def _tick() -> None: ...


def test_a_new_key_signs_schedules_and_handlers_when_a_worker_starts(url: str) -> None:
    old, new = KeyRing.generate(), KeyRing.generate()

    def make(sign_with: str) -> Shop:
        shop = Shop(url, KeyRing({"old": old, "new": new}, sign_with=sign_with))
        shop.cron("0 * * * *", name="declared")(_tick)
        shop.on_dead_letter(_take_letter)
        return shop

    if url == "memory://":  # each application has its own store
        return
    shop = make("old")
    with shop, shop.running():
        shop.schedules.put("put", shop.pay, "0 6 * * *", arguments={"order": 1})
        before = {record.name: record for record in shop.manager().engine.schedules()}
    shop = make("new")
    with shop, shop.running():
        after = {record.name: record for record in shop.manager().engine.schedules()}
        (handler,) = shop.manager().engine.dead_letter_handlers()
    assert {key_of(str(record.signature)) for record in before.values()} == {"old"}
    assert {key_of(str(record.signature)) for record in after.values()} == {"new"}
    assert key_of(str(handler.signature)) == "new"
    assert [after[name].next_due for name in after] == [before[name].next_due for name in after]
    shop = make("new")
    with shop, shop.running():
        again = {record.name: record for record in shop.manager().engine.schedules()}
    assert again == after


def _take_letter(letter: DeadLetter) -> None: ...


# -- copies of envelopes


def test_an_envelope_is_not_used_twice_also_after_its_job_was_pruned(shop: Shop, travel: TimeTravel) -> None:
    job = shop.signer.sign(shop.new_job("order-42"))
    shop.store(job)
    travel.fast_forward(1)
    assert shop.manager().engine.submit([job])[0] is not None  # the id is taken
    _prune(shop)
    shop.store(job)
    travel.settle()
    assert shop.calls == [7]
    assert shop.error("order-42") == "SignatureInvalid: its signature was used before, by a job that has ended"
    assert shop.manager().engine.change([Delete("order-42")])[0].is_done
    shop.pay.options(id="order-42").submit(8)  # another job with this id, which was signed later
    travel.settle()
    assert shop.calls == [7, 8]


def test_canceled_jobs_and_dead_letters_are_remembered_when_they_are_deleted(
    shop: Shop, travel: TimeTravel
) -> None:
    jobs = [shop.signer.sign(shop.new_job(name, "once")) for name in ("canceled", "failed")]
    shop.queue("default").pause()
    shop.store(jobs[0])
    assert shop.cancel("canceled")
    shop.queue("default").resume()
    shop.store(jobs[1])
    travel.settle()
    _prune(shop)
    shop.store(*jobs)
    travel.settle()
    assert shop.calls == [7]


def test_jobs_are_handed_back_if_the_store_does_not_tell_what_was_used(
    shop: Shop, travel: TimeTravel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = shop.manager().engine
    refusals = [EngineUnavailable(engine="store", reason="it cannot be read", remedy="try again")]

    def spent(ids: Sequence[str]) -> dict[str, int]:
        if ids and refusals:
            raise refusals.pop()
        return {}

    shop.pay.submit(1)
    travel.settle()
    _prune(shop)  # so that the store remembers an envelope
    handle = shop.pay.after(60).submit(2)
    monkeypatch.setattr(engine, "spent", spent)
    travel.fast_forward(65)
    assert (shop.calls, refusals, shop.get(handle.id).starts) == ([1, 2], [], 1)


def test_jobs_of_a_bulk_submit_share_the_beginning_of_their_signatures(shop: Shop, travel: TimeTravel) -> None:
    ids = shop.pay.submit_many([(1,), (2,)])
    texts = [(shop.get(job_id).headers or {})[SIGNATURE] for job_id in ids]
    assert len({text.rpartition(".")[0] for text in texts}) == 1
    assert len(set(texts)) == 2
    travel.settle()
    assert sorted(shop.calls) == [1, 2]


def test_envelopes_are_forgotten_when_their_signatures_have_ended(shop: Shop, travel: TimeTravel) -> None:
    handle = shop.pay.submit(1)
    travel.settle()
    _prune(shop)
    assert handle.id in shop.manager().engine.spent([handle.id])
    travel.fast_forward(days=8)
    _prune(shop)
    assert shop.manager().engine.spent([handle.id]) == {}


def _prune(shop: Shop) -> None:
    while shop.manager().engine.prune(Retention(0, 0, 0)).is_more:
        pass


# -- fuzzing

LEASE = Lease("ref", "job", "pay", "default", 5, b"{}", "json", 1, True, 0, 0, 0, 0, 1)
NOW = 1_800_000_000_000_000
SIGNER = JobSigner(RING, lambda: NOW)
SIGNED = SIGNER.sign(NewJob("job", "pay", "default", 1, NOW, b"{}", "json", headers={"user": "7"}))

SCHEDULED = SIGNER.sign_schedule(
    ScheduleRecord(
        "minutely",
        "pay",
        "default",
        1,
        b"{}",
        "json",
        encode_rule(Every(60, anchor=0)),
        "once",
        0,
        Overlap.SKIP,
        0,
        None,
        None,
        None,
        (),
        NOW,
    )
)
REFERRING: Any = SIGNER.refer_to_schedule(SCHEDULED, plan_firing(SCHEDULED, Every(60, anchor=0), NOW, str)).jobs[0]
OF_SCHEDULE = replace(LEASE, id=REFERRING.id, headers=REFERRING.headers)

BULK = SIGNER.sign_all(
    [NewJob(job_id, "pay", "default", 1, NOW, b"{}", "json") for job_id in ("job", "other job")]
)
TEXTS = [(job.headers or {})[SIGNATURE] for job in BULK]

plans = st.builds(FollowUp, st.text(), st.text(), st.integers(0, 3), argument=st.none() | st.text())


@given(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(["job"]) | st.text(),
            "type": st.sampled_from(["pay"]) | st.text(),
            "queue": st.sampled_from(["default"]) | st.text(),
            "payload": st.sampled_from([b"{}"]) | st.binary(),
            "codec": st.sampled_from(["json"]) | st.text(),
            "sequence": st.none() | st.text(),
            "follow_up": st.none() | plans,
        }
    ),
    st.dictionaries(st.sampled_from(["user"]) | st.text(), st.sampled_from(["7"]) | st.text(), max_size=2),
)
def test_only_the_signed_values_of_all_fields_are_right(fields: dict[str, Any], headers: dict[str, str]) -> None:
    assert SIGNED.headers is not None
    lease = replace(LEASE, **fields, headers={**headers, SIGNATURE: SIGNED.headers[SIGNATURE]})
    is_same = all(getattr(SIGNED, name) == value for name, value in fields.items()) and headers == {"user": "7"}
    assert (SIGNER.problem_of(lease) is None) == is_same


@given(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(["job", "other job"]) | st.text(),
            "type": st.sampled_from(["pay"]) | st.text(),
            "queue": st.sampled_from(["default"]) | st.text(),
            "payload": st.sampled_from([b"{}"]) | st.binary(),
            "codec": st.sampled_from(["json"]) | st.text(),
            "sequence": st.none() | st.text(),
            "follow_up": st.none() | plans,
            "spent": st.none() | st.sampled_from([NOW - 1, NOW, NOW + 1]),
        }
    ),
    st.sampled_from([0, 1]),
)
def test_only_its_own_values_are_right_for_a_job_of_a_bulk_submit(fields: dict[str, Any], place: int) -> None:
    spent = fields["spent"]
    lease = replace(LEASE, **fields, headers={SIGNATURE: TEXTS[place]})
    is_same = all(getattr(BULK[place], name) == value for name, value in fields.items() if name != "spent")
    assert (SIGNER.problem_of(lease) is None) == (is_same and (spent is None or spent < NOW))


@given(st.integers(0, 10_000), st.characters(max_codepoint=1_000))
def test_a_signature_with_one_other_character_is_refused(place: int, character: str) -> None:
    text, place = TEXTS[0], place % len(TEXTS[0])
    assume(text[place] != character)
    wrong = f"{text[:place]}{character}{text[place + 1 :]}"
    assert SIGNER.problem_of(replace(LEASE, headers={SIGNATURE: text})) is None
    assert SIGNER.problem_of(replace(LEASE, headers={SIGNATURE: wrong})) is not None


def test_a_job_of_a_bulk_submit_is_refused_after_the_end_of_its_signature() -> None:
    now = NOW
    signer = JobSigner(RING, lambda: now)
    leases = [replace(LEASE, id=job.id, headers=job.headers) for job in BULK]
    now = NOW + RING.valid_for
    assert [signer.problem_of(lease) for lease in leases] == [None, None]
    now += 1
    assert all("was valid until" in (signer.problem_of(lease) or "") for lease in leases)


@given(st.text() | st.binary().map(lambda data: f"1s.{b64encode(data).decode()}"))
def test_any_text_as_a_signature_is_refused_without_an_error(text: str) -> None:
    assert SIGNER.problem_of(replace(LEASE, headers={SIGNATURE: text})) is not None


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_reference_with_one_other_byte_is_refused(place: int, byte: int) -> None:
    data = bytearray(b64decode(REFERRING.headers[SIGNATURE].removeprefix("1s.")))
    assume(data[place % len(data)] != byte)
    data[place % len(data)] = byte
    lease = replace(OF_SCHEDULE, headers={SIGNATURE: f"1s.{b64encode(bytes(data)).decode()}"})
    assert SIGNER.problem_of(OF_SCHEDULE) is None
    assert SIGNER.problem_of(lease) is not None


# -- the jobs of one fetch are verified together, before any of them starts


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries(
                {
                    "id": st.sampled_from(["job", "other job"]) | st.text(),
                    "type": st.sampled_from(["pay", "pay "]),
                    "payload": st.sampled_from([b"{}"]) | st.binary(),
                    "sequence": st.none() | st.text(),
                    "follow_up": st.none() | plans,
                    "spent": st.none() | st.sampled_from([NOW - 1, NOW, NOW + 1]),
                }
            ),
            st.sampled_from([*TEXTS, "", ".", "1j.2026-11.0.0.0", REFERRING.headers[SIGNATURE]]) | st.text(),
            st.dictionaries(st.text(), st.text(), max_size=1),
        ),
        max_size=5,
    )
)
def test_jobs_that_are_verified_together_are_accepted_as_each_would_be_alone(
    jobs: list[tuple[dict[str, Any], str, dict[str, str]]],
) -> None:
    leases = [replace(LEASE, **fields, headers={**more, SIGNATURE: text}) for fields, text, more in jobs]
    alone = [SIGNER.problem_of(lease) for lease in leases]
    SIGNER.verify(leases)
    assert all(problem is None for lease, problem in zip(leases, alone, strict=True) if lease.verified_until)
    assert [SIGNER.problem_of(lease) for lease in leases] == alone


def test_right_jobs_are_verified_together() -> None:
    headers = {"user": "7"}
    others = [
        SIGNER.sign(NewJob("with headers", "pay", "default", 1, NOW, b"{}", "json", headers=headers)),
        SIGNER.sign(
            NewJob("with a plan", "pay", "default", 1, NOW, b"{}", "json", follow_up=FollowUp("pay", "default", 1))
        ),
    ]
    leases = [
        replace(LEASE, id=job.id, headers=job.headers, follow_up=job.follow_up)
        for job in (*BULK, *others, BULK[0])
    ]
    SIGNER.verify(leases)
    assert [lease.verified_until for lease in leases] == [NOW + RING.valid_for] * 5


def test_signatures_that_take_long_are_left_to_the_threads_that_run_the_jobs() -> None:
    signer = JobSigner(KeyRing({"pair": PAIR}, sign_with="pair"), lambda: NOW)
    slow = signer.sign(NewJob("job", "pay", "default", 1, NOW, b"{}", "json"))
    long = SIGNER.sign(NewJob("job", "pay", "default", 1, NOW, b"x" * (SHORT + 1), "json"))
    for verifying, job in ((signer, slow), (SIGNER, long)):
        lease = replace(LEASE, payload=job.payload, headers=job.headers)
        verifying.verify([lease])
        assert (lease.verified_until, verifying.problem_of(lease)) == (0, None)


def test_a_job_that_was_verified_does_not_start_after_the_end_of_its_signature() -> None:
    now = NOW
    signer = JobSigner(RING, lambda: now)
    lease = replace(LEASE, headers={SIGNATURE: TEXTS[0]})
    signer.verify([lease])
    now = NOW + RING.valid_for
    assert signer.problem_of(lease) is None
    now += 1
    assert "was valid until" in (signer.problem_of(lease) or "")


def test_a_worker_verifies_the_jobs_of_a_fetch_together(
    shop: Shop, travel: TimeTravel, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[str] = []
    find_problem = JobSigner._find_problem

    def record(signer: JobSigner, lease: Lease) -> str | None:
        alone.append(lease.id)
        return find_problem(signer, lease)

    monkeypatch.setattr(JobSigner, "_find_problem", record)
    shop.pay.submit_many([(1,), (2,)])
    shop.store(shop.new_job("forged"))
    travel.settle()
    assert (sorted(shop.calls), alone) == ([1, 2], ["forged"])
    assert "it has no signature" in shop.error("forged")
