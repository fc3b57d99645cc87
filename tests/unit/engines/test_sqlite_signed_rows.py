"""Signed jobs in a SQLite file: rows that another program inserts or changes do not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from mainspring import JobStatus, KeyRing, Mainspring
from mainspring.jobs.engine import Retention
from tests.blank_stores import make_blank_store
from tests.support import PATIENCE

RING = KeyRing({"2026-11": KeyRing.generate()}, sign_with="2026-11")


class Shop(Mainspring):
    """An application whose file another program changes."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}", durability="normal", grace=5, signing=RING)
        self.calls: list[int] = []
        self.pay = self.job(name="pay")(self._pay)
        self.refund = self.job(name="refund")(self._pay)
        self.path = path

    def _pay(self, order: int) -> None:
        self.calls.append(order)

    def sql(self, statement: str, *values: Any) -> None:
        """Change the file as another program does."""
        connection = apsw.Connection(str(self.path))
        connection.set_busy_timeout(int(PATIENCE * 1_000))
        connection.execute(statement, values)
        connection.close()

    def is_refused(self, job_id: str) -> bool:
        status = self.handle(job_id).wait(PATIENCE)
        return status is JobStatus.FAILED and str(self.get(job_id).error).startswith("SignatureInvalid: ")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(make_blank_store(tmp_path / "jobs.db"))
    with shop:
        yield shop


COPY = """
INSERT INTO jobs (id, lane, due, ready, created, payload, codec, headers)
SELECT ?2, lane, due, ready, created, coalesce(?3, payload), codec, iif(?4, headers, NULL) FROM jobs WHERE id = ?1
"""


def test_inserted_rows_do_not_run(shop: Shop) -> None:
    with shop.running():
        assert shop.pay.options(id="right").submit(1).wait(PATIENCE) is JobStatus.COMPLETED
        shop.sql(COPY, "right", "unsigned", None, 0)
        shop.sql(COPY, "right", "copy", None, 1)
        shop.sql(COPY, "right", "other arguments", '{"order":2}', 1)
        shop.pay.submit(3).wait(PATIENCE)  # wakes the worker
        for job_id in ("unsigned", "copy", "other arguments"):
            assert shop.is_refused(job_id)
    assert shop.calls == [1, 3]


@pytest.mark.parametrize(
    "change",
    [
        """payload = '{"order":2}'""",
        "codec = 'msgpack', payload = x'81a56f7264657202'",
        "lane = (SELECT id FROM lanes WHERE type = 'refund')",
        "lane = (SELECT id FROM lanes WHERE queue = 'other')",
        "id = 'another'",
        "headers = NULL",
        "headers = '{}'",
        "headers = json_set(headers, '$.user', '8')",
        "headers = json_set(headers, '$.mainspring-timeout', '1')",
        "sequence = 's'",
        """follow_up = '{"type":"pay","queue":"default","priority":1,"argument":"order"}'""",
    ],
)
def test_a_changed_row_does_not_run(shop: Shop, change: str) -> None:
    shop.refund.after(3_600).submit(8)
    shop.pay.options(queue="other").after(3_600).submit(9)
    shop.pay.options(id="job", headers={"user": "7"}).submit(1)
    shop.sql(f"UPDATE jobs SET {change} WHERE id = 'job'")
    with shop.running():
        assert shop.is_refused("another" if change.startswith("id") else "job")
    assert shop.calls == []


def test_a_row_that_is_inserted_again_after_pruning_does_not_run(shop: Shop) -> None:
    shop.sql("CREATE TABLE copies AS SELECT * FROM jobs")
    shop.pay.options(id="job").submit(1)
    shop.sql("INSERT INTO copies SELECT * FROM jobs")
    with shop.running():
        assert shop.handle("job").wait(PATIENCE) is JobStatus.COMPLETED
        with pytest.raises(apsw.ConstraintError):
            shop.sql("INSERT INTO jobs SELECT * FROM copies")
        engine = shop.manager().engine
        while engine.prune(Retention(0, 0, 0)).is_more:
            pass
        shop.sql("INSERT INTO jobs SELECT * FROM copies")
        shop.pay.submit(2).wait(PATIENCE)
        assert shop.is_refused("job")
        assert "was used before" in str(shop.get("job").error)
    assert shop.calls == [1, 2]


@pytest.mark.parametrize("change", ["payload = '{\"order\":2}'", "type = 'refund'", "signature = NULL"])
def test_an_altered_schedule_fires_jobs_that_do_not_run(shop: Shop, change: str) -> None:
    shop.schedules.put("daily", shop.pay, "0 6 * * *", arguments={"order": 1})
    shop.sql(f"UPDATE schedules SET {change}, next_due = created")
    with shop.running():
        shop.manager().wait_until(lambda: bool(shop.schedules.jobs("daily")), PATIENCE, "no job was made")
        (job,) = shop.schedules.jobs("daily")
        assert shop.is_refused(job.id)
    assert shop.calls == []
