"""`mainspring audit`: each command that changes the store leaves an entry with the user who called it."""

from __future__ import annotations

import os
import pwd
import socket
from typing import Any

import pytest

from mainspring import acting_as
from tests.cli.shop_program import ShopProgram

USAGE = 2
USER = f"{pwd.getpwuid(os.geteuid()).pw_name}@{socket.gethostname()}"
TYPE = "shop.cancel_order"


def entries(shop: ShopProgram, *options: str) -> list[dict[str, Any]]:
    """Return the entries that the command lists, the latest first."""
    found: list[dict[str, Any]] = shop.run_on_store("audit", "--json", *options).json["entries"]
    return found


def _report() -> None: ...


@pytest.fixture
def orders(shop: ShopProgram) -> ShopProgram:
    """A shop with two pending jobs, two dead letters and a schedule."""
    shop.submit({"order_id": 1}, id="job-1")
    shop.submit({"order_id": 2}, id="job-2")
    shop.make_dead_letters("dead-1", "dead-2")
    with shop.open() as app:
        app.schedules.put("nightly", app.job(name="report", queue="reports")(_report), "0 2 * * *")
    return shop


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("jobs cancel job-1", {"action": "job.cancel", "target": "job-1", "queues": ["orders"]}),
        ("jobs run-now job-1", {"action": "job.run_now", "target": "job-1", "types": [TYPE]}),
        ("jobs retry dead-1", {"action": "job.retry", "target": "dead-1", "queues": ["orders"]}),
        ("jobs reschedule job-1 --at 2900-01-01", {"action": "job.reschedule", "target": "job-1"}),
        (
            "jobs cancel --queue orders --argument order_id=2 --text 2 --status pending --yes",
            {
                "action": "job.cancel",
                "target": "job-2",
                "details": {"status": "pending", "queue": "orders", "arguments": ["order_id"], "text": True},
            },
        ),
        (
            "jobs cancel --type shop.cancel_order --yes",
            {
                "action": "job.cancel",
                "target": None,
                "count": 2,
                "jobs": ["job-1", "job-2"],
                "details": {"type": TYPE},
            },
        ),
        ("dlq replay dead-1", {"action": "dead_letter.replay", "target": "dead-1", "details": {}}),
        (
            "dlq replay --all --rate 5 --set order_id=77",
            {
                "action": "dead_letter.replay",
                "target": None,
                "count": 2,
                "details": {"all": True, "rate": 5.0, "changed": ["order_id"]},
            },
        ),
        (
            "dlq purge --type shop.cancel_order --yes",
            {"action": "dead_letter.purge", "count": 2, "jobs": ["dead-1", "dead-2"], "details": {"type": TYPE}},
        ),
        ("dlq purge dead-2 --yes", {"action": "dead_letter.purge", "target": "dead-2", "count": 1}),
        ("queues pause orders", {"action": "queue.pause", "target": "orders", "queues": ["orders"]}),
        ("schedules pause nightly", {"action": "schedule.pause", "target": "nightly", "queues": ["reports"]}),
        ("schedules trigger nightly", {"action": "schedule.trigger", "target": "nightly", "types": ["report"]}),
        ("schedules remove nightly", {"action": "schedule.remove", "target": "nightly", "types": ["report"]}),
        (
            "schedules put weekly cancel_order order_id=1 --cron @weekly",
            {"action": "schedule.put", "target": "weekly", "types": [TYPE], "queues": ["orders"]},
        ),
        ("tokens create front --scope read", {"action": "token.create", "target": "front", "types": None}),
    ],
)
def test_a_command_that_changes_something_leaves_one_entry(
    orders: ShopProgram, command: str, expected: dict[str, Any]
) -> None:
    assert orders.run_with_app(*command.split()).code == 0
    (entry,) = entries(orders)
    assert entry == entry | expected
    assert (entry["actor"], entry["source"], entry["token"], entry["request_id"]) == (USER, "cli", None, None)


def test_what_was_done_can_be_undone_and_both_are_recorded(orders: ShopProgram) -> None:
    for command in (
        "queues pause orders",
        "queues resume orders",
        "schedules pause nightly",
        "schedules resume nightly",
        "tokens create front --scope read",
        "tokens revoke front",
    ):
        assert orders.run_with_app(*command.split()).code == 0
    assert [entry["action"] for entry in reversed(entries(orders))] == [
        "queue.pause",
        "queue.resume",
        "schedule.pause",
        "schedule.resume",
        "token.create",
        "token.revoke",
    ]


@pytest.mark.parametrize(
    "command",
    [
        "jobs list",
        "jobs cancel dead-1",
        "jobs cancel --type shop.cancel_order --dry-run",
        "jobs retry job-1",
        "dlq replay --all --dry-run",
        "dlq purge --all --dry-run",
        "queues resume orders",
        "schedules resume nightly",
        "schedules remove unknown",
        "submit cancel_order order_id=3",
        "audit",
    ],
)
def test_a_command_that_changes_nothing_and_a_submit_leave_no_entry(orders: ShopProgram, command: str) -> None:
    orders.run_with_app(*command.split())
    assert entries(orders) == []


def test_a_variable_does_not_change_the_name_and_sudo_adds_one(orders: ShopProgram) -> None:
    command = ("queues", "pause", "orders", "--url", orders.url)
    assert orders.run(*command, USER="mallory", LOGNAME="mallory", SUDO_USER="alice").code == 0
    (entry,) = entries(orders)
    assert (entry["actor"], entry["details"]) == (USER, {"sudo_user": "alice"})


def test_the_table_shows_time_actor_action_target_and_details(orders: ShopProgram) -> None:
    with orders.open() as app, acting_as("front end", source="http", token="1pWua38F8y", request_id="r-1"):
        app.cancel("job-1")
        app.manager().cancel_many(["job-2", "dead-1"])
    head, *lines = orders.run_on_store("audit").output.splitlines()
    assert head.split() == ["TIME", "ACTOR", "ACTION", "TARGET", "SOURCE", "DETAILS"]
    many, single = ([part.strip() for part in line.split("  ") if part.strip()] for line in lines)
    assert single[1:] == ["front end", "job.cancel", "job-1", "http", "by_token=1pWua38F8y"]
    assert many[1:] == ["front end", "job.cancel", "1 job", "http", "refused=1 by_token=1pWua38F8y"]


def test_filters_choose_entries(orders: ShopProgram) -> None:
    with orders.open() as app:
        with acting_as("alice@web-1"):
            app.cancel("job-1")
        with acting_as("bob@web-1"):
            app.cancel("job-2")
            app.queue("orders").pause()
    assert [entry["target"] for entry in entries(orders)] == ["orders", "job-2", "job-1"]
    assert [entry["target"] for entry in entries(orders, "--actor", "alice")] == ["job-1"]
    assert [entry["target"] for entry in entries(orders, "--actor", "bob@web-1")] == ["orders", "job-2"]
    assert [entry["target"] for entry in entries(orders, "--action", "job")] == ["job-2", "job-1"]
    assert [entry["target"] for entry in entries(orders, "--action", "queue.pause")] == ["orders"]
    assert [entry["target"] for entry in entries(orders, "--job", "job-1")] == ["job-1"]
    assert [entry["target"] for entry in entries(orders, "--limit", "1")] == ["orders"]
    assert len(entries(orders, "--since", "1h")) == 3
    assert entries(orders, "--until", "1h") == []


def test_errors_name_the_remedy(orders: ShopProgram) -> None:
    wrong = orders.run_on_store("audit", "--action", "job.cancle")
    assert wrong.code == USAGE
    assert "'job.cancle' is no action; did you mean 'job.cancel'" in wrong.error_line
    assert "the actions are" in orders.run_on_store("audit", "--action", "xyzzy").error_line
    assert "--since" in orders.run_on_store("audit", "--since", "yesterday").error_line
    empty = orders.run_on_store("audit", "--job", "unknown")
    assert (empty.code, empty.output, empty.errors) == (0, "", "no entries in the audit trail match\n")
