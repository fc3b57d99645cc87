"""`mainspring schedules` and `mainspring queues`."""

import re

import pytest

from mainspring import Cron
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


def test_queues_are_counted_and_paused(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shop.submit({"order_id": 1}, queue="slow")
    with shop.open() as app:
        app.job(name="shop.later", queue="later")(print)
        app.manager().submit("shop.later", {}, delay=60)
    paused = shop.run_on_store("queues", "pause", "slow", "mail")
    assert (paused.code, paused.output) == (0, "slow paused\nmail paused\n")
    assert paused.errors.startswith("mainspring: queue 'mail' has no jobs, handlers or schedules yet; ")
    found = {queue["name"]: queue for queue in shop.run_on_store("queues", "list", "--json").json["queues"]}
    assert list(found) == ["later", "mail", "orders", "slow"]
    assert (found["slow"]["pending"], found["slow"]["paused"]) == (1, True)
    assert (found["orders"]["failed"], found["orders"]["paused"]) == (1, False)
    assert shop.run_on_store("queues", "list", "orders").output.splitlines()[1].split() == [
        "orders",
        "-",
        "0",
        "0",
        "0",
        "1",
        "0",
    ]
