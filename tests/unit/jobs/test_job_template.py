"""What a handler's policies and a submit's options make of a job: keys, buckets, expiry, what follows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import Concurrency, JobFunction, Mainspring, Priority, Rate, Unique
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.policies import ALIVE
from mainspring.jobs.records import FollowUp, NewJob, UniqueKey
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submission import JobTemplate
from mainspring.jobs.timestamps import LAST_INSTANT

NOW = 1_900_000_000_000_000
SECOND = 1_000_000


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


def mail(tenant: str, text: str = "hello") -> None: ...


def template(app: Mainspring, job: JobFunction[..., Any], **given: Any) -> NewJob:
    made = JobTemplate(job.handler, job.chosen, app.limits, NOW)
    return made.job("id", b"{}", given)


def unique_key(app: Mainspring, job: JobFunction[..., Any], **given: Any) -> UniqueKey:
    key = template(app, job, **given).unique
    assert key is not None
    return key


def make(app: Mainspring, function: Callable[..., Any] = mail, **options: Any) -> JobFunction[..., Any]:
    decorate: Any = app.job(name="shop.mail", **options)
    job: JobFunction[..., Any] = decorate(function)
    return job


# -- what is plain


def test_a_job_without_policies_is_plain(app: Mainspring) -> None:
    made = JobTemplate(make(app).handler, make(app).chosen, app.limits, NOW)
    assert not made.needs_arguments
    assert made.job("id", b"{}", {}) == NewJob("id", "shop.mail", "default", 1, NOW, b"{}", "json")
    assert made.jobs(["a", "b"], [b"1", b"2"]) == [
        NewJob("a", "shop.mail", "default", 1, NOW, b"1", "json"),
        NewJob("b", "shop.mail", "default", 1, NOW, b"2", "json"),
    ]


def test_jobs_made_together_are_as_those_made_one_by_one(app: Mainspring) -> None:
    job = make(app).options(sequence="s", expires=5, headers={"user": "42"}, steps_aside=True, then=make(app))
    made = JobTemplate(job.handler, job.chosen, app.limits, NOW)
    assert made.jobs(["a", "b"], [b"1", b"2"]) == [made.job("a", b"1", {}), made.job("b", b"2", {})]
    assert made.jobs(["a"], [b"1"])[0].headers == {"user": "42"}


def test_a_handler_with_options_of_its_own_is_followed_unless_a_submit_says_otherwise(app: Mainspring) -> None:
    job = make(app, queue="mail", priority=Priority.BEST_EFFORT, expires=5, steps_aside=True)
    plain, other = (
        template(app, job.after(10)),
        template(app, job.options(queue="slow", priority=Priority.USER_BLOCKING, expires=7, steps_aside=False)),
    )
    assert (plain.queue, plain.priority, plain.steps_aside) == ("mail", 0, True)
    assert (plain.due, plain.expires) == (NOW + 10 * SECOND, NOW + 15 * SECOND)
    assert (other.queue, other.priority, other.expires, other.steps_aside) == ("slow", 2, NOW + 7 * SECOND, False)


def test_what_expires_after_the_end_of_time_expires_then(app: Mainspring) -> None:
    assert template(app, make(app).options(expires=10**12)).expires == LAST_INSTANT


# -- unique keys


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ("nightly", "shop.mail: nightly"),
        (Unique("nightly"), "shop.mail: nightly"),
        (Unique(by="tenant"), 'shop.mail: tenant="acme"'),
        (Unique(by=("text", "tenant")), 'shop.mail: text="hello", tenant="acme"'),
        (Unique("nightly", by="tenant"), 'shop.mail: nightly: tenant="acme"'),
        (Unique(), 'shop.mail: tenant="acme", text="hello"'),
    ],
    ids=repr,
)
@pytest.mark.parametrize("where", ["handler", "submit"])
def test_a_unique_key_is_made_of_handler_key_and_arguments(
    app: Mainspring, policy: str | Unique, key: str, where: str
) -> None:
    job = make(app, unique=policy) if where == "handler" else make(app).options(unique=policy)
    assert unique_key(app, job, tenant="acme") == UniqueKey(key, ALIVE)


def test_a_submit_overrides_the_unique_policy_of_its_handler(app: Mainspring) -> None:
    job = make(app, unique=Unique(by="tenant")).options(unique="mine")
    assert unique_key(app, job, tenant="acme").key == "shop.mail: mine"


def test_a_default_counts_like_the_same_value_given(app: Mainspring) -> None:
    job = make(app, unique=Unique())
    assert unique_key(app, job, tenant="a") == unique_key(app, job, tenant="a", text="hello")
    assert unique_key(app, job, tenant="a") != unique_key(app, job, tenant="a", text="hello ")


def test_a_unique_policy_is_carried_over(app: Mainspring) -> None:
    debounce = make(app, unique=Unique("k", window=60, on_conflict="replace"))
    assert unique_key(app, debounce) == UniqueKey("shop.mail: k", (JobStatus.PENDING,), 60 * SECOND, replaces=True)


def test_equal_keys_of_two_handlers_are_two_keys(app: Mainspring) -> None:
    def other(tenant: str) -> None: ...

    one, two = make(app, unique="key"), app.job(name="shop.other", unique="key")(other)
    assert unique_key(app, one, tenant="a").key != unique_key(app, two, tenant="a").key


def test_a_long_key_is_cut_to_its_hash_and_stays_one_of_its_kind(app: Mainspring) -> None:
    job = make(app, unique=Unique(by="text"))
    keys = [unique_key(app, job, tenant="a", text="x" * length).key for length in (10_000, 10_001, 10_000)]
    assert keys[0] == keys[2] != keys[1]
    assert all(len(key) <= 200 for key in keys)
    assert keys[0].startswith("shop.mail: ")


# -- sequences


def test_a_sequence_may_be_made_of_arguments(app: Mainspring) -> None:
    job = make(app, sequence_by=("tenant", "text"))
    same = [template(app, job, tenant="a").sequence, template(app, job, tenant="a", text="hello").sequence]
    assert same[0] is not None
    assert same[0] == same[1] != template(app, job, tenant="b").sequence
    assert template(app, job.options(sequence="mine"), tenant="a").sequence == "mine"


def test_a_sequence_of_long_arguments_is_cut_to_its_hash(app: Mainspring) -> None:
    job = make(app, sequence_by="text")
    keys = [
        template(app, job, tenant="a", text="x" * length).sequence or "" for length in (10_000, 10_001, 10_000)
    ]
    assert keys[0] == keys[2] != keys[1]
    assert all(0 < len(key) <= 200 for key in keys)


# -- limits


def test_a_job_has_a_bucket_for_each_limit_of_its_handler_and_its_queue(app: Mainspring) -> None:
    app.queue("mail", concurrency=Concurrency(9), rate=Rate(5, by="tenant"))
    job = make(app, queue="mail", concurrency=Concurrency(2, by=("tenant", "text")), rate=Rate(10, per=60))
    assert template(app, job, tenant="acme").limits == (
        bucket_of("concurrency of handler shop.mail", 'tenant="acme", text="hello"'),
        bucket_of("rate of handler shop.mail"),
        bucket_of("concurrency of queue mail"),
        bucket_of("rate of queue mail", 'tenant="acme"'),
    )


def test_a_job_in_another_queue_has_the_limits_of_that_queue(app: Mainspring) -> None:
    app.queue("mail", concurrency=Concurrency(9))
    app.queue("slow", concurrency=Concurrency(1))
    job = make(app, queue="mail").options(queue="slow")
    assert template(app, job, tenant="a").limits == (bucket_of("concurrency of queue slow"),)


def test_limits_of_a_queue_hold_for_jobs_without_the_parameter_as_one_key(app: Mainspring) -> None:
    app.queue("mail", concurrency=Concurrency(1, by="region"))
    job = make(app, queue="mail")
    assert template(app, job, tenant="a").limits == template(app, job, tenant="b").limits


# -- what follows


def test_a_follow_up_is_described_with_the_options_of_its_variant(app: Mainspring) -> None:
    app.queue("slow", rate=Rate(5))
    follower = make(app, concurrency=Concurrency(2, by="tenant"), expires=9)
    variant = follower.options(queue="slow", delay=60, sequence="s", steps_aside=True)
    assert variant.follow_up() == FollowUp(
        "shop.mail",
        "slow",
        1,
        60 * SECOND,
        "tenant",
        "s",
        True,
        9 * SECOND,
        (("concurrency of handler shop.mail", ("tenant",)), ("rate of queue slow", ())),
    )


def test_a_submit_may_say_what_follows_instead_of_the_handler(app: Mainspring) -> None:
    def other() -> None: ...

    follower = app.job(name="shop.other")(other)
    job = make(app, then=follower)
    own, chosen = (
        template(app, job).follow_up,
        template(app, job.options(then=follower.options(queue="slow"))).follow_up,
    )
    assert own is not None
    assert chosen is not None
    assert (own.type, own.queue, own.argument) == ("shop.other", "default", None)
    assert chosen.queue == "slow"


def test_what_needs_two_arguments_cannot_follow(app: Mainspring) -> None:
    def pair(left: int, right: int) -> None: ...

    follower = app.job(name="shop.pair")(pair)
    with pytest.raises(TypeError, match=r"shop\.pair cannot follow another job: it has 2 parameters without a"):
        template(app, make(app).options(then=follower))


@pytest.mark.parametrize(
    "option",
    [{"id": "x"}, {"unique": "k"}, {"headers": {"a": "b"}}, {"at": datetime(2030, 1, 1, tzinfo=UTC)}],
    ids=repr,
)
def test_options_that_a_follow_up_cannot_have_are_refused_and_not_forgotten(
    app: Mainspring, option: dict[str, Any]
) -> None:
    follower = make(app).options(**option)
    with pytest.raises(ValueError, match=next(iter(option))):
        follower.follow_up()
