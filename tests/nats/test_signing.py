"""Signed jobs on NATS: a client without a key, also one that writes records by hand, runs nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import DeadLetter, Every, JobStatus, KeyRing, Mainspring, Retry, SignatureInvalid
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.job_records import StoredJob, change, encode, make_job
from mainspring.engines.nats.schedule_records import read_schedule
from mainspring.jobs.commands import PutDeadLetterHandler, PutSchedule
from mainspring.jobs.dead_letter_jobs import MARK, DeadLetterHandler
from mainspring.jobs.engine import Retention
from mainspring.jobs.job_policies import SIGNATURE
from mainspring.jobs.records import NewJob
from mainspring.jobs.signing import JobSigner, key_of
from tests.nats.restricted_servers import RestrictedServers, run_program
from tests.nats.servers import Servers
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

RING = KeyRing({"2026-11": KeyRing.generate()}, sign_with="2026-11")
STRANGER = KeyRing({"2026-11": KeyRing.generate()}, sign_with="2026-11")


class Shop(Mainspring):
    """An application that records the calls of its handlers."""

    def __init__(self, url: str, signing: KeyRing | None) -> None:
        super().__init__(url, threads=4, grace=5, signing=signing)
        self.calls: list[int] = []
        self.pay = self.job(name="pay")(self._pay)
        self.once = self.job(name="once", retry=Retry(max_attempts=1))(self._fail)

    def _pay(self, order: int) -> int:
        self.calls.append(order)
        return order + 1

    def _fail(self, order: int) -> None:
        self.calls.append(order)
        raise ValueError("no")

    @property
    def engine(self) -> NatsEngine:
        engine = self.manager().engine
        assert isinstance(engine, NatsEngine)
        return engine

    def new_job(self, job_id: str, order: int, headers: dict[str, str] | None = None) -> NewJob:
        return NewJob(
            job_id, "pay", "default", 1, self.engine.now(), b'{"order":%d}' % order, "json", headers=headers
        )

    def write(self, job: StoredJob) -> None:
        """Write the record of a job by hand, and the message that gives the job to a worker."""
        transactions = self.engine.components.transactions
        transaction = transactions.begin()
        transaction.put_job(job)
        transaction.publish_ready(job)
        assert transactions.commit(transaction)

    def read(self, job_id: str) -> StoredJob:
        job = self.engine.components.transactions.begin().job(job_id)
        assert job is not None
        return job

    def refusal(self, job_id: str) -> str:
        """Wait until a job is a dead letter, and return why."""
        assert self.handle(job_id).wait(PATIENCE) is JobStatus.FAILED
        return str(self.get(job_id).error)


def shop_of(servers: RestrictedServers, role: Any, signing: KeyRing | None) -> Shop:
    return Shop(servers.url(role, projection=servers.folder / f"{role}-{signing is None}.db"), signing)


def test_a_submitter_without_a_key_makes_no_worker_run_anything(restricted_server: RestrictedServers) -> None:
    with restricted_server.app("operator") as operator:
        operator.manager()  # makes the streams
    author = shop_of(restricted_server, "submitter", RING)
    thief = shop_of(restricted_server, "submitter", None)
    worker = shop_of(restricted_server, "worker", RING)
    with author, thief, worker, worker.running():
        done = author.pay.options(id="done").submit(1)
        assert done.wait(PATIENCE) is JobStatus.COMPLETED
        letter = author.once.submit(2)
        assert letter.wait(PATIENCE) is JobStatus.FAILED
        author.schedules.put("daily", author.pay, Every(timedelta(days=1)), arguments={"order": 3})
        assert eventually(lambda: worker.engine.spent(["done"]) != {})

        use_the_library(author, thief, letter.id)
        write_by_hand(author, thief)

        assert author.pay.submit(4).wait(PATIENCE) is JobStatus.COMPLETED
        assert worker.calls == [1, 2, 4]
        assert restricted_server.violations() == []
        names = thief.engine.components.names
        thief.engine.components.jetstream.send([(names.spent_envelope("done"), b"")])
        assert eventually(
            lambda: any("shop.guarded.spent" in line.lower() for line in restricted_server.violations())
        )


def use_the_library(author: Shop, thief: Shop, letter: str) -> None:
    """Try everything that a program with the rights of a submitter and without a key can call."""
    forged = [thief.pay.submit(100).id, *thief.pay.submit_many([(101,), (102,)])]
    forged.append(thief.pay.options(then=thief.pay, sequence="s", headers={"user": "7"}).submit(103).id)
    (replayed,) = thief.dead_letters.replay(letter, changes={"order": 104})
    forged.append(replayed)
    thief.schedules.put("forged", thief.pay, Every(timedelta(seconds=0.2)), arguments={"order": 105})
    assert eventually(lambda: bool(thief.schedules.jobs("forged")))
    forged.append(thief.schedules.jobs("forged")[-1].id)
    thief.schedules.remove("forged")
    forged.append(thief.schedules.trigger("daily").id)
    handler = DeadLetterHandler(thief.pay.follow_up(), passes_id=True)
    thief.engine.arrange([PutDeadLetterHandler(handler)])
    forged.append(thief.once.submit(107).id)
    assert eventually(lambda: bool(alerts(thief)))
    forged += alerts(thief)
    for job_id in forged:
        assert thief.refusal(job_id).startswith("SignatureInvalid: ")
    thief.dead_letters.remove_handler("pay")
    with pytest.raises(SignatureInvalid):
        author.dead_letters.replay(forged[0])
    assert author.dead_letters.replay(type="pay") == ()


def alerts(shop: Shop) -> list[str]:
    """Return the jobs that were made for the forged dead-letter handler."""
    return [job.id for job in shop.jobs(type="pay", limit=500) if MARK in job.headers]


def write_by_hand(author: Shop, thief: Shop) -> None:
    """Write records and messages into the stream, with the rights of a submitter."""
    done = thief.read("done")
    signature = dict(done.headers or {})
    again = change(done, status=JobStatus.PENDING, finished=None, result=None, starts=0)
    thief.write(again)
    assert "was used before" in thief.refusal("done")

    transactions = thief.engine.components.transactions
    transaction = transactions.begin()
    transaction.delete_job("done")
    assert transactions.commit(transaction)
    assert thief.engine.submit([thief.new_job("done", 1, signature)]) == [None]
    assert "was used before" in thief.refusal("done")

    now = thief.engine.now()
    pending = author.pay.options(id="pending", headers={"user": "7"}).after(3_600).submit(5)
    record = thief.read(pending.id)
    stranger = JobSigner(STRANGER, thief.engine.now)
    written = [
        make_job(thief.new_job("raw", 200), now=now, place=now * 1_000, nonce="x"),
        make_job(thief.new_job("copied", 1, signature), now=now, place=now * 1_000 + 1, nonce="x"),
        make_job(stranger.sign(thief.new_job("other secret", 201)), now=now, place=now * 1_000 + 2, nonce="x"),
        change(record, payload=b'{"order":666}', due=now),
    ]
    for job in written:
        thief.write(job)
        assert thief.refusal(job.id).startswith("SignatureInvalid: ")

    (daily,) = thief.engine.schedules(names=["daily"])
    for changes in ({"payload": b'{"order":300}'}, {"signature": None}, {}):
        altered = replace(daily, **changes, next_due=thief.engine.now() + 200_000)
        assert thief.engine.arrange([PutSchedule(altered, daily.revision)]) == [True]
        before = {job.id for job in thief.schedules.jobs("daily")}
        assert eventually(lambda: bool({job.id for job in thief.schedules.jobs("daily")} - before))  # noqa: B023
        (made,) = {job.id for job in thief.schedules.jobs("daily")} - before
        assert thief.refusal(made).startswith("SignatureInvalid: ")
        (daily,) = thief.engine.schedules(names=["daily"])
    stored = read_schedule(transactions.begin(), "daily")
    thief.engine.components.jetstream.store(thief.engine.components.names.schedule("daily"), encode(stored))


def test_signed_jobs_live_on_nats_as_on_sqlite(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> None:
    url = f"{nats_server.url}?prefix={nats_prefix}&projection={tmp_path}/projection.db"
    letters: list[str] = []
    shop = Shop(url, RING)
    with shop:

        @shop.on_dead_letter
        def alert(letter: DeadLetter) -> None:
            letters.append(letter.id)

        with shop.running():
            often = Every(timedelta(seconds=0.3))
            shop.schedules.put("often", shop.pay, often, arguments={"order": 50}, overlap="allow")
            assert shop.pay.options(then=shop.pay).submit(1).wait(PATIENCE) is JobStatus.COMPLETED
            assert eventually(lambda: 2 in shop.calls and 50 in shop.calls)
            letter = shop.once.submit(3)
            assert letter.wait(PATIENCE) is JobStatus.FAILED
            assert eventually(lambda: letters == [letter.id])
            shop.dead_letters.edit(letter.id, {"order": 4})
            shop.retry(letter.id)
            assert eventually(lambda: 4 in shop.calls)
            assert eventually(lambda: shop.get(letter.id).status is JobStatus.FAILED)
            (copy,) = shop.dead_letters.replay(letter.id, changes={"order": 5})
            assert eventually(lambda: 5 in shop.calls)
            later = shop.pay.after(3_600).submit(6)
            first = shop.get(later.id).headers[SIGNATURE]
            assert later.reschedule(delay=timedelta(days=30))
            assert shop.get(later.id).headers[SIGNATURE] != first
            assert shop.run_now(later.id)
            assert later.wait(PATIENCE) is JobStatus.COMPLETED
            assert shop.schedules.trigger("often").wait(PATIENCE) is JobStatus.COMPLETED
            assert shop.handle(copy).wait(PATIENCE) is JobStatus.FAILED
    assert not any("SignatureInvalid" in str(job.error) for job in shop.jobs(limit=500))
    shop.close()


def test_signed_jobs_and_schedules_run_after_a_migration(
    nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path}/shop.db"
    target = f"{nats_server.url}?prefix={nats_prefix}&projection={tmp_path}/projection.db"
    shop = Shop(source, RING)
    with shop:
        ids = [shop.pay.options(sequence="s", headers={"user": "7"}).submit(n).id for n in range(3)]
        shop.schedules.put("often", shop.pay, Every(timedelta(seconds=0.3)), arguments={"order": 50})
    run_program("migrate", source, target)
    shop = Shop(target, RING)
    with shop, shop.running():
        for job_id in ids:
            assert shop.handle(job_id).wait(PATIENCE) is JobStatus.COMPLETED
        assert eventually(lambda: 50 in shop.calls)
        (record,) = shop.engine.schedules()
        assert key_of(str(record.signature)) == "2026-11"


def test_signed_jobs_that_have_ended_do_not_run_again_after_a_migration(
    restricted_server: RestrictedServers, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path}/shop.db"
    shop = Shop(source, RING)
    with shop:
        with shop.running():
            ids = [shop.pay.submit(order).id for order in range(2)]
            assert [shop.handle(job_id).wait(PATIENCE) for job_id in ids] == [JobStatus.COMPLETED] * 2
        canceled = shop.pay.after(3600).submit(2).id
        assert shop.cancel(canceled)
        ids.append(canceled)
        jobs = {job_id: (shop.get(job_id).headers, order) for order, job_id in enumerate(ids)}
        while shop.manager().engine.prune(Retention(0, None, None)).is_more:
            pass
        assert shop.counts()["COMPLETED"] == 0  # the file remembers their envelopes; the canceled job is there
        later = shop.pay.options(id=ids[0]).submit(10)
    run_program("migrate", source, restricted_server.url("operator"))
    shop = shop_of(restricted_server, "worker", RING)
    with shop, shop.running():
        assert later.id == ids[0]
        assert shop.handle(later.id).wait(PATIENCE) is JobStatus.COMPLETED  # its signature is newer
        for job_id in ids:
            headers, order = jobs[job_id]
            now = shop.engine.now()
            shop.write(make_job(shop.new_job(job_id, order, dict(headers)), now=now, place=now * 1_000, nonce="x"))
            assert "its signature was used before" in shop.refusal(job_id)
    assert shop.calls == [10]
