"""A dead letter that was replayed: counted nowhere as one, listed with the id of its replay."""

from tests.cli.shop_program import ShopProgram


def test_all_commands_count_the_same_dead_letters(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two", "three")
    ((_, new),) = (line.split() for line in shop.run_on_store("dlq", "replay", "one").output.splitlines()[1:])
    (queue,) = shop.run_on_store("queues", "list", "orders", "--json").json["queues"]
    assert queue["failed"] == 2
    assert len(shop.run_on_store("dlq", "list", "--json").json["jobs"]) == 2
    with shop.open() as app:
        assert app.counts()["FAILED"] == app.dead_letters.count() == 2
        assert app.dead_letters.count(queue="orders") == app.queue("orders").statistics().failed == 2
        assert app.dead_letters.count(queue="elsewhere") == 0
    listed = shop.run_on_store("jobs", "list", "--status", "failed", "--json").json["jobs"]
    assert {job["id"]: job["replayed_as"] for job in listed} == {"one": new, "two": None, "three": None}


def test_a_list_of_failed_jobs_marks_those_that_were_replayed(shop: ShopProgram) -> None:
    shop.make_dead_letters("one", "two")
    before = shop.run_on_store("jobs", "list", "--status", "failed").output
    assert "REPLAYED AS" not in before
    ((_, new),) = (line.split() for line in shop.run_on_store("dlq", "replay", "one").output.splitlines()[1:])
    heading, *rows = shop.run_on_store("jobs", "list", "--status", "failed").output.splitlines()
    assert "REPLAYED AS" in heading
    assert {row.split()[0]: new in row for row in rows} == {"one": True, "two": False}
