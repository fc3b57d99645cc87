"""Redacted parameters: their values reach the handler, and appear nowhere else."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import apsw
import pytest

from mainspring import (
    Cancel,
    Concurrency,
    InvalidArguments,
    JobFailed,
    JobStatus,
    Mainspring,
    Rate,
    Retry,
    Unique,
    current_job,
)
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.schema import MIGRATIONS
from mainspring.jobs.commands import DropRedaction, PutRedaction
from mainspring.jobs.event_stream import JobEvent
from mainspring.jobs.recurrence.rules import Every
from mainspring.testing import assert_submitted, inline
from tests.blank_stores import make_blank_store
from tests.redacted_shop import (
    NUMBER,
    REDACTED,
    SECRETS,
    TEXT,
    RedactedShop,
    describe_log,
    find_canaries,
    with_locals,
)
from tests.support import PATIENCE, Background, eventually

pytestmark = pytest.mark.long

SECRET = "canary-4111"
ONCE = Retry(max_attempts=1)


class SeenEvents:
    """The events of an application, recorded by a thread from now on."""

    def __init__(self, app: Mainspring) -> None:
        self._stream = app.events()
        self._seen: list[JobEvent] = []
        self._thread = Background(lambda: self._seen.extend(self._stream))

    def end(self, failed: list[str]) -> list[str]:
        """Wait until these jobs have failed; return all events."""
        assert eventually(lambda: {*failed} <= {each.job_id for each in self._seen if each.kind == "failed"})
        self._stream.stop()
        self._thread.result()
        return [*map(repr, self._seen)]


# -- everything at once


def test_secrets_appear_nowhere(app: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shop = RedactedShop(app)
    seen = SeenEvents(app)
    with app.running():
        ids = shop.submit_all()
        for job_id in ids:
            assert app.handle(job_id).wait(PATIENCE) is JobStatus.FAILED
        replayed = app.dead_letters.replay("charge", changes={"order": 7})
        app.dead_letters.edit("charge_in_child", {"order": 8, "token": "canary-edited"})
        replayed += app.dead_letters.replay("charge_in_child")
        for job_id in replayed:
            assert app.handle(job_id).wait(PATIENCE) is JobStatus.FAILED
        assert eventually(lambda: len(shop.letters) == len(ids) + len(replayed))
        events = seen.end([*ids, *replayed])
    shown = [*shop.shown([*ids, *replayed]), *events, *describe_log(caplog.records)]
    assert len(shown) > 100
    assert find_canaries(iter(shown)) == []
    assert all("ValueError" in text or "KeyError" in text for text in shop.middleware.seen)
    assert {end.error_type for end in shop.middleware.ends if end.job.type != "alert"} == {"ValueError"}
    error = app.get("charge").error or ""
    assert error.startswith(f"ValueError: order 0: {REDACTED}, {REDACTED}, {REDACTED}, {REDACTED}, {REDACTED}, ")
    assert f"caused by: KeyError: '{REDACTED}'" in error
    assert f"  note: {REDACTED}, {REDACTED}" in error
    progress = app.get("charge").progress
    assert progress is not None
    assert progress.note == f"charging {REDACTED} with {REDACTED}"


def test_handlers_get_the_values_through_retries_edits_and_replays(app: Mainspring) -> None:
    got: list[Any] = []

    @app.job(name="pay", redact=("card", "data"), retry=Retry(max_attempts=2, base=0))
    def pay(card: str, data: dict[str, int], order: int = 1) -> None:
        got.append((card, data, order))
        raise ValueError

    with app.running():
        job_id = pay.submit(SECRET, {"a": 1}).id
        app.handle(job_id).wait(PATIENCE)
        app.dead_letters.edit(job_id, {"order": 2, "card": REDACTED})  # as a client sends back what it was shown
        (second,) = app.dead_letters.replay(job_id)
        app.handle(second).wait(PATIENCE)
        app.dead_letters.edit(second, {"card": "another"})
        app.retry(second)
        app.handle(second).wait(PATIENCE)
    values = {"a": 1}
    assert got == [(SECRET, values, 1)] * 2 + [(SECRET, values, 2)] * 2 + [("another", values, 2)] * 2
    assert app.get(second).arguments == {"card": REDACTED, "data": REDACTED, "order": 2}


# -- processes without the handler


def test_a_process_without_the_handler_redacts_as_well(tmp_path: Path) -> None:
    url = f"sqlite:///{make_blank_store(tmp_path / 'jobs.db')}"
    with Mainspring(url) as app:

        @app.job(name="pay", redact="card", aliases=("charge",))
        def pay(card: str, order: int) -> None: ...

        app.schedules.put("hourly", pay, Every(timedelta(hours=1)), arguments=(SECRET, 1))
        job_id = pay.submit(SECRET, 2).id
    with Mainspring(url) as reader:
        assert reader.get(job_id).arguments == {"card": REDACTED, "order": 2}
        assert reader.schedules.get("hourly").arguments == {"card": REDACTED, "order": 1}
        (schedule,) = reader.schedules.list()
        assert SECRET not in repr((schedule, schedule.record))
        assert list(reader.jobs(text=SECRET)) == list(reader.jobs(text="4111")) == []
        assert [job.id for job in reader.jobs(arguments={"order": 2})] == [job_id]
        with pytest.raises(
            ValueError, match="jobs cannot be found by 'card', because the job type 'charge' redacts"
        ) as error:
            reader.jobs(arguments={"card": SECRET})
        assert SECRET not in str(error.value)
        with pytest.raises(ValueError, match="because the job type 'pay' redacts this parameter"):
            reader.jobs(arguments={"card": SECRET}, type="pay")
        assert list(reader.jobs(arguments={"card": SECRET}, type="other")) == []


def test_jobs_from_before_the_option_are_redacted_with_all_their_texts(app: Mainspring) -> None:
    @app.job(name="pay", unique=Unique(by="card"), retry=ONCE)
    def pay(card: str) -> None:
        raise ValueError(card)

    with app.running():
        job = pay.options(headers={"about": f"card {SECRET}"}, sequence=f"of {SECRET}").submit(SECRET)
        job.wait(PATIENCE)
    assert SECRET in repr(app.get(job.id))
    (is_new,) = app.manager().arrange([PutRedaction("pay", ("card",))])
    assert is_new
    assert SECRET not in repr((app.get(job.id), app.jobs(), app.explain(job.id)))
    assert list(app.jobs(text=SECRET)) == []
    with pytest.raises(JobFailed, match=r"ValueError: \[redacted\]") as failed:
        job.result(PATIENCE)
    assert SECRET not in with_locals(failed.value)


def test_a_type_is_shown_again_only_on_request(app: Mainspring) -> None:
    def pay(card: str) -> None: ...

    job_id = app.job(name="pay", redact="card")(pay).submit("4111").id
    with pytest.raises(ValueError, match="the handler 'pay' in this process has redact="):
        app.remove_redaction("pay")
    app.job(name="pay")(pay)
    assert app.get(job_id).arguments == {"card": REDACTED}
    assert app.remove_redaction("pay")
    assert app.get(job_id).arguments == {"card": "4111"}
    assert not app.remove_redaction("pay")


def test_names_are_stored_by_a_worker_and_before_the_first_submit(app: Mainspring) -> None:
    app.job(name="one", redact="card")(lambda card: None)
    assert app.manager().engine.redactions() == {}
    with app.running():
        assert app.manager().engine.redactions() == {"one": ("card",)}
    app.job(name="two", redact=("pin", "card"), aliases=("old",))(lambda card, pin: None).submit_many([(1, 2)])
    stored = {"one": ("card",), "two": ("card", "pin"), "old": ("card", "pin")}
    assert app.manager().engine.redactions() == stored
    app.manager().arrange([DropRedaction("two")])
    app.job(name="three")(lambda: None).submit()
    assert "two" not in app.manager().engine.redactions()  # they are stored once by each process


def test_names_are_stored_before_the_first_asynchronous_submit(app: Mainspring) -> None:
    pay = app.job(name="pay", redact="card")(lambda card: None)
    job = asyncio.run(pay.submit_async(SECRET))
    assert app.manager().engine.redactions() == {"pay": ("card",)}
    assert job.info().arguments == {"card": REDACTED}


# -- the option


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"search": "card"}, "search="),
        ({"sequence_by": ("order", "card")}, "sequence_by="),
        ({"rate": Rate(1, by="card")}, "rate="),
        ({"concurrency": Concurrency(1, by=("card",))}, "concurrency="),
        ({"unique": Unique(by="card")}, "unique="),
        ({"unique": Unique()}, "unique="),
    ],
)
def test_a_redacted_parameter_makes_no_key(app: Mainspring, options: dict[str, Any], where: str) -> None:
    def pay(card: str, order: int = 1) -> None: ...

    with pytest.raises(ValueError, match=f"'pay' redacts the parameter 'card', and {where} would show its value"):
        app.job(name="pay", redact="card", **options)(pay)


def test_keys_of_other_parameters_and_own_keys_are_allowed(app: Mainspring) -> None:
    @app.job(
        name="pay",
        redact="card",
        search="order",
        sequence_by="order",
        unique=Unique("key", by="order"),
        rate=Rate(1, by="order"),
    )
    def pay(card: str, order: int = 1) -> None: ...

    job_id = pay.submit(SECRET).id
    assert pay.options(unique="own").submit(SECRET).id != job_id
    for unique in (Unique(by="card"), Unique()):
        with pytest.raises(ValueError, match="unique= would show its value"):
            pay.options(unique=unique)
        with pytest.raises(ValueError, match="unique= would show its value"):
            app.manager().submit("pay", (SECRET,), unique=unique)


def test_a_limit_of_a_queue_cannot_be_by_a_redacted_parameter(app: Mainspring) -> None:
    app.queue("orders", concurrency=Concurrency(1, by="card"))
    pay = app.job(name="pay", redact="card", queue="orders")(lambda card: None)
    with pytest.raises(ValueError, match="the concurrency of queue orders would show its value"):
        pay.submit(SECRET)


def test_an_unknown_parameter_is_refused_with_a_similar_name(app: Mainspring) -> None:
    with pytest.raises(ValueError, match=r"handler 'pay' has no parameter 'crad'; did you mean 'card'\?"):
        app.job(name="pay", redact=("crad",))(lambda card: None)
    with pytest.raises(ValueError, match="redact must name parameters of the handler, got 'a b'"):
        app.job(name="pay", redact=("a b",))(lambda card: None)


# -- errors of submits


class Kind(Enum):
    VISA = "visa"


@dataclass
class Checked:
    number: str

    def __post_init__(self) -> None:
        if "bad" in self.number:
            raise ValueError(f"{self.number} is wrong")


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (int, SECRET, "Expected `int`, got `str`"),
        (Kind, SECRET, "its value, which is redacted, does not match the signature"),
        (list[Kind], [SECRET], "its value, which is redacted, does not match the signature"),
        (Checked, {"number": f"bad {SECRET}"}, "its value, which is redacted, does not match the signature"),
        (Any, {"key": {SECRET}}, "no annotation covers a set in it"),
        (Any, {SECRET: object()}, "its value, which is redacted, does not match the signature"),
        (str, REDACTED, r"it is '\[redacted\]', the text that lists show instead of its value"),
    ],
)
def test_an_error_of_a_submit_does_not_show_the_value(
    app: Mainspring, annotation: Any, value: Any, problem: str
) -> None:
    def pay(card: Any, order: int = 1) -> None: ...

    pay.__annotations__["card"] = annotation
    job = app.job(name="pay", redact="card")(pay)
    calls = (
        lambda: job.submit(value),
        lambda: job.submit_many([(value,)]),
        lambda: job.bind(card=value),
        lambda: app.schedules.put("hourly", job, Every(timedelta(hours=1)), arguments=(value,)),
    )
    for call in calls:
        with pytest.raises(InvalidArguments, match=problem) as refused:
            call()
        error: BaseException | None = refused.value
        while error is not None:
            assert SECRET not in str(error)
            error = error.__cause__ or error.__context__


def test_errors_about_other_parameters_are_as_before(app: Mainspring) -> None:
    @app.job(name="pay", redact="card")
    def pay(card: str, order: int) -> None: ...

    with pytest.raises(InvalidArguments, match=r"parameter 'order': Expected `int`, got `str` \('x'\)"):
        pay.submit(SECRET, "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="missing required field `card`"):
        app.manager().submit("pay", {"order": 1})
    with pytest.raises(InvalidArguments, match="got a str;"):
        pay.submit_many([SECRET])  # type: ignore[list-item]


def test_stored_arguments_that_do_not_fit_any_more_are_not_shown(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    def pay(card: str) -> None: ...

    job = app.job(name="pay", redact="card")(pay).submit(SECRET)
    pay.__annotations__["card"] = Kind
    app.job(name="pay", redact="card")(pay)
    with app.running():
        assert job.wait(PATIENCE) is JobStatus.FAILED
    error = app.get(job.id).error
    assert error == (
        "InvalidArguments: pay, parameter 'card': its value, which is redacted, does not match the signature; "
        "pass a value that matches the signature"
    )
    assert find_canaries(describe_log(caplog.records)) == []


# -- attempts that end in other ways


def test_reasons_warnings_and_results_that_cannot_be_stored_are_masked(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(name="cancel", redact="card")
    def cancel(card: str) -> None:
        raise Cancel(f"no {card}")

    @app.job(name="later", redact="card", retry=Retry(max_attempts=2, base=0))
    def later(card: str) -> None:
        raise Retry.Later(0)

    @app.job(name="warn", redact="card")
    def warn(card: str) -> int:
        return card  # type: ignore[return-value]

    @app.job(name="refuse", redact="card")
    def refuse(card: str) -> object:
        return {card: object()}

    jobs = [each.submit(SECRET) for each in (cancel, later, warn, refuse)]
    with app.running():
        statuses = [job.wait(PATIENCE) for job in jobs]
    canceled, failed, completed = JobStatus.CANCELED, JobStatus.FAILED, JobStatus.COMPLETED
    assert statuses == [canceled, failed, completed, failed]
    infos = [job.info() for job in jobs]
    assert infos[0].error == f"no {REDACTED}"
    assert infos[2].result == SECRET  # results are not redacted
    shown = [f"{info.error} {info.warning} {info.history}" for info in infos]
    assert find_canaries(iter([*shown, *describe_log(caplog.records)])) == []


def test_the_retry_policy_sees_the_class_of_the_exception(app: Mainspring) -> None:
    class Declined(Exception): ...

    @app.job(name="pay", redact="card", retry=Retry(max_attempts=5, base=0, give_up_on=(Declined,)))
    def pay(card: str) -> None:
        raise Declined(card) if current_job().attempt == 2 else OSError(card)

    with app.running():
        assert pay.submit(SECRET).wait(PATIENCE) is JobStatus.FAILED
    (info,) = app.jobs()
    assert [attempt.error.partition("\n")[0] for attempt in info.history] == [
        f"OSError: {REDACTED}",
        f"Declined: {REDACTED}",
    ]


def test_a_coroutine_that_times_out_ends_as_without_the_option(app: Mainspring) -> None:
    @app.job(name="pay", redact="card", timeout=0.01, retry=ONCE)
    async def pay(card: str) -> None:
        await asyncio.Event().wait()

    with app.running():
        assert pay.submit(SECRET).wait(PATIENCE) is JobStatus.FAILED
    (info,) = app.jobs()
    assert info.timeouts == 1
    assert (info.error or "").startswith("timeout after 0.01 s: CancelledError")


def test_a_follow_up_redacts_its_own_parameters(app: Mainspring) -> None:
    @app.job(name="notify", redact=("card", "channel"))
    def notify(card: str, channel: str) -> None: ...

    @app.job(name="first", then=notify.bind(channel=TEXT))
    def first() -> str:
        return SECRET

    with app.running():
        first.submit().wait(PATIENCE)
        (follow_up,) = app.jobs(type="notify")
        app.handle(follow_up.id).wait(PATIENCE)
    assert app.get(follow_up.id).arguments == {"card": REDACTED, "channel": REDACTED}
    assert find_canaries(iter([repr(job.error) for job in app.jobs()])) == []


def test_tests_of_an_application_still_compare_the_values(app: Mainspring) -> None:
    @app.job(name="pay", redact=tuple(SECRETS))
    def pay(token: str, data: Any, number: int, price: Any, card: Any) -> None: ...

    with inline(app):
        pay.submit(TEXT, {}, NUMBER, 1, 1)
        assert_submitted(pay, TEXT, {}, NUMBER, 1, 1)
        with pytest.raises(AssertionError):
            assert_submitted(pay, "other", {}, NUMBER, 1, 1)


def test_a_file_of_the_version_before_has_no_redacted_parameters(tmp_path: Path) -> None:
    path = make_blank_store(tmp_path / "jobs.db")
    connection = apsw.Connection(str(path))
    before = next(number for number, text in enumerate(MIGRATIONS) if "redacted_parameters" in text)
    connection.execute("DROP TABLE redacted_parameters")
    for column in ("signature", "maker"):
        connection.execute(f"ALTER TABLE schedules DROP COLUMN {column}")
    for table in ("spent_envelopes", "callback_pauses"):
        connection.execute(f"DROP TABLE {table}")
    for column in ("remote", "slots", "version"):
        connection.execute(f"ALTER TABLE workers DROP COLUMN {column}")
    connection.pragma("user_version", before)
    connection.close()
    engine = SqliteEngine(path)
    engine.open(lambda: None)
    assert engine.redactions() == {}
    assert engine.arrange([PutRedaction("pay", ("card",))]) == [True]
    engine.close()
