"""Uses a client that `openapi-python-client` has generated, as a program of another team would.

    python client_program.py ADDRESS TOKEN

The folder of the client must be on the path. The program prints what it got, as JSON.
"""

from __future__ import annotations

import json
import sys

from shop_client import AuthenticatedClient
from shop_client.api.jobs import cancel_job, get_job, list_jobs, submit_job, submit_jobs
from shop_client.api.queues import pause_queue
from shop_client.api.schedules import delete_schedule, put_schedule
from shop_client.models import (
    CronRule,
    CronRuleKind,
    EmptyBody,
    JobStatus,
    ListJobsArgument,
    NewJobBody,
    NewJobBodyArguments,
    ScheduleBody,
    ScheduleBodyArguments,
)


def new_job(order_id: int) -> NewJobBody:
    """Return a job that is due in an hour."""
    return NewJobBody(
        type_="shop.cancel_order", arguments=NewJobBodyArguments.from_dict({"order_id": order_id}), delay=3600
    )


def main(address: str, token: str) -> None:
    """Call a dozen operations."""
    client = AuthenticatedClient(base_url=f"{address}/api/v1", token=token, raise_on_unexpected_status=True)
    submitted = submit_job.sync(client=client, body=new_job(42), idempotency_key="8e03978e")
    repeated = submit_job.sync(client=client, body=new_job(42), idempotency_key="8e03978e")
    job = get_job.sync(submitted.id, client=client)
    batch = submit_jobs.sync(client=client, body=[new_job(43), new_job(44)], atomic=True)
    pending = list_jobs.sync(client=client, status=JobStatus.PENDING, limit=2)
    rest = list_jobs.sync(client=client, status=JobStatus.PENDING, limit=2, after=pending.next_)
    found = list_jobs.sync(client=client, argument=ListJobsArgument.from_dict({"argument.order_id": "43"}))
    canceled = cancel_job.sync(submitted.id, client=client, body=EmptyBody())
    missing = get_job.sync("no/such job", client=client)
    wrong = submit_job.sync(client=client, body=NewJobBody(type_="shop.cancel_order"))
    queue = pause_queue.sync("orders", client=client, body=EmptyBody())
    nightly = ScheduleBody(
        type_="shop.cancel_order",
        arguments=ScheduleBodyArguments.from_dict({"order_id": 1}),
        rule=CronRule(kind=CronRuleKind.CRON, expression="30 2 * * *", tz="Europe/Berlin"),
    )
    stored = put_schedule.sync_detailed("every night", client=client, body=nightly)
    kept = put_schedule.sync("every night", client=client, body=nightly, if_none_match="*")
    deleted = delete_schedule.sync("every night", client=client, if_match=stored.headers["etag"])
    seen = {
        "submitted": submitted.is_new,
        "repeated": repeated.id == submitted.id,
        "job": [job.type_, job.status, job.arguments["order_id"], job.due.tzinfo is not None],
        "batch": [len(batch.ids), batch.stored],
        "listed": [each.id for each in (*pending.jobs, *rest.jobs)] == [submitted.id, *batch.ids],
        "found": [each.id for each in found.jobs] == batch.ids[:1],
        "canceled": [canceled.status, canceled.is_done],
        "problems": [[each.status, each.type_] for each in (missing, wrong, kept)],
        "parameter": wrong.parameter,
        "paused": queue.is_paused,
        "stored": [int(stored.status_code), stored.parsed.is_new, stored.parsed.next_due.tzinfo is not None],
        "deleted": deleted.is_changed,
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
