"""Permissions on the NATS server: the subjects that each role needs, and no others.

- submitter: submits, reads and cancels jobs, follows events, and changes schedules, limits and pauses
- worker: all that a submitter does; claims and settles jobs, purges subjects, and creates the consumers of new
  lanes
- operator: all that a submitter does; creates and updates the streams, purges subjects, imports jobs, and makes
  and revokes tokens of HTTP servers

No role may delete or restore a stream: only the administrator of the servers can. The subjects are those that this
package publishes to: `tests/nats/test_permissions.py` runs each role with its permissions and reads the server's
log.

Some permissions are wider than a role needs, because NATS cannot restrict them further. Requests for messages name
a stream, not a subject: a user that may read one job may read all. A record is replaced by publishing to its
subject: a user that may cancel a job may write anything there.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.settings import Role, inbox_of
from mainspring.engines.nats.subject_names import CONNECTIONS, SubjectNames

API = "$JS.API"


class SubjectPermissions(Struct, frozen=True, kw_only=True):
    """The subjects that a role may publish to, and those that it may subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions_of(prefix: str, role: Role) -> SubjectPermissions:
    """Return the subjects that a role may use below a prefix; raise `EngineUnavailable` for an invalid prefix."""
    names = SubjectNames(prefix)
    publish = [*_to_write(names, role), *_to_read(names)]
    if role != "submitter":
        publish.append(f"{API}.STREAM.PURGE.{names.stream}")  # NATS cannot restrict a purge to single subjects
    if role == "worker":
        publish += _to_work(names)
    if role == "operator":
        publish += [
            f"{API}.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE") for stream in _all_streams(names)
        ]
    subscribe = [f"{inbox_of(prefix, role)}.>", f"{names.notifications}*"]
    if role == "worker":
        subscribe.append(f"{names.presence}*")
    return SubjectPermissions(publish=tuple(publish), subscribe=tuple(subscribe))


def _to_write(names: SubjectNames, role: Role) -> list[str]:
    kept_for: dict[str, tuple[Role, ...]] = {
        f"{names.workers}>": ("worker",),
        f"{names.spent}>": ("worker", "operator"),  # who can write here can keep signed jobs from running
        f"{names.moves}>": ("operator",),
        names.tokens: ("operator",),  # who can write here can make a token that allows everything over HTTP
    }
    kept = [subject for subject in names.stored_subjects if role in kept_for.get(subject, (role,))]
    return [*kept, names.events, names.activity, f"{names.requests}>", f"{names.notifications}*"]


def _all_streams(names: SubjectNames) -> tuple[str, ...]:
    return names.stream, names.events_stream, names.activity_stream, names.requests_stream


def _to_read(names: SubjectNames) -> list[str]:
    all_streams = _all_streams(names)
    return [
        f"{API}.INFO",
        *(f"{API}.STREAM.INFO.{stream}" for stream in all_streams),
        *(f"{API}.STREAM.MSG.GET.{stream}" for stream in (names.stream, names.requests_stream)),
        *(f"{API}.DIRECT.GET.{stream}" for stream in all_streams),
        f"{API}.CONSUMER.INFO.{names.stream}.*",
    ]


def _to_work(names: SubjectNames) -> list[str]:
    stream = names.stream
    return [
        # The filter of the consumer is a part of the subject: a worker can create consumers of jobs and reminders.
        *(f"{API}.CONSUMER.CREATE.{stream}.*.{delivered}>" for delivered in (names.ready, names.reminders)),
        f"{API}.CONSUMER.MSG.NEXT.{stream}.*",
        f"$JS.ACK.{stream}.>",
        f"$JS.ACK.*.*.{stream}.>",  # the form of newer servers, with domain and account
        # To find out that another worker has died: its subject, and the question to its server.
        f"{names.presence}*",
        CONNECTIONS,
    ]
