"""`mainspring events`: what happens, as it happens."""

import json
from datetime import UTC, datetime

import pytest

from mainspring import JobEvent
from mainspring.cli import events, output
from mainspring.cli.exit_codes import ExitCode
from mainspring.jobs.events import EventKind
from tests.cli.shop_program import ShopProgram
from tests.support import PATIENCE

FAILURE = 1


def test_events_are_printed_as_they_happen_a_line_each(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    process = shop.start("events", "--follow", "--queue", "orders", "--count", "2", "--json", "--url", shop.url)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "listening, stop with Ctrl+C\n"
        shop.submit({"order_id": 2}, queue="slow")
        shop.submit({"order_id": 3}, id="three")
        with shop.open() as app:
            app.cancel("three")
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, errors) == (0, "")
    said = [json.loads(line) for line in output.splitlines()]
    assert [(event["kind"], event["job_id"]) for event in said] == [("submitted", "three"), ("canceled", "three")]


def test_following_ends_when_the_reader_goes_though_nothing_happens(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    process = shop.start("events", "--follow", "--url", shop.url)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "listening, stop with Ctrl+C\n"
        process.stdout.close()
        assert process.wait(PATIENCE) == ExitCode.OUTPUT_CLOSED
        assert process.stderr.read() == ""
    finally:
        process.close()


def test_listening_ends_by_itself_and_says_if_there_was_less_than_asked_for(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    done = shop.run_on_store("events", "--for", "1ms")
    assert (done.code, done.output, done.errors) == (0, "", "listening for 0.001 s\n")
    assert shop.run_on_store("events", "--for", "1ms", "--count", "1").code == FAILURE


def test_on_a_terminal_a_reason_that_does_not_fit_beside_an_event_stands_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (events, output):
        monkeypatch.setattr(module, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    for note in ("no", "ValueError: this order is gone, and nobody knows where\nat line 1"):
        event = JobEvent(
            kind=EventKind.FAILED,
            at=datetime(2027, 1, 1, 2, 3, 4, tzinfo=UTC),
            job_id="order-42",
            type="shop.pay",
            queue="orders",
            note=note,
        )
        events.print_event(event, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "02:03:04  failed        order-42  shop.pay  orders  no",
        "02:03:04  failed        order-42  shop.pay  orders",
        "          ValueError: this order is gone, and nobody knows …",
    ]
