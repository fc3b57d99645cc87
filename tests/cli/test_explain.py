"""`mainspring explain`: every cause in plain words, with the command that would change it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from mainspring import Mainspring, Reason
from mainspring.cli.app_selection import AppSelection
from mainspring.cli.exit_codes import run_cli
from mainspring.cli.main import commands
from tests.cli.jobs_by_reason import JobsByReason
from tests.cli.shop_program import ShopProgram

FAILURE, USAGE = 1, 2

# As it is printed, but for line breaks within paragraphs. <THEN> is in an hour, <AGO> was just now.
WITH_A_WORKER = """
Job later (shop.work) is due at <THEN>. It starts automatically. To start it now:
  mainspring jobs run-now later <WHERE>

Job retrying (shop.work) is tried again at <THEN>, after attempt 1: ValueError: no such order. It is retried
automatically. To see the whole error, or to retry it now:
  mainspring jobs show retrying <WHERE>
  mainspring jobs run-now retrying <WHERE>

Job paused (shop.work) waits because queue 'held' is paused. To resume the queue:
  mainspring queues resume held <WHERE>

Job put-off (shop.call) waits because its receiver is paused: hooks.example.com has answered with 503 and gets no
requests of the type 'shop.call' until <THEN>, and then one as a probe. The job is due at <THEN>. It starts
automatically. To see all pauses, or to lift this one:
  mainspring callbacks pauses <WHERE>
  mainspring jobs run-now put-off <WHERE>

Job behind (shop.work) waits in sequence 'ann' behind job front, and goes on when that one has ended. Job front
(shop.work) has been running since <AGO> on worker tester. To see why that job has not ended:
  mainspring explain front <WHERE>

Job rated (shop.work) is held back by the rate of handler shop.mail (1 in 1 h), until <THEN>. It starts
automatically. The rate is set in the application, with rate=Rate(...).

Job full (shop.work) waits because the concurrency of handler shop.fetch (1 at once) is reached by occupant; it can
start when that one has ended. The limit is set in the application, with concurrency=Concurrency(...). To see
what uses it:
  mainspring explain occupant <WHERE>

Job unknown (shop.gone) has been due since <AGO>, and the one worker does not know its handler 'shop.gone'. Add
aliases=('shop.gone',) to the handler that replaces it, or import its module with include=[...]. Then start a
worker:
  mainspring run module:app <WHERE>

Job unserved (shop.work) has been due since <AGO>, and no worker serves queue 'orders'; the workers that know its
handler serve 'default', 'held'. To start a worker that serves it:
  mainspring run module:app --queues orders <WHERE>

Job queued (shop.work) has been due since <AGO> and waits for a free slot in queue 'default'; one worker serves it
and knows its handler. If it stays pending, these workers are busy. To see what runs, or to start another worker:
  mainspring jobs list --status running <WHERE>
  mainspring run module:app --queues default <WHERE>

Job taken (shop.held) is leased to worker tester and starts at <THEN>.

Job running (shop.work) has been running since <AGO> on worker tester. To see its progress, or to ask it to stop:
  mainspring jobs show running <WHERE>
  mainspring jobs cancel running <WHERE>

Job overtime (shop.slow) has been running since <AGO> on worker tester, which is past its timeout of 1 ms. A
handler on a thread cannot be killed: the thread is busy until the handler returns. To kill such handlers at
their timeout, declare them with execution='process'; to free the thread now, restart the worker. To see its
progress:
  mainspring jobs show overtime <WHERE>

Job abandoned (shop.doomed) was run by worker <N>, which is gone; another worker takes it over within seconds.

Job completed (shop.work) completed at <AGO>. To see its arguments and its result:
  mainspring jobs show completed <WHERE>

Job canceled (shop.work) was canceled at <AGO>: canceled before it started. It does not run again. To see its
arguments, for a new job:
  mainspring jobs show canceled <WHERE>

Job quarantined (shop.work) was put into quarantine at <AGO>, a dead letter now: 3 workers died while they ran it.
First find out what kills its process or its worker. To see every attempt, or to run it again, as the same
job or as a new one:
  mainspring dlq show quarantined <WHERE>
  mainspring jobs retry quarantined <WHERE>
  mainspring dlq replay quarantined <WHERE>

Job expired (shop.work) expired at <AGO>: it did not start within its time. To run it nevertheless, as the same job
or as a new one:
  mainspring jobs retry expired <WHERE>
  mainspring dlq replay expired <WHERE>

Job failed (shop.work) was given up at <AGO>, after attempt 1: ValueError: no such order. To see every attempt, or
to run it again, as the same job or as a new one:
  mainspring dlq show failed <WHERE>
  mainspring jobs retry failed <WHERE>
  mainspring dlq replay failed <WHERE>

Job replayed (shop.work) failed at <AGO> and was replayed as replay. To see the state of that job:
  mainspring explain replay <WHERE>

Job blocked (shop.work) failed at <AGO>, and cannot run again while job holder has its unique key 'nightly'. To
see why that job has not ended, or to run this one as a new job without the key:
  mainspring explain holder <WHERE>
  mainspring dlq replay blocked <WHERE>
"""
WITHOUT = """
Job queued (shop.work) has been due since <AGO>, and no worker is running. To start one:
  mainspring run shop:app

Job running (shop.work) was run by worker <N>, which is gone, and no other worker is running. To start one:
  mainspring run shop:app
"""


def paragraphs(text: str) -> dict[str, str]:
    """Take a text apart: what is said of each job, without line breaks within paragraphs."""
    found = [re.sub(r"\n(?!  )", " ", part) for part in text.strip().split("\n\n")]
    return {part.split()[1]: part for part in found}


def told(output: str, *where: str) -> dict[str, str]:
    """Take an output apart, with marks in place of what differs from time to time."""
    instant = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    output = re.sub(rf"{instant} \(in (1 h|59 min)\)", "<THEN>", output)
    output = re.sub(rf"{instant} \((now|\d+ s ago)\)", "<AGO>", output)
    output = re.sub(r"by worker \d+,", "by worker <N>,", output)
    return paragraphs(output.replace(shlex.join(where), "<WHERE>"))


@pytest.fixture
def application(shop: ShopProgram) -> Iterator[Mainspring]:
    """The store, open in this process, so that its workers live."""
    with Mainspring(shop.url, durability="normal", grace=0) as app:
        yield app


@pytest.fixture
def causes(application: Mainspring) -> JobsByReason:
    causes = JobsByReason(application.manager().engine)
    causes.make_all()
    return causes


def test_every_cause_is_told_with_what_would_change_it(shop: ShopProgram, causes: JobsByReason) -> None:
    expected = paragraphs(WITH_A_WORKER)
    done = shop.run_on_store("explain", *expected)
    assert (done.code, done.errors) == (0, "")
    assert told(done.output, "--url", shop.url) == expected
    described = shop.run_on_store("explain", *expected, "--json").json
    reasons = {explanation["reason"] for explanation in described}
    causes.dismiss_workers()
    expected = paragraphs(WITHOUT)
    done = shop.run_with_app("explain", *expected)
    assert (done.code, told(done.output, "--app", "shop:app")) == (0, expected)
    reasons.add(shop.run_on_store("explain", "queued", "--json").json["reason"])  # of one job it is no list
    # they need an application with remote jobs, and a NATS server without room
    assert reasons == set(Reason) - {Reason.NO_REMOTE_WORKER, Reason.NOT_DELIVERED}


def test_every_command_can_be_pasted(
    shop: ShopProgram, causes: JobsByReason, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = WITH_A_WORKER.replace("<WHERE>", f"--url {shop.url}")
    typed = re.findall(r"^  mainspring (?!run )(.*)", text, re.MULTILINE)
    for command in typed:
        monkeypatch.setattr("sys.argv", ["mainspring", *command.split()])
        code = run_cli(commands)
        said = capsys.readouterr().err
        is_late = code == FAILURE and ("is PENDING" in said or "asked to stop" in said)  # retried before; runs
        assert code == 0 or is_late, (command, said)


def test_a_terminal_wraps_words_and_no_commands(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, id="later")
    code, shown = shop.run_on_terminal("explain", "later", "--url", shop.url, columns=60)
    assert code == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert max(len(line) for line in shown.splitlines() if not line.startswith("  ")) <= 60
    assert f"\n  mainspring jobs run-now later --url {shop.url}\n" in shown


def test_ids_that_are_not_there_do_not_keep_others_from_being_explained(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, id="one")
    done = shop.run_on_store("explain", "gone", "one")
    assert (done.code, done.errors.count("\n")) == (FAILURE, 1)
    assert "there is no job 'gone'" in done.errors
    assert done.output.startswith("Job one (shop.cancel_order) is due at ")


def test_a_password_is_not_printed() -> None:
    assert AppSelection(None, "nats://ann:secret@host:4222").options == ("--url", "nats://...@host:4222")
