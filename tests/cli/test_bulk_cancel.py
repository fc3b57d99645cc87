"""`mainspring jobs cancel` with filters, and `mainspring jobs run-now`."""

from datetime import timedelta

import pytest

from mainspring import JobStatus, Mainspring, current_job
from mainspring.cli.bulk_cancel import ChosenJobs
from tests.cli.shop_program import ShopProgram
from tests.support import PATIENCE, eventually

FAILURE, USAGE = 1, 2


@pytest.fixture
def orders(shop: ShopProgram) -> ShopProgram:
    """A shop with pending jobs for the orders 0, 1 and 2, in turn."""
    for number in range(6):
        shop.submit({"order_id": number % 3}, id=f"job-{number}")
    return shop


def pending(shop: ShopProgram) -> list[str]:
    with shop.open() as app:
        return [job.id for job in app.jobs(status=JobStatus.PENDING)]


def test_jobs_are_canceled_by_argument_after_a_question(orders: ShopProgram) -> None:
    command = ("jobs", "cancel", "--argument", "order_id=1", "--since", "2h", "--url", orders.url)
    code, shown = orders.run_on_terminal(*command, typed="n\n")
    assert code == FAILURE
    assert "Cancel 2 jobs (2 pending)?" in shown
    assert len(pending(orders)) == 6
    code, shown = orders.run_on_terminal(*command, typed="y\n")
    assert code == 0
    assert "canceled 2 jobs" in shown
    assert pending(orders) == ["job-0", "job-2", "job-3", "job-5"]


def test_without_a_terminal_yes_has_to_be_said(orders: ShopProgram) -> None:
    refused = orders.run_on_store("jobs", "cancel", "--type", "shop.cancel_order")
    assert refused.code == USAGE
    assert "6 jobs (6 pending) would be canceled; give --yes, or --dry-run to list them" in refused.error_line
    done = orders.run_on_store("jobs", "cancel", "--type", "shop.cancel_order", "--yes", "--json").json
    ids = [f"job-{number}" for number in range(6)]
    assert done == {"dry_run": False, "count": 6, "canceled": ids, "asked_to_stop": [], "too_late": []}
    assert pending(orders) == []


def test_a_dry_run_lists_the_jobs_and_cancels_none(orders: ShopProgram) -> None:
    dry = orders.run_on_store("jobs", "cancel", "--argument", "order_id=1", "--dry-run")
    assert [line.split()[0] for line in dry.output.splitlines()[1:]] == ["job-1", "job-4"]
    assert dry.errors == "2 jobs (2 pending) would be canceled\n"
    dry = orders.run_on_store("jobs", "cancel", "job-0", "job-3", "--dry-run", "--json")
    assert dry.json == {"dry_run": True, "count": 2, "jobs": ["job-0", "job-3"]}
    assert len(pending(orders)) == 6


def test_a_dry_run_with_ids_leaves_out_jobs_that_have_ended(orders: ShopProgram) -> None:
    orders.make_dead_letters("dead")
    dry = orders.run_on_store("jobs", "cancel", "job-0", "dead", "--dry-run")
    assert dry.errors == "mainspring: dead cannot be canceled: it is FAILED\n1 job (1 pending) would be canceled\n"
    assert orders.run_on_store("jobs", "cancel", "dead", "--dry-run").code == FAILURE


def test_running_jobs_would_only_be_asked_to_stop() -> None:
    pending_only = ChosenJobs({"a": JobStatus.PENDING}, [])
    assert f"{pending_only.description} {pending_only.effect}" == "1 job (1 pending) canceled"
    both = ChosenJobs({"a": JobStatus.PENDING, "b": JobStatus.RUNNING}, [])
    assert f"{both.description} {both.effect}" == "2 jobs (1 pending, 1 running) canceled or asked to stop"


def test_a_long_dry_run_shows_the_first_jobs_and_counts_the_rest(orders: ShopProgram) -> None:
    shown = orders.run_on_terminal(
        *("jobs", "cancel", "--queue", "orders", "--dry-run", "--url", orders.url),
        constants={"mainspring.cli.bulk_cancel.SHOWN": 2},
    )[1]
    assert "and 4 more; 6 jobs (6 pending) would be canceled" in shown


def test_more_jobs_than_a_page_and_a_transaction_are_canceled(orders: ShopProgram) -> None:
    sizes = {"mainspring.cli.bulk_cancel.PAGE": 2, "mainspring.cli.bulk_cancel.CHUNK": 3}
    sizes["mainspring.jobs.search.MAX_SCANNED"] = 1
    code, shown = orders.run_on_terminal(
        *("jobs", "cancel", "--text", "order", "--yes", "--url", orders.url), constants=sizes
    )
    assert (code, "canceled 6 jobs" in shown) == (0, True)
    assert pending(orders) == []


def test_running_jobs_are_asked_to_stop_and_the_code_tells_it(shop: ShopProgram) -> None:
    with Mainspring(shop.url, grace=0) as app:

        @app.job(name="shop.cancel_order", queue="orders")
        def cancel_order(order_id: int) -> None:
            eventually(lambda: current_job().cancelled)

        with app.running():
            job = cancel_order.submit(1)
            assert eventually(lambda: job.status() is JobStatus.RUNNING)
            done = shop.run_on_store("jobs", "cancel", "--queue", "orders", "--yes")
            assert (done.code, done.output) == (FAILURE, "canceled 0 jobs\n")
            assert done.errors == "mainspring: asked 1 running job to stop\n"
            assert job.wait(PATIENCE) is JobStatus.COMPLETED


def test_ids_or_filters_have_to_be_given_and_statuses_that_can_be_canceled(orders: ShopProgram) -> None:
    done = orders.run_on_store("jobs", "cancel")
    assert done.code == USAGE
    assert "no jobs are chosen; give ids, or filters such as --queue, --type and --argument" in done.error_line
    assert orders.run_on_store("jobs", "cancel", "job-1", "--queue", "orders").code == USAGE
    done = orders.run_on_store("jobs", "cancel", "--status", "failed")
    assert done.code == USAGE
    assert "a job that is failed has ended and cannot be canceled" in done.error_line
    done = orders.run_on_store("jobs", "cancel", "--queue", "ordes", "--yes")
    assert done.code == FAILURE
    assert "no pending or running job matches" in done.errors
    assert "did you mean 'orders'?" in done.errors
    assert len(pending(orders)) == 6


def test_a_pending_job_is_made_due_now(orders: ShopProgram) -> None:
    orders.make_dead_letters("dead")
    done = orders.run_on_store("jobs", "run-now", "job-1", "dead")
    assert (done.code, done.output) == (FAILURE, "job-1 due now\n")
    assert (
        done.errors == "mainspring: dead: too late, because the job is FAILED; mainspring explain dead says more\n"
    )
    with orders.open() as app:
        job, other = app.get("job-1"), app.get("job-2")
    assert job.due < other.due - timedelta(minutes=30)  # it was due within an hour, like the other one
