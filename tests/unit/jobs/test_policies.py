"""Policies and options: checked when they are made, with errors that name the value and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mainspring import CatchUp, Concurrency, JobFunction, JobStatus, LimitExceeded, Mainspring, Rate, Unique
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.limits import Limit
from mainspring.jobs.policies import names_of

PENDING, RUNNING, COMPLETED, FAILED = (
    JobStatus.PENDING,
    JobStatus.RUNNING,
    JobStatus.COMPLETED,
    JobStatus.FAILED,
)

# -- what they mean


@pytest.mark.parametrize(
    ("policy", "states"),
    [
        (Unique("key"), (PENDING, RUNNING)),
        (Unique("key", window=60), (PENDING, RUNNING, COMPLETED)),
        (Unique("key", states=(FAILED,)), (FAILED,)),
        (Unique("key", window=60, states=(PENDING,)), (PENDING,)),
        (Unique("key", on_conflict="replace"), (PENDING,)),
        (Unique("key", window=60, on_conflict="replace"), (PENDING,)),
        (Unique("key", states=(PENDING,), on_conflict="replace"), (PENDING,)),
        (Unique("key", on_conflict="raise"), (PENDING, RUNNING)),
    ],
    ids=repr,
)
def test_a_unique_policy_says_which_states_are_in_the_way(policy: Unique, states: tuple[JobStatus, ...]) -> None:
    assert policy.conflicting_states == states


def test_states_may_be_given_by_name() -> None:
    states: Any = ["PENDING", "FAILED"]
    assert Unique("key", states=states).states == (PENDING, FAILED)


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (Concurrency(5), Limit(5, None)),
        (Rate(10), Limit(10, 1_000_000)),
        (Rate(10, per=60), Limit(10, 60_000_000)),
        (Rate(1, per=timedelta(milliseconds=1)), Limit(1, 1_000)),
        (Rate(1, per=0.000_000_1), Limit(1, 1)),  # never shorter than what was said
    ],
    ids=repr,
)
def test_a_policy_is_a_limit_in_microseconds(policy: Rate | Concurrency, limit: Limit) -> None:
    assert policy.limit == limit


def test_keys_are_made_of_no_parameter_or_one_or_several() -> None:
    assert [names_of(by) for by in (None, "tenant", ("tenant", "user"))] == [(), ("tenant",), ("tenant", "user")]


# -- what makes no sense

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Unique(""), ValueError, "unique key must be a non-empty printable string, got ''"),
    (lambda: Unique("a\nb"), ValueError, r"unique key must .*got 'a\\nb'"),
    (lambda: Unique("x" * 201), LimitExceeded, "unique key 'xxxx.*use a shorter one"),
    (lambda: Unique(7), TypeError, "unique key must be a string, got 7"),  # type: ignore[arg-type]
    (lambda: Unique("k", window=0), ValueError, "window must be greater than zero, got 0; leave it out"),
    (lambda: Unique("k", window=-1), ValueError, "window must not be negative, got -1"),
    (lambda: Unique("k", window="1 h"), TypeError, "window must be a timedelta or .* got '1 h'"),  # type: ignore[arg-type]
    (lambda: Unique("k", states=()), ValueError, r"states must name at least one status, got \(\); leave it out"),
    (lambda: Unique("k", states=("DONE",)), ValueError, "'DONE'"),  # type: ignore[arg-type]
    (
        lambda: Unique("k", on_conflict="ignore"),  # type: ignore[arg-type]
        ValueError,
        "on_conflict must be 'return', 'replace' or 'raise', got 'ignore'",
    ),
    (
        lambda: Unique("k", states=(RUNNING,), on_conflict="replace"),
        ValueError,
        "can only replace jobs that are PENDING, got states=.*RUNNING.*leave states out",
    ),
    (lambda: Unique(by="no name"), ValueError, "by must name parameters of the handler, got 'no name'"),
    (lambda: Unique(by=("a", 7)), ValueError, "by must name parameters of the handler, got 7"),  # type: ignore[arg-type]
    (lambda: Concurrency(0), ValueError, "n must be a positive number of jobs at once, got 0; the least is 1"),
    (lambda: Concurrency(1.5), TypeError, r"n must be a positive whole number .* got 1\.5"),  # type: ignore[arg-type]
    (lambda: Concurrency(True), TypeError, "n must be a positive whole number .* got True"),
    (lambda: Concurrency(1, by="a b"), ValueError, "by must name parameters of the handler, got 'a b'"),
    (lambda: Rate(-3), ValueError, "n must be a positive number of starts per time, got -3"),
    (lambda: Rate(3, per=0), ValueError, r"per must be greater than zero, got 0; Rate\(10, per=60\)"),
    (lambda: Rate(3, per=float("inf")), ValueError, "per must be a finite number of seconds, got inf"),
    (lambda: Rate(3, per=None), TypeError, "per must be a timedelta or .* got None"),  # type: ignore[arg-type]
    (lambda: Rate(3, by=""), ValueError, "by must name parameters of the handler, got ''"),
    (lambda: CatchUp(0), ValueError, "limit must be a positive number of occurrences, got 0"),
    (lambda: CatchUp("all"), TypeError, "limit must be a positive whole number of occurrences, got 'all'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_a_policy_that_makes_no_sense_is_refused(
    make: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make()


# -- what a handler says


@pytest.mark.parametrize(
    ("option", "kind", "message"),
    [
        ({"queue": ""}, ValueError, "queue must be a non-empty printable string, got ''"),
        ({"priority": 3}, TypeError, r"priority must be a Priority such as Priority\.USER_BLOCKING, got 3"),
        ({"retry": 5}, TypeError, r"retry must be a Retry such as Retry\(max_attempts=3\), got 5"),
        ({"timeout": 0}, ValueError, "timeout must be greater than zero, got 0; leave it out"),
        ({"soft_timeout": -1}, ValueError, "soft_timeout must not be negative, got -1"),
        ({"soft_timeout": 5, "timeout": 5}, ValueError, "soft_timeout must be shorter than timeout, got 5 and 5"),
        ({"expires": 0}, ValueError, "expires must be greater than zero, got 0; leave it out"),
        ({"expires": "soon"}, TypeError, "expires must be a timedelta or a number of seconds, got 'soon'"),
        ({"keep_result": "yes"}, TypeError, "keep_result must be a timedelta or a number of seconds, got 'yes'"),
        ({"keep_result": -5}, ValueError, "keep_result must not be negative, got -5"),
        ({"execution": "fiber"}, ValueError, "execution must be 'thread' or 'process', got 'fiber'"),
        ({"batch": 0}, ValueError, "batch must be a positive number of jobs in one call, got 0"),
        ({"batch": "all"}, TypeError, "batch must be a positive whole number .* got 'all'"),
        ({"unique": 7}, TypeError, r"unique must be a Unique such as Unique\(by='order_id'\), got 7"),
        ({"unique": ""}, ValueError, "unique key must be a non-empty printable string, got ''"),
        ({"rate": 7}, TypeError, r"rate must be a Rate such as Rate\(10, per=60\), got 7"),
        ({"concurrency": 7}, TypeError, r"concurrency must be a Concurrency such as Concurrency\(5, .*got 7"),
        ({"then": "mail"}, TypeError, r"then must be a job function such as other, other\.options.*got 'mail'"),
        ({"aliases": "old"}, TypeError, r"aliases must be a tuple of names such as .*got 'old'"),
        ({"aliases": ("old", "")}, ValueError, "aliases must be a non-empty printable string, got ''"),
        ({"steps_aside": "no"}, TypeError, "steps_aside must be a bool such as True, got 'no'"),
        ({"sequence_by": "a b"}, ValueError, "^sequence_by must name parameters of the handler, got 'a b'"),
        ({"search": "a b"}, ValueError, "^search must name parameters of the handler, got 'a b'"),
        ({"sequence_by": "order"}, ValueError, r"handler 'shop\.mail' has no parameter 'order'"),
    ],
    ids=repr,
)
def test_an_option_of_a_handler_that_makes_no_sense_is_refused(
    option: dict[str, Any], kind: type[Exception], message: str
) -> None:
    app = Mainspring("memory://")
    decorate: Any = app.job
    with pytest.raises(kind, match=message):
        decorate(name="shop.mail", **option)(lambda: None)
    assert "shop.mail" not in app.registry


@pytest.mark.parametrize(
    "option",
    [{"unique": Unique(by="order")}, {"rate": Rate(1, by="order")}, {"concurrency": Concurrency(1, by="order")}],
    ids=repr,
)
def test_a_policy_by_a_parameter_that_a_handler_does_not_have_is_refused(option: dict[str, Any]) -> None:
    app = Mainspring("memory://")

    def mail(tenant: str, text: str = "") -> None: ...

    with pytest.raises(
        ValueError, match=r"handler 'shop\.mail' has no parameter 'order'; its signature is .*tenant"
    ):
        app.job(name="shop.mail", **option)(mail)
    assert "shop.mail" not in app.registry


def test_a_key_alone_is_a_unique_policy() -> None:
    assert HandlerOptions(unique="report").unique == Unique("report")


# -- what a submit says


@pytest.mark.parametrize(
    ("option", "kind", "message"),
    [
        ({"unique": ""}, ValueError, "unique key must be a non-empty printable string, got ''"),
        ({"unique": 7}, TypeError, r"unique must be a Unique such as Unique\(by='order_id'\), got 7"),
        ({"sequence": ""}, ValueError, "sequence must be a non-empty printable string, got ''"),
        ({"sequence": 42}, TypeError, "sequence must be a string, got 42"),
        ({"sequence": "x" * 201}, LimitExceeded, "sequence 'xxx.*use a shorter one"),
        ({"steps_aside": 1}, TypeError, "steps_aside must be a bool such as True, got 1"),
        ({"expires": 0}, ValueError, "expires must be greater than zero, got 0; leave it out"),
        ({"expires": -1}, ValueError, "expires must not be negative, got -1"),
        ({"expires": "soon"}, TypeError, "expires must be a timedelta or a number of seconds, got 'soon'"),
        ({"headers": "user"}, TypeError, r"headers must be a dict of strings such as .*got 'user'"),
        ({"headers": {"user": 42}}, TypeError, r"headers must be a dict of strings .*got \{'user': 42\}"),
        ({"headers": {7: "x"}}, TypeError, r"headers must be a dict of strings .*got \{7: 'x'\}"),
        ({"then": "mail"}, TypeError, r"then must be a job function such as other, other\.options.*got 'mail'"),
        ({"queue": "a\tb"}, ValueError, r"queue must be a non-empty printable string, got 'a\\tb'"),
        ({"priority": 1}, TypeError, r"priority must be a Priority such as Priority\.USER_BLOCKING, got 1"),
    ],
    ids=repr,
)
def test_an_option_of_a_submit_that_makes_no_sense_is_refused_when_it_is_given(
    cancel_order: JobFunction[..., None], option: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        cancel_order.options(**option)


def test_a_unique_policy_by_a_parameter_that_a_handler_does_not_have_stores_nothing(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    with pytest.raises(ValueError, match=r"has no parameter 'tenant'; its signature is .*order_id"):
        cancel_order.options(unique=Unique(by="tenant")).submit(42)
    assert sum(app.counts().values()) == 0
