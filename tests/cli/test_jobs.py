"""`mainspring jobs`: listed, shown, called off, put off, repeated."""

from tests.cli.shop_program import ShopProgram

FAILURE, USAGE = 1, 2


def test_a_list_is_filtered_and_goes_on_where_it_ended(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shop.submit({"order_id": 1}, id="one")
    shop.submit({"order_id": 2}, id="two", queue="slow")
    first = shop.run_on_store("jobs", "list", "--status", "pending", "--limit", "1", "--json").json
    second = shop.run_on_store(
        "jobs", "list", "--status", "pending", "--limit", "1", "--after", first["next"], "--json"
    ).json
    assert [job["id"] for page in (first, second) for job in page["jobs"]] == ["two", "one"]
    oldest = shop.run_on_store("jobs", "list", "--oldest-first", "--after", first["next"], "--json").json["jobs"]
    assert [job["id"] for job in oldest] == []
    assert [job["id"] for job in shop.run_on_store("jobs", "list", "--queue", "slow", "--json").json["jobs"]] == [
        "two"
    ]
    done = shop.run_with_app("jobs", "list", "--type", "cancel_order", "--limit", "2")
    assert [line.split()[:2] for line in done.output.splitlines()[1:]] == [["two", "PENDING"], ["one", "PENDING"]]
    assert "there are more: --after " in done.errors


def test_an_empty_list_is_an_answer_and_no_failure(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    done = shop.run_on_store("jobs", "list", "--status", "failed")
    assert (done.code, done.output, done.errors) == (0, "", "no jobs\n")
    assert shop.run_on_store("jobs", "list", "--status", "failed", "--json").json == {"jobs": [], "next": None}
    assert shop.run_on_store("jobs", "list", "--after", "nowhere").code == USAGE


def test_a_job_is_shown_with_its_attempts_and_errors(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shown = shop.run_on_store("jobs", "show", "dead")
    for part in ("shop.cancel_order", "FAILED", '{"order_id":1}', "attempt 1, failure", "order 1 is gone"):
        assert part in shown.output
    fields = shop.run_on_store("jobs", "show", "dead", "--json").json
    assert (fields["id"], fields["status"], fields["priority"]) == ("dead", "FAILED", "USER_VISIBLE")
    assert fields["arguments"] == {"order_id": 1}
    assert fields["history"][0]["cause"] == "failure"
    assert fields["due"].endswith("Z")


def test_a_job_that_is_not_there_is_exit_code_one(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    for command in ("jobs show", "explain"):
        done = shop.run_on_store(*command.split(), "gone")
        assert done.code == FAILURE
        assert (
            done.error_line == "mainspring: there is no job 'gone'; check the id and that this is the right store"
        )


def test_cancelling_says_of_each_job_what_became_of_it(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shop.submit({"order_id": 1}, id="one")
    shop.submit({"order_id": 2}, id="two")
    done = shop.run_on_store("jobs", "cancel", "one", "gone", "dead", "two", "--json")
    assert done.code == FAILURE
    outcomes = {said["id"]: (said["done"], said["outcome"]) for said in done.json}
    assert outcomes["one"] == outcomes["two"] == (True, "canceled")
    assert outcomes["dead"] == (False, "too late: FAILED; mainspring explain dead says more")
    assert outcomes["gone"][0] is False
    shop.submit({"order_id": 3}, id="three")
    done = shop.run_on_store("jobs", "cancel", "three")
    assert (done.code, done.output, done.errors) == (0, "three canceled\n", "")


def test_a_dead_letter_is_retried_as_the_same_job(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    done = shop.run_on_store("jobs", "retry", "dead")
    assert (done.code, done.output) == (0, "dead pending\n")
    again = shop.run_on_store("jobs", "retry", "dead")
    assert again.code == FAILURE
    assert again.error_line.startswith("mainspring: dead: cannot retry job 'dead': it is PENDING")


def test_a_job_that_has_not_started_gets_another_due_time(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shop.submit({"order_id": 1}, id="one")
    done = shop.run_on_store("jobs", "reschedule", "one", "dead", "--at", "2037-01-01T00:00Z")
    assert (done.code, done.output) == (FAILURE, "one rescheduled\n")
    assert done.errors == "mainspring: dead: too late: FAILED; mainspring explain dead says more\n"
    assert shop.run_on_store("jobs", "show", "one", "--json").json["due"] == "2037-01-01T00:00:00Z"
    assert (
        "give the new due time with --delay 30m (0 is now) or --at"
        in shop.run_on_store("jobs", "reschedule", "one").error_line
    )
