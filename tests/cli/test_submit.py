"""`mainspring submit`: one job as it is typed, and files of jobs."""

import json
import re
import signal
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import JobInfo
from tests.cli.shop_program import MODULE, ShopProgram
from tests.support import PATIENCE

FAILURE, USAGE, INTERRUPTED = 1, 2, 130


def job(shop: ShopProgram, job_id: str) -> JobInfo:
    with shop.open() as app:
        return app.get(job_id)


def test_a_job_is_submitted_as_it_is_typed_and_its_id_is_the_output(shop: ShopProgram) -> None:
    done = shop.run_with_app("submit", "cancel_order", "order_id=42", "reason=7", "--delay", "1h30m")
    assert done.code == 0
    assert re.fullmatch(r"[0-9a-f]{32}\n", done.output)
    stored = job(shop, done.output.strip())
    assert stored.arguments == {"order_id": 42, "reason": "7"}  # a text, as the signature says
    assert timedelta(minutes=89) < stored.due - stored.created <= timedelta(minutes=91)


def test_options_say_when_where_and_how(shop: ShopProgram) -> None:
    options = ("--at", "2037-01-01T02:00:00+01:00", "--queue", "slow", "--priority", "best-effort")
    more = ("--id", "order-42", "--unique", "42", "--sequence", "ann", "--json")
    done = shop.run_with_app("submit", "cancel_order", "--args", '{"order_id": 42}', *options, *more)
    assert done.json == {"id": "order-42", "type": "shop.cancel_order"}
    stored = job(shop, "order-42")
    assert stored.due == datetime.fromisoformat("2037-01-01T01:00:00Z")
    assert (stored.queue, stored.priority.name, stored.sequence) == ("slow", "BEST_EFFORT", "ann")
    assert stored.unique_key == "shop.cancel_order: 42"


def test_a_job_is_submitted_for_a_day_and_rescheduled_to_another(shop: ShopProgram) -> None:
    done = shop.run_with_app("submit", "cancel_order", "order_id=42", "--id", "order-42", "--at", "2037-01-02")
    assert (done.code, job(shop, "order-42").due) == (0, datetime(2037, 1, 2, tzinfo=UTC))
    done = shop.run_on_store("jobs", "reschedule", "order-42", "--at", "2037-03-27+01:00")
    assert (done.code, job(shop, "order-42").due) == (0, datetime(2037, 3, 26, 23, tzinfo=UTC))


def test_an_id_is_taken_once_and_a_unique_key_returns_who_has_it(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, id="one", unique="k")
    done = shop.run_with_app("submit", "cancel_order", "order_id=1", "--id", "one")
    assert done.code == FAILURE
    assert done.error_line == (
        "mainspring: job 'one' exists already and nothing was stored; "
        "see mainspring jobs show one, or give another --id"
    )
    assert shop.run_with_app("submit", "cancel_order", "order_id=2", "--unique", "k").output == "one\n"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["order_id=x"], "parameter 'order_id': Expected `int`, got `str` ('x')"),
        (["42"], "'42' is not of the form name=value, as in order_id=42"),
        (
            ["order_id=1", "--delay", "1", "--at", "2037-01-01T00:00Z"],
            "--delay and --at both set the due time; give one of them",
        ),
    ],
    ids=["argument", "pair", "options"],
)
def test_what_does_not_fit_is_refused_before_anything_is_stored(
    shop: ShopProgram, typed: list[str], said: str
) -> None:
    done = shop.run_with_app("submit", "cancel_order", *typed)
    assert done.code == USAGE
    assert said in done.error_line


def test_a_handler_that_is_not_there_is_answered_with_those_that_are(shop: ShopProgram) -> None:
    done = shop.run_with_app("submit", "cancel")
    assert done.code == USAGE
    assert "shop.cancel_order, shop.nightly_report" in done.error_line
    done = shop.run_on_store("submit", "cancel_order", "order_id=1")
    assert done.code == USAGE
    assert "submit needs the handlers: give --app" in done.error_line


def lines(count: int) -> str:
    return "".join(json.dumps({"order_id": number}) + "\n" for number in range(count))


def test_a_file_of_jobs_is_submitted_line_by_line(shop: ShopProgram) -> None:
    (shop.folder / "jobs.jsonl").write_text(lines(2) + "\n[2, 'lost']\n".replace("'", '"'))
    done = shop.run_with_app("submit", "cancel_order", "--file", "jobs.jsonl", "--delay", "1d", "--json")
    assert done.json["count"] == 3
    assert job(shop, done.json["ids"][2]).arguments == {"order_id": 2, "reason": "lost"}
    piped = shop.run_with_app("submit", "cancel_order", "--file", "-", "--skip", "1", stdin=lines(3))
    assert piped.output.startswith("submitted 2 jobs in ")


def test_one_wrong_line_keeps_all_others_from_being_stored(shop: ShopProgram) -> None:
    done = shop.run_with_app("submit", "cancel_order", "--file", "-", stdin=lines(3) + '{"order_id": "x"}\n')
    assert done.code == USAGE
    assert "stdin, line 4: shop.cancel_order, parameter 'order_id'" in done.error_line
    done = shop.run_with_app("submit", "cancel_order", "--file", "-", stdin=lines(1) + "oops\n")
    assert "stdin, line 2: this is not JSON" in done.error_line
    with shop.open() as app:
        assert sum(app.counts().values()) == 0


SLOW = """
import sys
from contextlib import contextmanager
from threading import Event
from mainspring import Middleware


class Slow(Middleware):
    @contextmanager
    def submitting(self, submit):
        Event().wait(0.1)
        yield
        print("stored", file=sys.stderr)


app.middleware(Slow())
"""


def test_a_long_submit_has_a_bar_that_says_how_fast_and_how_long_still(shop: ShopProgram) -> None:
    count = 15_000  # fifteen commits, a tenth of a second each
    (shop.folder / "shop.py").write_text(MODULE + SLOW)
    (shop.folder / "jobs.jsonl").write_text(lines(count))
    arguments = ("submit", "cancel_order", "--file", "jobs.jsonl", "--delay", "1d", "--app", "shop:app")
    code, shown = shop.run_on_terminal(*arguments, columns=100, NO_COLOR="1")
    assert code == 0
    assert re.search(rf"submitting .* \d+/{count} [\d,]+/s left: \d:\d\d:\d\d", shown)
    assert f"submitted {count:,} jobs" in shown


def test_an_interrupted_submit_prints_exactly_how_to_go_on(shop: ShopProgram) -> None:
    (shop.folder / "shop.py").write_text(MODULE + SLOW)
    (shop.folder / "jobs.jsonl").write_text(lines(100_000))
    process = shop.start(
        *("submit", "cancel_order", "--file", "jobs.jsonl", "--skip", "10", "--delay", "1d", "--app", "shop:app")
    )
    try:
        assert process.stderr is not None
        assert any(line == "stored\n" for line in process.stderr)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, output) == (INTERRUPTED, "")
    with shop.open() as app:
        stored = app.counts()["PENDING"]
    assert 1_000 <= stored < 99_990
    assert errors.endswith(f"mainspring: stored {stored:,} of 99,990 jobs; continue with --skip {stored + 10}\n")
