"""`mainspring jobs`: listed, shown, called off, put off, repeated."""

import re

from mainspring import Retry
from tests.cli.shop_program import ShopProgram
from tests.support import eventually

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
    assert "there are more jobs; for the next page, add --after " in done.errors


def test_an_empty_list_is_an_answer_and_no_failure(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    done = shop.run_on_store("jobs", "list", "--status", "failed")
    assert (done.code, done.output, done.errors) == (0, "", "no jobs\n")
    assert shop.run_on_store("jobs", "list", "--status", "failed", "--json").json == {
        "jobs": [],
        "next": None,
        "is_complete": True,
    }
    assert shop.run_on_store("jobs", "list", "--after", "nowhere").code == USAGE


def test_a_job_is_shown_with_its_attempts_and_errors(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shown = shop.run_on_store("jobs", "show", "dead")
    for part in ("shop.cancel_order", "FAILED", '{"order_id":1}', "attempt 1, failure", "order 1 is gone"):
        assert part in shown.output
    fields = shop.run_on_store("jobs", "show", "dead", "--json").json
    assert fields["history"][0]["worker"] in shown.output
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
    assert outcomes["dead"] == (False, "too late, because the job is FAILED; mainspring explain dead says more")
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
    assert (
        done.errors == "mainspring: dead: too late, because the job is FAILED; mainspring explain dead says more\n"
    )
    assert shop.run_on_store("jobs", "show", "one", "--json").json["due"] == "2037-01-01T00:00:00Z"
    assert (
        "give the new due time, either with --delay 30m (0 is now) or with --at"
        in shop.run_on_store("jobs", "reschedule", "one").error_line
    )


def test_jobs_are_listed_by_argument(shop: ShopProgram) -> None:
    shop.submit({"order_id": 42}, id="one")
    shop.submit({"order_id": 43, "reason": "42"}, id="two")
    shop.submit({"order_id": 42, "reason": "late"}, id="three")

    def listed(*filters: str) -> list[str]:
        return [job["id"] for job in shop.run_on_store("jobs", "list", *filters, "--json").json["jobs"]]

    assert listed("--argument", "order_id=42") == ["three", "one"]
    assert listed("--argument", "reason=42") == ["two"]  # a text that looks like a number
    assert listed("--argument", "order_id=42", "--argument", "reason=late") == ["three"]
    assert listed("--argument", "order_id=44") == []
    assert listed("--text", "LATE") == ["three"]
    done = shop.run_on_store("jobs", "list", "--argument", "order_id")
    assert done.code == USAGE
    assert "'order_id' is not of the form name=value, as in order_id=42" in done.error_line


def test_jobs_are_listed_by_the_time_of_their_submission(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, id="one")
    created = shop.run_on_store("jobs", "show", "one", "--json").json["created"]

    def listed(*filters: str) -> list[str]:
        return [job["id"] for job in shop.run_on_store("jobs", "list", *filters, "--json").json["jobs"]]

    assert listed("--since", "2h") == listed("--since", created) == ["one"]
    assert listed("--until", created) == listed("--since", "0s") == listed("--until", "2h") == []
    assert listed("--since", "2020-01-01T00:00Z", "--until", "2900-01-01T00:00Z") == ["one"]
    done = shop.run_on_store("jobs", "list", "--since", "yesterday")
    assert done.code == USAGE
    assert "or a time before now: 90s, 30m, 2h, 7d" in done.error_line


def test_a_search_that_is_not_complete_tells_how_to_continue(shop: ShopProgram) -> None:
    for number in range(5):
        shop.submit({"order_id": number}, id=f"{number}")
    scan = {"mainspring.jobs.search.MAX_SCANNED": 2}
    code, shown = shop.run_on_terminal(
        *("jobs", "list", "--argument", "order_id=0", "--url", shop.url), constants=scan, columns=200
    )
    assert code == 0
    assert "no jobs found so far" in shown
    assert "the search stopped after 2 jobs, at one submitted at " in shown
    after = shown.split("--after ")[1].split()[0]
    rest = shop.run_on_store("jobs", "list", "--argument", "order_id=0", "--after", after, "--json").json
    assert ([job["id"] for job in rest["jobs"]], rest["next"], rest["is_complete"]) == (["0"], None, True)


def test_a_mistyped_name_in_a_filter_is_met_with_a_question(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    mistyped = {
        ("--type", "cancel_oder"): "there are no jobs of type 'cancel_oder'; did you mean 'shop.cancel_order'?",
        ("--queue", "ordes"): "queue 'ordes' has no jobs, handlers or schedules yet; did you mean 'orders'?",
        ("--type", "cancel_order", "--argument", "oder_id=1"): (
            "handler 'shop.cancel_order' has no parameter 'oder_id'; did you mean 'order_id'?"
        ),
    }
    for filters, question in mistyped.items():
        done = shop.run_with_app("jobs", "list", *filters)
        assert done.code == 0
        assert question in done.errors, done.errors


def test_a_job_that_waits_for_its_retry_shows_no_lateness(shop: ShopProgram) -> None:
    with shop.open() as app:
        retry = Retry(max_attempts=2, base=3600, jitter=0)
        handler = app.job(name="shop.flaky", retry=retry)(fail)
        with app.running():
            handle = handler.submit()
            assert eventually(lambda: handle.info().failures == 1)
    shown = shop.run_on_store("jobs", "show", handle.id).output
    assert "attempts   1 started (1 failed)" in shown
    assert "after its due time" not in shown
    assert "retry policy" not in shown  # this process does not know the handler


def test_a_job_is_shown_with_its_retry_policy(shop: ShopProgram) -> None:
    usual, own = shop.submit({"order_id": 1}), shop.submit({"order_id": 2}, retry=Retry(max_attempts=3))
    shown = [shop.run_with_app("jobs", "show", *ids).output for ids in (usual, own)]
    shown.append(shop.run_on_store("jobs", "show", *own).output)  # its own policy is stored with the job
    policies = [re.search("^retry policy +(.*)$", output, re.MULTILINE) for output in shown]
    assert [found and found[1] for found in policies] == ["one attempt", *["3 attempts, 2 s to 4 s apart"] * 2]


def fail() -> None:
    raise ConnectionError("the bank does not answer")
