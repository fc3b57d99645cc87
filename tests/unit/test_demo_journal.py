"""The journal of the demonstration."""

from pathlib import Path

from mainspring.demo.journal import OrderEvent, OrderJournal


def test_each_entry_is_read_once(tmp_path: Path) -> None:
    journal = OrderJournal(str(tmp_path / "journal"))
    assert journal.read_new() == []
    journal.note(OrderEvent.PLACED, 1, "order-1")
    journal.note(OrderEvent.PAID, 1, "order-1")
    assert [entry.event for entry in journal.read_new()] == [OrderEvent.PLACED, OrderEvent.PAID]
    assert journal.read_new() == []


def test_a_line_that_is_just_being_written_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = OrderJournal(str(path))
    path.write_text("placed 1 order-1 1.0 1.0\nplaced 2 or")
    assert [entry.order for entry in journal.read_new()] == [1]
    with path.open("a") as file:
        file.write("der-2 2.0 2.0\n")
    assert [(entry.order, entry.job) for entry in journal.read_new()] == [(2, "order-2")]
