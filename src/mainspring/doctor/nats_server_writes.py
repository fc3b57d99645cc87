"""Tries what a NATS server publishes for a user with a role, without looking at the rights of the user.

A reply goes to whatever subject a request names, and a message with a schedule to its target. Each way is tried
with an empty message that expires after a minute, and with a subject of the store that the role may not write
and no process reads. With the accounts that `mainspring nats permissions` prints, none arrives.
"""

from __future__ import annotations

import asyncio
import json

from mainspring.engines.nats.jetstream import NOT_FOUND, JetStream, ServerError
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.write_batch import Write, schedule_headers
from mainspring.errors import EngineUnavailable
from mainspring.jobs.timestamps import MICROSECONDS

WAYS = ("reply", "schedule")
EXPIRES = {"Nats-TTL": "60s"}
TRIES = 10
PAUSE_SECONDS = 0.05


def find_server_writes(jetstream: JetStream, names: SubjectNames) -> tuple[str, ...]:
    """Return in which ways the server publishes for this user what the user may not publish: `WAYS`."""
    role = jetstream.settings.role
    place = f"{names.guarded}probe." if _has_guarded_stream(jetstream, names) else names.moves
    if role is None or (place == names.moves and role == "operator"):
        return ()  # this user may write everything, or these subjects
    targets = {way: f"{place}doctor-{way}" for way in WAYS}
    try:
        before = {way: jetstream.read_one(target).revision for way, target in targets.items()}
        _let_server_publish(jetstream, names, targets)
        found: tuple[str, ...] = ()
        for _ in range(TRIES):
            found = tuple(way for way in WAYS if jetstream.read_one(targets[way]).revision != before[way])
            if len(found) == len(WAYS):
                break
            jetstream.run_on_loop(asyncio.sleep(PAUSE_SECONDS))
    except (ServerError, EngineUnavailable):  # the denial of a read is reported with the others
        return ()
    return found


def _has_guarded_stream(jetstream: JetStream, names: SubjectNames) -> bool:
    try:
        jetstream.api(f"STREAM.INFO.{names.guarded_stream}")
    except ServerError as error:
        return error.code not in NOT_FOUND
    except EngineUnavailable:  # a user of an earlier version may not ask
        return False
    return True


def _let_server_publish(jetstream: JetStream, names: SubjectNames, targets: dict[str, str]) -> None:
    record = f"{names.prefix}.key.doctor"
    due = schedule_headers(targets["schedule"], jetstream.now() - MICROSECONDS)
    headers = due | {"Nats-Schedule-TTL": EXPIRES["Nats-TTL"]}
    scheduled = Write(names.scheduled("doctor", "x"), b"", 0, headers)
    jetstream.store_each([Write(record, b"", headers=EXPIRES), scheduled])
    request = json.dumps({"last_by_subj": record}).encode()
    jetstream.send([(f"{jetstream.api_subject}.DIRECT.GET.{names.stream}", request, targets["reply"])])


def is_strict(jetstream: JetStream, names: SubjectNames) -> bool:
    """Return whether the server refuses a request with an unknown field; True if that is unknown."""
    try:
        jetstream.api(f"STREAM.INFO.{names.stream}", {"mainspring_doctor": True})
    except (ServerError, EngineUnavailable):
        return True
    return False
