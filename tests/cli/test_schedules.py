"""`mainspring schedules` and `mainspring queues`."""

import json
import re

import pytest

from mainspring import Cron, Rate
from tests.cli.shop_program import ShopProgram

FAILURE, USAGE = 1, 2
NIGHT = ("schedules", "preview", "30 2 * * *", "--tz", "Europe/Berlin")
SPRING = (*NIGHT, "--from", "2027-03-27T00:00Z", "--count", "2")
AUTUMN = (*NIGHT, "--from", "2027-10-31T00:00Z", "--count", "2")


@pytest.fixture
def scheduled(shop: ShopProgram) -> ShopProgram:
    """A shop with a schedule in its store."""
    with shop.open() as app:
        nightly = app.job(name="shop.nightly_report")(print_nothing)
        app.schedules.put("shop.nightly_report", nightly, Cron("30 2 * * *", tz="Europe/Berlin"))
    return shop


def print_nothing() -> None: ...


def test_a_preview_needs_no_store_and_marks_the_night_with_a_gap(shop: ShopProgram) -> None:
    lines = shop.run(*SPRING).output.splitlines()[1:]
    assert [line.split()[1:4] for line in lines] == [
        ["2027-03-27", "02:30", "+0100"],
        ["2027-03-28", "03:30", "+0200"],
    ]
    assert lines[1].endswith("moved by a DST gap from 02:30")


def test_a_date_that_a_gap_drops_is_shown_as_skipped(shop: ShopProgram) -> None:
    dates = shop.run(*SPRING, "--dst-gap", "skip", "--json").json["dates"]
    assert [(date["utc"], date["skipped"]) for date in dates] == [
        ("2027-03-27T01:30:00Z", False),
        ("2027-03-28T01:30:00Z", True),
        ("2027-03-29T00:30:00Z", False),
    ]
    assert dates[1]["note"] == "skipped: there is no 02:30"
    code, shown = shop.run_on_terminal(*SPRING, "--dst-gap", "skip", columns=80, NO_COLOR="1")
    assert code == 0
    assert re.search(r"\nSun 2027-03-28 - +- +skipped: there is no 02:30\n", shown)


def test_both_times_of_a_fold_are_told_apart(shop: ShopProgram) -> None:
    dates = shop.run(*AUTUMN, "--dst-fold", "both", "--json").json["dates"]
    assert [(date["local"], date["note"]) for date in dates] == [
        ("2027-10-31T02:30:00+02:00", "first of two 02:30"),
        ("2027-10-31T02:30:00+01:00", "second of two 02:30"),
    ]


def test_a_preview_shows_that_a_frequent_rule_does_not_pause_when_clocks_are_set_back(shop: ShopProgram) -> None:
    shown = shop.run(
        *("schedules", "preview", "*/15 * ? * *", "--tz", "Europe/Berlin"),
        *("--from", "2027-10-31T00:30Z", "--count", "4", "--json"),
    ).json
    assert shown["rule"]["expression"] == "*/15 * * * *"
    assert [(date["local"], date["note"]) for date in shown["dates"]] == [
        ("2027-10-31T02:30:00+02:00", "first of two 02:30"),
        ("2027-10-31T02:45:00+02:00", "first of two 02:45"),
        ("2027-10-31T02:00:00+01:00", "second of two 02:00"),
        ("2027-10-31T02:15:00+01:00", "second of two 02:15"),
    ]


@pytest.mark.parametrize("since", ["2027-03-28", "2027-03-28+01:00", "2027-03-27T23:00Z"])
def test_a_preview_begins_with_a_day_of_the_zone_of_its_rule(shop: ShopProgram, since: str) -> None:
    done = shop.run(
        *("schedules", "preview", "0 * * * *", "--tz", "Europe/Berlin", "--from", since, "--count", "1", "--json")
    )
    assert done.json["dates"][0]["local"] == "2027-03-28T00:00:00+01:00"


def test_a_preview_that_begins_at_no_instant_is_wrong_usage(shop: ShopProgram) -> None:
    done = shop.run(*NIGHT, "--from", "2027-03-27+01:00+01:00")
    assert (done.code, "'2027-03-27+01:00+01:00' is no instant; write 2027-" in done.error_line) == (USAGE, True)


def test_a_rule_that_makes_no_sense_is_wrong_usage(shop: ShopProgram) -> None:
    done = shop.run("schedules", "preview", "0 25 * * *")
    assert done.code == USAGE
    assert "hour is '25'" in done.error_line
    done = shop.run("schedules", "preview", "0 2 * *")
    assert (done.code, "the expression has 4 fields; give 5" in done.error_line) == (USAGE, True)
    done = shop.run("schedules", "preview", "0 2 * * *", "--tz", "berlin")
    assert done.code == USAGE
    assert "did you mean 'Europe/Berlin'?" in done.error_line


def test_a_stored_schedule_is_previewed_by_its_short_name(scheduled: ShopProgram) -> None:
    done = scheduled.run_on_store(
        "schedules", "preview", "nightly_report", "--from", "2027-03-28T00:00Z", "--count", "1", "--json"
    )
    assert done.json["rule"]["tz"] == "Europe/Berlin"
    assert done.json["dates"][0]["local"] == "2027-03-28T03:30:00+02:00"
    gone = scheduled.run_on_store("schedules", "preview", "gone")
    assert gone.code == FAILURE
    assert gone.error_line.startswith(
        "mainspring: there is no schedule 'gone'; mainspring schedules list shows all"
    )


def test_schedules_are_listed_paused_and_resumed(scheduled: ShopProgram) -> None:
    assert "30 2 * * * (Europe/Berlin)" in scheduled.run_on_store("schedules", "list").output
    assert scheduled.run_on_store("schedules", "pause", "nightly_report").output == "nightly_report paused\n"
    again = scheduled.run_on_store("schedules", "pause", "nightly_report")
    assert (again.code, again.output) == (0, "nightly_report was paused already\n")
    (stored,) = scheduled.run_on_store("schedules", "list", "--json").json["schedules"]
    assert (stored["name"], stored["paused"]) == ("shop.nightly_report", True)
    done = scheduled.run_on_store("schedules", "resume", "nightly_report", "gone")
    assert (done.code, done.output) == (FAILURE, "nightly_report resumed\n")
    assert "there is no schedule 'gone'" in done.errors


@pytest.mark.parametrize("action", ["list", "pause", "resume"])
def test_a_mistyped_queue_is_answered_with_the_queue_that_was_meant(shop: ShopProgram, action: str) -> None:
    shop.submit({"order_id": 1})
    found = shop.run_on_store("queues", action, "ordes")
    assert (
        found.errors
        == "mainspring: queue 'ordes' has no jobs, handlers or schedules yet; did you mean 'orders'?\n"
    )


def test_a_schedule_is_shown_with_its_policies_and_dates(scheduled: ShopProgram) -> None:
    shown = scheduled.run_on_store("schedules", "show", "nightly_report").output
    lines = dict(line.split(None, 1) for line in shown.splitlines() if not line.startswith(" "))
    assert (lines["name"], lines["rule"]) == ("shop.nightly_report", "30 2 * * * (Europe/Berlin)")
    assert lines["clock"].endswith("a time that does not exist is shifted, the first of two equal times counts")
    assert re.search(
        r"\nnext +\d{4}-\d\d-\d\d \d\d:30:00 UTC \(.+\)\n +\w{3} \d{4}.* \d\d:30:00 \+0[12]00\n", shown
    )
    fields = scheduled.run_on_store("schedules", "show", "nightly_report", "--json").json
    assert (fields["name"], fields["overlap"], fields["rule"]["dst_gap"]) == (
        "shop.nightly_report",
        "skip",
        "shift",
    )
    assert len(fields["upcoming"]) == 5


def test_a_name_that_no_schedule_has_is_answered_with_the_nearest(scheduled: ShopProgram) -> None:
    for command in ("show", "trigger", "history", "pause", "remove"):
        done = scheduled.run_on_store("schedules", command, "nightly_reprot")
        assert done.code == FAILURE
        assert done.error_line == (
            "mainspring: there is no schedule 'nightly_reprot'; did you mean 'shop.nightly_report'?"
        )


def test_a_schedule_is_put_changed_and_removed(shop: ShopProgram) -> None:
    put = ("schedules", "put", "ann", "cancel_order", "order_id=7", "reason=42")
    done = shop.run_with_app(*put, "--cron", "0 8 ? * MON", "--tz", "Asia/Taipei", "--start", "2037-01-01")
    assert (done.code, done.output) == (0, "ann stored: 0 8 * * MON (Asia/Taipei), next 2037-01-05 00:00:00 UTC\n")
    options = ("--every", "90m", "--catch-up", "3", "--overlap", "queue", "--jitter", "30s", "--queue", "slow")
    fields = shop.run(
        *(*put, *options, "--priority", "best-effort", "--end", "2037-01-01T00:00Z", "--json"), "--app", "shop:app"
    )
    changed = json.loads(fields.output)
    assert changed["arguments"] == {"order_id": 7, "reason": "42"}  # a text, as the signature says
    assert (changed["rule"], changed["start"]) == ({"kind": "every", "interval": 5400.0}, None)
    assert (changed["misfire"], changed["catch_up"], changed["overlap"]) == ("catch-up", 3, "queue")
    assert (changed["jitter"], changed["queue"], changed["priority"]) == (30.0, "slow", "BEST_EFFORT")
    assert changed["end"] == "2037-01-01T00:00:00Z"
    assert shop.run_on_store("schedules", "remove", "ann").output == "ann removed\n"
    assert shop.run_on_store("schedules", "list", "--json").json == {"schedules": []}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("order_id=7",), "give either --cron EXPRESSION or --every DURATION"),
        (("order_id=7", "--cron", "@daily", "--every", "5m"), "give either --cron EXPRESSION or --every DURATION"),
        (("order_id=7", "--every", "0"), "--every must be longer than 0 s, got 0 s"),
        (("order_id=7", "--cron", "0 25 * * *"), "hour is '25'"),
        (("order_id=7", "--cron", "@daily", "--tz", "berlin"), "did you mean 'Europe/Berlin'?"),
        (("order_id=seven", "--cron", "@daily"), "parameter 'order_id'"),
        (("--cron", "@daily"), "missing required field `order_id`"),
        (
            ("order_id=7", "--cron", "@daily", "--start", "2037-01-02", "--end", "2037-01-01"),
            "end must not be before",
        ),
        (("order_id=7", "--cron", "@daily", "--overlap", "maybe"), "'maybe'"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_not_put(
    shop: ShopProgram, arguments: tuple[str, ...], named: str
) -> None:
    done = shop.run_with_app("schedules", "put", "ann", "cancel_order", *arguments)
    assert done.code == USAGE
    assert named in done.error_line


def test_a_schedule_needs_a_handler_that_the_application_has(shop: ShopProgram) -> None:
    put = ("schedules", "put", "ann", "cancel_ordr", "--cron", "@daily")
    assert "did you mean 'shop.cancel_order'?" in shop.run_with_app(*put).error_line
    assert "schedules put needs the handlers: give --app" in shop.run_on_store(*put).error_line


def test_a_schedule_that_is_declared_in_code_is_changed_with_a_warning(scheduled: ShopProgram) -> None:
    done = scheduled.run_with_app(
        "schedules", "put", "shop.nightly_report", "nightly_report", "--cron", "0 3 * * *"
    )
    assert (
        done.code,
        "is declared in code: a worker that starts stores that definition again" in done.errors,
    ) == (
        0,
        True,
    )
    done = scheduled.run_with_app("schedules", "remove", "nightly_report", "gone")
    assert (done.code, done.output) == (FAILURE, "nightly_report removed\n")
    assert "nightly_report is declared in code: a worker that starts stores it again" in done.errors
    assert "there is no schedule 'gone'" in done.errors


def test_a_schedule_is_triggered_and_its_history_shows_it(scheduled: ShopProgram) -> None:
    nothing = scheduled.run_on_store("schedules", "history", "nightly_report")
    assert (nothing.code, nothing.output) == (0, "")
    assert "shop.nightly_report has no history yet" in nothing.errors
    first = scheduled.run_on_store("schedules", "trigger", "nightly_report").output.strip()
    refused = scheduled.run_on_store("schedules", "trigger", "nightly_report")
    assert refused.code == FAILURE
    assert refused.error_line == (
        f"mainspring: schedule 'shop.nightly_report' was not triggered: its job {first} has not ended, and "
        f"overlap='skip' allows one at a time; wait for it, or cancel it: mainspring jobs cancel {first}"
    )
    assert scheduled.run_on_store("jobs", "cancel", first).code == 0
    second = scheduled.run_on_store("schedules", "trigger", "nightly_report", "--json").json
    assert second["schedule"] == "shop.nightly_report"
    shown = scheduled.run_on_store("schedules", "history", "nightly_report", "--json").json
    assert shown["schedule"] == "shop.nightly_report"
    assert [(entry["kind"], entry["status"], entry["job_id"]) for entry in shown["history"]] == [
        ("trigger", "PENDING", second["id"]),
        ("skipped", None, None),
        ("trigger", "CANCELED", first),
    ]
    table = scheduled.run_on_store("schedules", "history", "nightly_report", "--limit", "1").output.splitlines()
    assert (table[0].split(), table[1].split()[2:]) == (
        ["AT", "(UTC)", "OUTCOME", "JOB", "NOTE"],
        ["PENDING", second["id"], "triggered", "by", "hand"],
    )


def test_quotas_are_listed_with_their_queues(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    assert "QUOTA" not in shop.run_on_store("queues", "list").output
    with shop.open() as app:
        app.queue("orders", max_depth=1_000, submit_rate=Rate(5, per=60))
        app.job(name="shop.pack", queue="orders")(print)
        app.manager().submit("shop.pack", {})
    (found,) = shop.run_on_store("queues", "list", "orders", "--json").json["queues"]
    assert (found["max_depth"], found["submit_rate"]) == (1_000, {"n": 5, "per": 60.0})
    listed = shop.run_on_store("queues", "list").output
    assert "QUOTA" in listed
    assert "1,000 pending, 5 submits in 60 s" in listed


def test_a_submit_beyond_a_quota_is_an_error_of_the_command(shop: ShopProgram) -> None:
    with shop.open() as app:
        app.queue("orders", max_depth=1)
        app.job(name="shop.pack", queue="orders")(print)
        app.manager().submit("shop.pack", {}, delay=60)
    refused = shop.run_with_app("submit", "shop.cancel_order", "order_id=1")
    assert refused.code != 0
    assert "queue 'orders' has 1 pending job and takes at most 1" in " ".join(refused.errors.split())


def test_queues_are_counted_and_paused(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shop.submit({"order_id": 1}, queue="slow")
    with shop.open() as app:
        app.job(name="shop.later", queue="later")(print)
        app.manager().submit("shop.later", {}, delay=60)
        app.job(name="shop.now", queue="slow")(print)
        app.manager().submit("shop.now", {})
    paused = shop.run_on_store("queues", "pause", "slow", "mail")
    assert (paused.code, paused.output) == (0, "slow paused\nmail paused\n")
    assert paused.errors.startswith("mainspring: queue 'mail' has no jobs, handlers or schedules yet; ")
    found = {queue["name"]: queue for queue in shop.run_on_store("queues", "list", "--json").json["queues"]}
    assert list(found) == ["later", "mail", "orders", "slow"]
    assert (found["slow"]["pending"], found["slow"]["paused"]) == (2, True)
    waiting = {name: (queue["due"], queue["blocked"], queue["scheduled"]) for name, queue in found.items()}
    assert waiting == {"later": (0, 0, 1), "mail": (0, 0, 0), "orders": (0, 0, 0), "slow": (0, 1, 1)}
    assert (found["orders"]["failed"], found["orders"]["paused"]) == (1, False)
    assert shop.run_on_store("queues", "list", "orders").output.splitlines()[1].split() == [
        "orders",
        "-",
        "0",
        "0",
        "0",
        "0",
        "0",
        "1",
        "0",
    ]
