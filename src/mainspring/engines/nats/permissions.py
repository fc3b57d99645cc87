"""Rights on the NATS server: what the account of each role imports, and the subjects that its user may use.

- submitter: submits, reads and cancels jobs, follows events, and changes schedules, limits and pauses
- worker: all that a submitter does; claims and settles jobs, purges subjects, and creates the consumers of new
  lanes
- operator: all that a submitter does; creates and updates the streams, purges subjects, imports jobs, and makes
  and revokes tokens of HTTP servers

JetStream is in an account of its own, the *data account*. Each role has an account, which imports from the data
account exactly the subjects that the role publishes to, as services. So a role cannot let the server write for it:
a reply of the server, to whatever subject the request names, stays in the account of the role. The role's
account has the JetStream API under another name, `imported_api`, because every account answers `$JS.API` itself.

No role may delete or restore a stream: only an administrator can. The subjects are those that this package
publishes to: `tests/nats/test_permissions.py` runs each role with its rights and reads the server's log.

Some rights are wider than a role needs, because NATS cannot restrict them further. Requests for messages name a
stream, not a subject: a user that may read one job may read all. A record is replaced by publishing to its
subject: a user that may cancel a job may write anything there.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.settings import Role, inbox_of
from mainspring.engines.nats.subject_names import API, CONNECTIONS, USER_INFO, SubjectNames

STREAMED = ("DIRECT.GET", "CONSUMER.MSG.NEXT")
"""The requests of the JetStream API that the server may answer with many messages."""


class Service(Struct, frozen=True, kw_only=True):
    """A subject of the data account that the account of a role imports as a service."""

    subject: str
    to: str
    """The subject in the account of the role."""
    is_streamed: bool
    """Whether a request may have many replies."""


class RoleRights(Struct, frozen=True, kw_only=True):
    """What the account of a role imports, and the subjects that its user may publish and subscribe to."""

    services: tuple[Service, ...]
    streams: tuple[str, ...]
    """The subjects whose messages the account receives from the data account."""
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def rights_of(prefix: str, role: Role) -> RoleRights:
    """Return the rights of a role below a prefix; raise `EngineUnavailable` for an invalid prefix."""
    names = SubjectNames(prefix)
    services = tuple(_to_service(names, subject) for subject in _exported(names, role))
    heard = f"{names.notifications}*"
    # answered by the servers, in the account of the role: whether it has JetStream, and which account it is
    publish = [*(service.to for service in services), f"{API}.INFO", USER_INFO]
    subscribe = [f"{inbox_of(prefix, role)}.>", heard]
    if role == "worker":
        # To find out that another worker has died: its subject, and the question to its server.
        publish += [f"{names.presence}*", CONNECTIONS]
        subscribe.append(f"{names.presence}*")
    return RoleRights(services=services, streams=(heard,), publish=tuple(publish), subscribe=tuple(subscribe))


def _to_service(names: SubjectNames, subject: str) -> Service:
    verb = subject.removeprefix(f"{API}.")
    is_api = verb != subject
    return Service(
        subject=subject,
        to=f"{names.api}.{verb}" if is_api else subject,
        is_streamed=is_api and verb.startswith(STREAMED),
    )


def _exported(names: SubjectNames, role: Role) -> list[str]:
    """Return the subjects of the data account that a role publishes to."""
    exported = [*_to_write(names, role), *_to_read(names)]
    if role != "submitter":
        exported.append(f"{API}.STREAM.PURGE.{names.stream}")  # NATS cannot restrict a purge to single subjects
    if role == "worker":
        exported += _to_work(names)
    if role == "operator":
        exported += [
            f"{API}.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE") for stream in _all_streams(names)
        ]
    return exported


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
    ]
