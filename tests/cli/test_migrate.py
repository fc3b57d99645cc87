"""`mainspring migrate`: what it prints, how it ends, and how it is continued."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.cli.shop_program import ENVIRONMENT, CommandResult, ShopProgram
from tests.nats.servers import Servers
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

DONE, FAILURE, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130
MANY = 12_000  # some batches


@pytest.fixture
def goal(nats_server: Servers, nats_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the jobs go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"{nats_server.url}?prefix={nats_prefix}"


def migrate(shop: ShopProgram, goal: str, *options: str) -> CommandResult:
    return shop.run("migrate", shop.url, goal, *options)


def submit_many(shop: ShopProgram) -> None:
    with Mainspring(shop.url, durability="normal") as app:

        @app.job(name="shop.cancel_order", queue="orders")
        def cancel_order(order_id: int) -> None: ...

        cancel_order.after(3_600).submit_many([(number,) for number in range(MANY)])


def test_a_move_is_counted_made_and_told_and_the_file_is_refused_from_then_on(
    shop: ShopProgram, goal: str
) -> None:
    shop.submit({"order_id": 1}, {"order_id": 2})
    shop.make_dead_letters("dead")
    planned = migrate(shop, goal, "--dry-run")
    assert planned.output.splitlines() == [
        f"would move 2 pending jobs, 1 dead letter, 0 schedules, 0 limits, 0 paused queues to {goal}",
        "0 COMPLETED or CANCELED jobs would stay behind",
    ]
    shop.submit({"order_id": 3})  # nothing was changed
    moved = migrate(shop, goal, "--json").json
    assert moved | {"seconds": 0} == {
        "state": "moved",
        "to": goal,
        "pending": 3,
        "dead_letters": 1,
        "schedules": 0,
        "paused_queues": 0,
        "limits": 0,
        "left_behind": 0,
        "moved_now": 4,
        "seconds": 0,
        "deviations": [],
    }
    refused = shop.run_on_store("jobs", "list")
    assert (refused.code, refused.error_line.count(goal)) == (UNAVAILABLE, 2)
    assert "use that URL from now on" in refused.error_line
    counted = shop.run("jobs", "list", "--url", goal, "--json").json["jobs"]
    assert sorted(job["status"] for job in counted) == ["FAILED", "PENDING", "PENDING", "PENDING"]
    assert "was moved" in migrate(shop, goal).output  # once more does nothing


def test_what_differs_is_listed_and_decided_by_force_or_undo(shop: ShopProgram, goal: str) -> None:
    shop.submit({"order_id": 1}, id="taken")
    arguments = ("submit", "cancel_order", "order_id=2", "--id", "taken", "--delay", "1h")
    assert shop.run(*arguments, "--app", "shop:app", "--url", goal).code == DONE
    differs = migrate(shop, goal)
    assert differs.code == FAILURE
    assert differs.output.splitlines()[1].split()[:2] == ["job", "taken"]
    assert differs.errors.startswith("mainspring: 1 job, schedule, limit or queue differs at nats://")
    refused = shop.run("run", "shop:app")
    assert refused.code == UNAVAILABLE
    assert f"its jobs are being moved to {goal}" in refused.errors
    assert migrate(shop, goal, "--undo").output == f"undone: {shop.url} can be used again\n"
    assert shop.run_on_store("jobs", "show", "taken", "--json").json["arguments"] == {"order_id": 1}
    assert migrate(shop, goal).code == FAILURE
    gone = migrate(shop, "nats://127.0.0.1:1", "--undo", "--force")
    assert (gone.code, gone.output) == (DONE, f"undone: {shop.url} can be used again\n")
    assert gone.errors.endswith(f"{goal} was not contacted; if it still exists, let no worker run on it\n")
    assert migrate(shop, goal, "--undo").code == DONE  # it is there after all, and what was moved is taken away
    assert migrate(shop, goal, "--undo").code == UNAVAILABLE
    forced = migrate(shop, goal, "--force", "--json").json
    assert [deviation["name"] for deviation in forced["deviations"]] == ["taken"]


def test_what_cannot_be_moved_is_refused_in_one_line(shop: ShopProgram, goal: str) -> None:
    assert migrate(shop, goal).error_line.endswith("the first submit or worker creates it")
    shop.submit({"order_id": 1})
    for arguments in ((shop.url, "sqlite:///other.db"), (goal, shop.url)):
        refused = shop.run("migrate", *arguments)
        assert refused.code == USAGE
        assert "jobs move " in refused.errors
    assert migrate(shop, goal, "--undo").error_line.endswith("nothing to undo; use the file as it is")
    with shop.open() as app, app.running():
        busy = migrate(shop, goal)
    assert busy.code == UNAVAILABLE
    assert "it has live workers: " in busy.error_line
    assert "; stop them" in busy.error_line


def test_a_terminal_sees_a_bar(shop: ShopProgram, goal: str) -> None:
    shop.submit({"order_id": 1}, {"order_id": 2})
    at_once = {"mainspring.cli.progress.SHOW_AFTER_NS": 0}  # the bar does not wait for a second to pass
    code, shown = shop.run_on_terminal("migrate", shop.url, goal, columns=120, constants=at_once, NO_COLOR="1")
    assert code == DONE
    for step in ("moving", "comparing"):
        assert re.search(rf"{step} .* 2/2 .*left:", shown)
    assert "moved 2 pending jobs" in shown


def test_ctrl_c_stops_between_two_batches_and_says_how_to_go_on(
    shop: ShopProgram, goal: str, nats_server: Servers, nats_prefix: str
) -> None:
    submit_many(shop)
    proxy = nats_server.proxy()
    goal = f"{proxy.url}?prefix={nats_prefix}"
    proxy.freeze_after(MANY * 50)  # bytes: the streams are made, and most jobs are still to be moved
    process = shop.start("migrate", shop.url, goal)
    assert eventually(lambda: proxy.is_frozen, PATIENCE)
    process.send_signal(signal.SIGINT)
    proxy.heal()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == INTERRUPTED
    assert errors.splitlines()[-1].endswith(f"continue with: mainspring migrate {shop.url} '{goal}'")
    assert migrate(shop, goal, "--json").json["pending"] == MANY
