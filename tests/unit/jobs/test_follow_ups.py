"""Follow-ups: stored in the same step that completes their predecessor, with its result as their argument."""

import asyncio
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mainspring import InvalidArguments, JobStatus, Mainspring, Retry
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.job_policies import PREDECESSOR
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import FollowUp, NewJob, Outcome, OutcomeKind
from mainspring.jobs.serializers import JsonSerializer, MsgpackSerializer
from mainspring.jobs.worker.invoker import HandlerInvoker
from mainspring.testing import TimeTravel, time_travel
from tests.unit.jobs.call_log import START
from tests.unit.jobs.leases import make_lease, make_leased_job

NOW = 1_900_000_000_000_000
SECOND = 1_000_000
PLAN = FollowUp("shop.next", "mail", 2, argument="order")


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


@pytest.fixture
def invoker(registry: HandlerRegistry) -> HandlerInvoker:
    return HandlerInvoker(
        JsonSerializer(), lambda: NOW, max_result=1_000, new_id=lambda: "new-id", registry=registry
    )


def complete(invoker: HandlerInvoker, value: Any, plan: FollowUp = PLAN, **options: Any) -> Outcome:
    lease = replace(make_lease(), follow_up=plan, headers={"user": "42"})
    return invoker.invoke(make_leased_job(lambda: value, lease, **options))


def follow_up(invoker: HandlerInvoker, value: Any, plan: FollowUp = PLAN, **options: Any) -> NewJob:
    made = complete(invoker, value, plan, **options).follow_up
    assert made is not None
    return made


# -- what is made


def test_a_follow_up_gets_the_result_as_its_argument(invoker: HandlerInvoker) -> None:
    outcome = complete(invoker, {"total": 3})
    made = outcome.follow_up
    assert (outcome.kind, outcome.result) == (OutcomeKind.COMPLETED, b'{"total":3}')
    headers = {"user": "42", PREDECESSOR: outcome.lease.id}
    assert made == NewJob("new-id", "shop.next", "mail", 2, NOW, b'{"order":{"total":3}}', "json", headers=headers)


def test_a_job_without_a_follow_up_has_none(invoker: HandlerInvoker) -> None:
    assert invoker.invoke(make_leased_job(lambda: 7)).follow_up is None


def test_a_follow_up_of_a_handler_that_returns_nothing_gets_null(invoker: HandlerInvoker) -> None:
    outcome = complete(invoker, None)
    assert outcome.result is None
    assert outcome.follow_up is not None
    assert outcome.follow_up.payload == b'{"order":null}'


def test_a_result_that_is_not_kept_is_passed_on_all_the_same(invoker: HandlerInvoker) -> None:
    outcome = complete(invoker, 7, keep_result=False)
    assert outcome.result is None
    assert outcome.follow_up is not None
    assert outcome.follow_up.payload == b'{"order":7}'


def test_a_follow_up_that_takes_nothing_gets_nothing(invoker: HandlerInvoker) -> None:
    plan = FollowUp("shop.next", "mail", 2)
    assert follow_up(invoker, 7, plan).payload == b"{}"
    assert follow_up(invoker, object(), plan, keep_result=False).payload == b"{}"


def test_a_result_that_cannot_be_passed_on_is_a_dead_letter_without_a_follow_up(invoker: HandlerInvoker) -> None:
    outcome = complete(invoker, object(), keep_result=False)
    assert (outcome.kind, outcome.follow_up) == (OutcomeKind.FAILED, None)


def test_a_follow_up_is_encoded_as_its_predecessor_was() -> None:
    invoker = HandlerInvoker(MsgpackSerializer(), lambda: NOW, max_result=1_000)
    lease = replace(make_lease(b"\x80", codec="msgpack"), follow_up=PLAN)
    made = invoker.invoke(make_leased_job(lambda: b"\x00\xff", lease)).follow_up
    assert made is not None
    assert (made.codec, msgspec.msgpack.decode(made.payload)) == ("msgpack", {"order": b"\x00\xff"})


def test_when_and_how_it_runs_comes_from_the_plan(invoker: HandlerInvoker) -> None:
    plan = replace(PLAN, delay=60 * SECOND, expires=5 * SECOND, sequence="order-42", steps_aside=True)
    made = follow_up(invoker, 7, plan)
    assert (made.due, made.expires) == (NOW + 60 * SECOND, NOW + 65 * SECOND)
    assert (made.sequence, made.steps_aside) == ("order-42", True)


def test_no_follow_up_comes_of_an_attempt_that_fails(invoker: HandlerInvoker) -> None:
    def fail() -> None:
        raise ValueError("no")

    outcome = invoker.invoke(make_leased_job(fail, replace(make_lease(), follow_up=PLAN)))
    assert (outcome.kind, outcome.follow_up) == (OutcomeKind.RETRY, None)


# -- its limits


@pytest.mark.parametrize("value", [7, "a", {"b": 1, "a": [None, 1.5]}], ids=repr)
def test_a_limit_by_the_argument_has_the_bucket_of_a_submit_with_that_argument(
    invoker: HandlerInvoker, registry: HandlerRegistry, value: Any
) -> None:
    def handler(order: Any, tenant: str = "acme") -> None: ...

    known = Handler("shop.next", handler, HandlerOptions(), JsonSerializer())
    plan = replace(PLAN, limits=(("all", ()), ("by order", ("order",)), ("by tenant", ("tenant", "order"))))
    unknown_here = follow_up(invoker, value, plan).limits[:2]
    registry.add(known)
    expected = (
        bucket_of("all"),
        bucket_of("by order", known.arguments.key({"order": value}, ("order",))),
        bucket_of("by tenant", known.arguments.key({"order": value}, ("tenant", "order"))),
    )
    assert follow_up(invoker, value, plan).limits == expected
    assert unknown_here == expected[:2]


# -- how long a result is kept


def test_a_result_may_be_kept_for_a_time(invoker: HandlerInvoker) -> None:
    outcome = invoker.invoke(make_leased_job(lambda: 7, keep_result=60))
    assert (outcome.result, outcome.keep_result_until) == (b"7", NOW + 60 * SECOND)


def test_a_result_that_is_kept_with_its_job_has_no_end(invoker: HandlerInvoker) -> None:
    assert invoker.invoke(make_leased_job(lambda: 7)).keep_result_until is None


def test_nothing_is_not_kept_for_a_time(invoker: HandlerInvoker) -> None:
    assert invoker.invoke(make_leased_job(lambda: None, keep_result=60)).keep_result_until is None


# -- on real engines


def test_one_job_follows_the_other_down_the_line(app: Mainspring, travel: TimeTravel) -> None:
    seen: list[tuple[str, int]] = []

    @app.job
    def pack(parcel: int) -> None:
        seen.append(("pack", parcel))

    @app.job(then=pack)
    async def pay(order: int) -> int:
        await asyncio.sleep(0)
        seen.append(("pay", order))
        return order * 10

    pay.submit(4)
    travel.settle()
    assert seen == [("pay", 4), ("pack", 40)]


def test_a_follow_up_comes_after_the_attempt_that_succeeds(app: Mainspring, travel: TimeTravel) -> None:
    attempts: list[int] = []

    @app.job
    def after(result: int) -> None: ...

    @app.job(then=after.options(delay=60), retry=Retry(base=1, jitter=0))
    def shaky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError("no")
        return 7

    shaky.submit()
    travel.fast_forward(30)
    before = app.counts()
    travel.fast_forward(60)
    assert len(attempts) == 3
    assert (before[JobStatus.PENDING], before[JobStatus.COMPLETED]) == (1, 1)
    assert app.counts()[JobStatus.COMPLETED] == 2


# -- with arguments of its own


def test_a_follow_up_gets_its_bound_arguments_beside_the_result(app: Mainspring, travel: TimeTravel) -> None:
    seen: list[tuple[int, str, date]] = []

    @app.job
    def notify(total: int, channel: str, day: date) -> None:
        seen.append((total, channel, day))

    @app.job(then=notify.bind(channel="mail", day=date(2026, 3, 1)))
    def pay(order: int) -> int:
        return order * 10

    pay.submit(4)
    pay.options(then=notify.options(delay=60).bind(channel="text", day=date(2026, 3, 2))).submit(5)
    travel.settle()
    assert seen == [(40, "mail", date(2026, 3, 1))]
    travel.fast_forward(60)
    assert seen[1:] == [(50, "text", date(2026, 3, 2))]


def test_the_result_goes_to_the_first_parameter_that_is_not_bound(app: Mainspring, travel: TimeTravel) -> None:
    seen: list[tuple[str, int]] = []

    @app.job
    def notify(channel: str, total: int) -> None:
        seen.append((channel, total))

    @app.job(name="pay", then=notify.bind(channel="mail"))
    def pay() -> int:
        return 7

    @app.job(name="close", then=notify.bind(channel="mail", total=0))
    def close() -> object:
        return 8

    pay.submit()
    close.submit()
    travel.settle()
    assert sorted(seen) == [("mail", 0), ("mail", 7)]


def test_bound_arguments_keep_their_types_in_every_encoding(url: str) -> None:
    seen: list[tuple[bytes, Decimal]] = []
    with Mainspring(url, serializer="msgpack") as app:

        @app.job
        def notify(total: Decimal, key: bytes) -> None:
            seen.append((key, total))

        @app.job(then=notify.bind(key=b"\x00\xff"))
        def pay() -> Decimal:
            return Decimal("1.50")

        with time_travel(app, start=START) as travel:
            pay.submit()
            travel.settle()
    assert seen == [(b"\x00\xff", Decimal("1.50"))]


def test_bound_arguments_are_converted_to_the_encoding_of_the_job_before(invoker: HandlerInvoker) -> None:
    plan = replace(PLAN, bound=msgspec.msgpack.encode({"channel": "mail"}), codec="msgpack")
    assert msgspec.json.decode(follow_up(invoker, 7, plan).payload) == {"order": 7, "channel": "mail"}


def test_a_limit_by_a_bound_argument_has_the_bucket_of_a_submit_with_it(
    invoker: HandlerInvoker, registry: HandlerRegistry
) -> None:
    def handler(order: int, tenant: str) -> None: ...

    known = Handler("shop.next", handler, HandlerOptions(), JsonSerializer())
    registry.add(known)
    plan = replace(PLAN, limits=(("by tenant", ("tenant", "order")),), bound=b'{"tenant":"acme"}')
    key = known.arguments.key({"order": 7, "tenant": "acme"}, ("tenant", "order"))
    assert follow_up(invoker, 7, plan).limits == (bucket_of("by tenant", key),)


def test_a_bound_argument_that_does_not_fit_is_refused_where_it_is_bound(app: Mainspring) -> None:
    @app.job
    def notify(total: int, channel: str, **more: int) -> None: ...

    with pytest.raises(InvalidArguments, match="chanel"):
        notify.bind(chanel="mail")
    with pytest.raises(InvalidArguments, match="channel"):
        notify.bind(channel=5)
    with pytest.raises(InvalidArguments, match="more"):
        notify.bind(more=5)
    with pytest.raises(TypeError, match=r"2 parameters without a default.*pass the others with bind"):
        notify.follow_up()
    assert repr(notify.bind(channel="mail")) == f"<BoundFollowUp {notify.name} with channel>"
