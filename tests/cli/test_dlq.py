"""`mainspring dlq`: dead letters are listed, replayed, changed and forgotten."""

from datetime import datetime

from mainspring import Mainspring, Retry
from tests.cli.shop import Shop
from tests.support import PATIENCE

REFUSED, USAGE = 1, 2


def left(shop: Shop) -> list[str]:
    with shop.open() as app:
        return [letter.id for letter in app.dead_letters.list()]


def test_a_replay_by_id_is_a_new_job_and_happens_once(shop: Shop) -> None:
    shop.bury("one", "two")
    done = shop.on("dlq", "replay", "one")
    assert done.code == 0
    letter, new = done.output.splitlines()[1].split()
    assert letter == "one"
    with shop.open() as app:
        assert app.get(new).origin == "one"
    assert left(shop) == ["two"]
    again = shop.on("dlq", "replay", "one")
    assert again.code == REFUSED
    assert "was replayed as" in again.errors


def test_a_replay_with_changes_leaves_the_letters_as_they_are(shop: Shop) -> None:
    shop.bury("one", "two")
    chosen = ("--type", "cancel_order", "--set", "order_id=43", "--set", "reason=again")
    dry = shop.with_handlers("dlq", "replay", *chosen, "--dry-run", "--json").json
    changed = {"order_id": 43, "reason": "again"}
    assert [(found["letter"], found["arguments"]) for found in dry["letters"]] == [
        ("one", changed),
        ("two", changed),
    ]
    assert left(shop) == ["one", "two"]
    done = shop.with_handlers("dlq", "replay", *chosen, "--json").json
    assert done["count"] == 2
    with shop.open() as app:
        assert [app.get(pair["job"]).arguments for pair in done["replayed"]] == [changed, changed]
        assert app.get("one").arguments == {"order_id": 1}


def test_letters_of_a_handler_that_has_other_parameters_now_are_repaired(shop: Shop) -> None:
    with Mainspring(shop.url, grace=0) as app:

        @app.job(name="shop.cancel_order", queue="orders", retry=Retry(max_attempts=1))
        def cancel_order(order: int) -> None:
            raise RuntimeError(f"order {order} is gone")

        with app.running():
            cancel_order.options(id="one").submit(7).wait(PATIENCE)
    refused = shop.with_handlers("dlq", "replay", "one", "--set", "order_id=7")
    assert refused.code == USAGE
    assert "order" in refused.complaint
    chosen = ("one", "--unset", "order", "--set", "order_id=7")
    (dry,) = shop.with_handlers("dlq", "replay", *chosen, "--dry-run", "--json").json["letters"]
    assert dry["arguments"] == {"order_id": 7}
    (done,) = shop.with_handlers("dlq", "replay", *chosen, "--json").json["replayed"]
    with shop.open() as app:
        assert app.get(done["job"]).arguments == {"order_id": 7}


def test_changes_that_do_not_fit_keep_all_letters_from_being_replayed(shop: Shop) -> None:
    shop.bury("one", "two")
    done = shop.with_handlers("dlq", "replay", "--all", "--set", "order_id=x")
    assert done.code == USAGE
    assert "parameter 'order_id': Expected `int`, got `str` ('x')" in done.complaint
    done = shop.on("dlq", "replay", "--all", "--set", "order_id=4")
    assert done.code == USAGE
    assert "no handler is known, and 'shop.cancel_order' is needed; give --app module:app" in done.complaint
    assert left(shop) == ["one", "two"]


def test_a_rate_spreads_what_becomes_due(shop: Shop) -> None:
    shop.bury("one", "two", "three")
    done = shop.on("dlq", "replay", "--queue", "orders", "--rate", "0.5", "--limit", "2", "--json").json
    with shop.open() as app:
        dues: list[datetime] = [app.get(pair["job"]).due for pair in done["replayed"]]
    assert (dues[1] - dues[0]).total_seconds() == 2.0
    assert left(shop) == ["three"]


def test_all_has_to_be_said_and_nothing_found_is_exit_code_one(shop: Shop) -> None:
    shop.bury("one")
    done = shop.on("dlq", "purge", "--yes")
    assert done.code == USAGE
    assert "which dead letters? give ids, --type, --queue, or --all" in done.complaint
    assert shop.on("dlq", "replay", "one", "--all").code == USAGE
    done = shop.on("dlq", "replay", "--queue", "empty")
    assert done.code == REFUSED
    assert "no dead letter matches" in done.complaint


def test_a_purge_asks_first(shop: Shop) -> None:
    shop.bury("one", "two")
    refused = shop.on("dlq", "purge", "--all")
    assert refused.code == USAGE
    assert "2 dead letters would be gone for good; say --yes" in refused.complaint
    code, shown = shop.on_terminal("dlq", "purge", "--all", "--url", shop.url, typed="n\n")
    assert code == REFUSED
    assert "Forget 2 dead letters for good?" in shown
    assert left(shop) == ["one", "two"]
    assert shop.on("dlq", "purge", "--id", "one", "--yes").output == "purged 1 dead letter\n"
    code, _ = shop.on_terminal("dlq", "purge", "--all", "--url", shop.url, typed="y\n")
    assert code == 0
    assert left(shop) == []


def test_a_letter_is_shown_and_what_is_none_is_refused(shop: Shop) -> None:
    shop.bury("one", "two")
    shop.submit({"order_id": 1}, id="alive")
    assert "order 1 is gone" in shop.on("dlq", "show", "one").output
    assert [letter["id"] for letter in shop.on("dlq", "list", "--json").json["jobs"]] == ["two", "one"]
    oldest = shop.on("dlq", "list", "--oldest-first", "--limit", "1", "--json").json
    assert [letter["id"] for letter in oldest["jobs"]] == ["one"]
    done = shop.on("dlq", "show", "alive")
    assert done.code == REFUSED
    assert "it is PENDING" in done.complaint
