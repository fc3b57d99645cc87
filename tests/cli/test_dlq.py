"""`mainspring dlq`: dead letters are listed, replayed, changed and forgotten."""

from datetime import datetime

import pytest

from mainspring import Mainspring, Retry
from tests.cli.shop_program import ShopProgram
from tests.support import PATIENCE

FAILURE, USAGE = 1, 2


def left(shop: ShopProgram) -> list[str]:
    with shop.open() as app:
        return [letter.id for letter in app.dead_letters.list(newest_first=False)]


def test_a_replay_by_id_is_a_new_job_and_happens_once(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two")
    done = shop.run_on_store("dlq", "replay", "one")
    assert done.code == 0
    letter, new = done.output.splitlines()[1].split()
    assert letter == "one"
    with shop.open() as app:
        assert app.get(new).origin == "one"
    assert left(shop) == ["two"]
    again = shop.run_on_store("dlq", "replay", "one")
    assert again.code == FAILURE
    assert "was replayed as" in again.errors


def test_a_replay_with_changes_leaves_the_letters_as_they_are(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two")
    chosen = ("--type", "cancel_order", "--set", "order_id=43", "--set", "reason=again")
    dry = shop.run_with_app("dlq", "replay", *chosen, "--dry-run", "--json").json
    changed = {"order_id": 43, "reason": "again"}
    assert [(found["letter"], found["arguments"]) for found in dry["letters"]] == [
        ("one", changed),
        ("two", changed),
    ]
    assert left(shop) == ["one", "two"]
    done = shop.run_with_app("dlq", "replay", *chosen, "--json").json
    assert done["count"] == 2
    with shop.open() as app:
        assert [app.get(pair["job"]).arguments for pair in done["replayed"]] == [changed, changed]
        assert app.get("one").arguments == {"order_id": 1}


def test_letters_of_a_handler_that_has_other_parameters_now_are_repaired(shop: ShopProgram) -> None:
    with Mainspring(shop.url, grace=0) as app:

        @app.job(name="shop.cancel_order", queue="orders", retry=Retry(max_attempts=1))
        def cancel_order(order: int) -> None:
            raise RuntimeError(f"order {order} is gone")

        with app.running():
            cancel_order.options(id="one").submit(7).wait(PATIENCE)
    refused = shop.run_with_app("dlq", "replay", "one", "--set", "order_id=7")
    assert refused.code == USAGE
    assert "order" in refused.error_line
    chosen = ("one", "--unset", "order", "--set", "order_id=7")
    (dry,) = shop.run_with_app("dlq", "replay", *chosen, "--dry-run", "--json").json["letters"]
    assert dry["arguments"] == {"order_id": 7}
    (done,) = shop.run_with_app("dlq", "replay", *chosen, "--json").json["replayed"]
    with shop.open() as app:
        assert app.get(done["job"]).arguments == {"order_id": 7}


def test_changes_that_do_not_fit_keep_all_letters_from_being_replayed(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two")
    done = shop.run_with_app("dlq", "replay", "--all", "--set", "order_id=x")
    assert done.code == USAGE
    assert "parameter 'order_id': Expected `int`, got `str` ('x')" in done.error_line
    done = shop.run_on_store("dlq", "replay", "--all", "--set", "order_id=4")
    assert done.code == USAGE
    assert (
        "the command needs the handler 'shop.cancel_order', and knows no handlers; give --app module:app"
        in done.error_line
    )
    assert left(shop) == ["one", "two"]


def test_a_rate_spreads_what_becomes_due(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two", "three")
    done = shop.run_on_store("dlq", "replay", "--queue", "orders", "--rate", "0.5", "--limit", "2", "--json").json
    with shop.open() as app:
        dues: list[datetime] = [app.get(pair["job"]).due for pair in done["replayed"]]
    assert (dues[1] - dues[0]).total_seconds() == 2.0
    assert left(shop) == ["three"]


def test_all_has_to_be_said_and_nothing_found_is_exit_code_one(shop: ShopProgram) -> None:
    shop.make_dead_letters("one")
    done = shop.run_on_store("dlq", "purge", "--yes")
    assert done.code == USAGE
    assert "no dead letters are chosen; give ids, --type, --queue, or --all" in done.error_line
    assert shop.run_on_store("dlq", "replay", "one", "--all").code == USAGE
    done = shop.run_on_store("dlq", "replay", "--queue", "empty")
    assert done.code == FAILURE
    assert "no dead letter matches" in done.errors


def test_a_purge_asks_first(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two")
    refused = shop.run_on_store("dlq", "purge", "--all")
    assert refused.code == USAGE
    assert "2 dead letters would be deleted for good; give --yes" in refused.error_line
    code, shown = shop.run_on_terminal("dlq", "purge", "--all", "--url", shop.url, typed="n\n")
    assert code == FAILURE
    assert "Delete 2 dead letters for good?" in shown
    assert left(shop) == ["one", "two"]
    assert shop.run_on_store("dlq", "purge", "--id", "one", "--yes").output == "purged 1 dead letter\n"
    code, _ = shop.run_on_terminal("dlq", "purge", "--all", "--url", shop.url, typed="y\n")
    assert code == 0
    assert left(shop) == []


def test_a_dry_run_of_a_purge_lists_the_letters_and_deletes_none(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two")
    done = shop.run_on_store("dlq", "purge", "--all", "--dry-run")
    assert done.code == 0
    assert [line.split()[0] for line in done.output.splitlines()] == ["ID", "one", "two"]
    assert done.errors == "2 dead letters would be purged\n"
    assert shop.run_on_store("dlq", "purge", "one", "--dry-run", "--json").json == {
        "dry_run": True,
        "count": 1,
        "purged": [],
        "would_purge": ["one"],
    }
    assert left(shop) == ["one", "two"]


def test_a_letter_is_shown_and_what_is_none_is_refused(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two")
    shop.submit({"order_id": 1}, id="alive")
    assert "order 1 is gone" in shop.run_on_store("dlq", "show", "one").output
    assert [letter["id"] for letter in shop.run_on_store("dlq", "list", "--json").json["jobs"]] == ["two", "one"]
    oldest = shop.run_on_store("dlq", "list", "--oldest-first", "--limit", "1", "--json").json
    assert [letter["id"] for letter in oldest["jobs"]] == ["one"]
    done = shop.run_on_store("dlq", "show", "alive")
    assert done.code == FAILURE
    assert "it is PENDING" in done.error_line


PAYMENTS = """
from mainspring import Mainspring, Retry

app = Mainspring("sqlite:///shop.db", durability="normal", max_payload=1000)


@app.job(name="pay", retry=Retry(max_attempts=1))
def pay(card: str, amount: int = 1, urgent: bool = False) -> None:
    raise RuntimeError("no")
"""


def make_payments(shop: ShopProgram, *ids: str) -> None:
    (shop.folder / "payments.py").write_text(PAYMENTS)
    with Mainspring(shop.url, durability="normal", grace=0) as app:

        @app.job(name="pay", retry=Retry(max_attempts=1))
        def pay(card: str) -> None:
            raise RuntimeError("no")

        with app.running():
            for job_id in ids:
                pay.options(id=job_id).submit("1111").wait(PATIENCE)


def test_changed_arguments_are_converted_as_those_of_a_submit(shop: ShopProgram) -> None:
    make_payments(shop, "one")
    changes = ("--set", "card=4242", "--set", "amount=5", "--set", "urgent=true")
    dry = shop.run("dlq", "replay", "one", *changes, "--dry-run", "--json", "--app", "payments:app").json
    changed = {"card": "4242", "amount": 5, "urgent": True}
    assert [letter["arguments"] for letter in dry["letters"]] == [changed]
    (done,) = shop.run("dlq", "replay", "one", *changes, "--json", "--app", "payments:app").json["replayed"]
    with shop.open() as app:
        assert app.get(done["job"]).arguments == changed


def test_a_dry_run_refuses_what_the_replay_refuses(shop: ShopProgram) -> None:
    make_payments(shop, "one", "two")
    shop.run_on_store("dlq", "replay", "two")
    for wrong in (
        ("one", "two"),  # one was replayed
        ("gone",),
        ("one", "--set", "amount=much"),
        ("one", "--set", "crad=4242"),
        ("one", "--set", f"card={'9' * 2_000}"),  # larger than max_payload
        ("one", "--unset", "card"),
        ("one", "--set", "amount=1", "--set", "amount=2"),
        ("one", "--set", "amount"),
        ("--type", "pya"),
        (),
    ):
        dry, done = (
            shop.run("dlq", "replay", *wrong, *option, "--app", "payments:app") for option in (["--dry-run"], [])
        )
        assert dry.code in (FAILURE, USAGE), wrong
        assert (dry.code, dry.output, dry.errors) == (done.code, done.output, done.errors)
    with shop.open() as app:
        assert app.get("one").replayed_as is None


def test_a_mistyped_type_is_met_with_a_question(shop: ShopProgram) -> None:
    shop.make_dead_letters("one")
    for command in (["list"], ["replay"], ["purge", "--yes"]):
        done = shop.run_with_app("dlq", *command, "--type", "cancel_oder")
        assert "there are no jobs of type 'cancel_oder'; did you mean 'shop.cancel_order'?" in done.errors


def test_the_last_failure_is_listed_first(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, id="slow", delay=0)
    with Mainspring(shop.url, durability="normal", grace=0) as app:

        @app.job(name="later", queue="other", retry=Retry(max_attempts=1))
        def later() -> None:
            raise RuntimeError("no")

        with app.running():  # the job that was submitted first has no worker yet
            later.options(id="fast").submit().wait(PATIENCE)
    with shop.open() as app, app.running():
        app.handle("slow").wait(PATIENCE)
    listed = shop.run_on_store("dlq", "list", "--json").json["jobs"]
    assert [letter["id"] for letter in listed] == ["slow", "fast"]
    oldest = shop.run_on_store("dlq", "list", "--oldest-first", "--limit", "1").output.splitlines()
    assert oldest[1].split()[0] == "fast"


@pytest.mark.parametrize(
    "command",
    [("dlq", "list"), ("dlq", "replay"), ("dlq", "purge", "--yes"), ("events", "--for", "0.1"), ("jobs", "list")],
    ids=" ".join,
)
def test_a_filter_with_a_mistyped_queue_is_answered_with_the_queue_that_was_meant(
    shop: ShopProgram, command: tuple[str, ...]
) -> None:
    shop.submit({"order_id": 1})
    done = shop.run_on_store(*command, "--queue", "ordes")
    assert (
        "mainspring: queue 'ordes' has no jobs, handlers or schedules yet; did you mean 'orders'?\n" in done.errors
    )
