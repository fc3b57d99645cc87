"""The audit of the demonstration."""

from mainspring.demo.audit import OrderAudit
from mainspring.demo.journal import JournalEntry, OrderEvent


def report(job: str, due: float, at: float) -> JournalEntry:
    return JournalEntry(OrderEvent.REPORTED, 0, job, at, due)


def test_a_report_that_is_written_again_after_a_kill_is_one_report() -> None:
    audit = OrderAudit()
    audit.add([report("night 1", due=5, at=5), report("night 2", due=10, at=10)])
    audit.add([report("night 2", due=10, at=12), report("night 3", due=15, at=15)])
    assert [entry.due for entry in audit.reports.values()] == [5, 10, 15]
