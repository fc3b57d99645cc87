"""Rights on the NATS server: what the account of each role exchanges with the data, and what its user may do.

- submitter: submits, reads and cancels jobs, follows events, and changes schedules, limits and pauses
- worker: all that a submitter does; claims and settles jobs, purges subjects, and creates the consumers of new
  lanes
- operator: all that a submitter does; creates and updates the streams, purges subjects, imports jobs, and makes
  and revokes tokens of HTTP servers

No role is in an account with a stream. The *data account* has the streams of jobs, events, activity and
requests, the *guarded account* has the stream of guarded records. Each role has an account of its own:

- Requests are *services*: the account imports exactly those that the role may send. The reply to a request goes to
  the account of the role, to whatever subject the request names.
- Records of jobs are published through *streams*, which the data account imports: that costs a server nothing,
  while a service costs it about as much as to store the message. The reply, a confirmation without content of
  the client, goes through the data account. So the guarded records are in another account, where no such reply
  arrives.

- Notifications of one role are imported by the accounts of the others, each under a name of its own, because
  the server refuses imports that form a circle.

The account of a role has the JetStream API under another name, `imported_api`, because every account answers
`$JS.API` itself.

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
    """A subject that the account of a role imports as a service."""

    subject: str
    """The subject in the account with the data."""
    to: str
    """The subject in the account of the role."""
    is_guarded: bool
    """Whether the guarded account exports the subject; otherwise the data account does."""
    is_streamed: bool
    """Whether a request may have many replies."""


class RoleRights(Struct, frozen=True, kw_only=True):
    """What the account of a role exchanges with the data, and the subjects of its user."""

    services: tuple[Service, ...]
    """The requests that the account imports."""
    records: tuple[str, ...]
    """The subjects of messages that the data account imports from the account of the role."""
    replies: str
    """The subject of replies to records, which the account of the role imports from the data account."""
    notifications: str
    """The subject of notifications, which the accounts of all roles import from each other."""
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def rights_of(prefix: str, role: Role) -> RoleRights:
    """Return the rights of a role below a prefix; raise `EngineUnavailable` for an invalid prefix."""
    names = SubjectNames(prefix)
    records = (*_to_write(names, role), names.events, names.activity, f"{names.requests}>")
    services = tuple(_to_service(names, subject) for subject in _to_request(names, role))
    # answered by the servers, in the account of the role: whether it has JetStream, and which account it is
    publish = [*records, *(service.to for service in services), f"{API}.INFO", USER_INFO]
    replies, notifications = f"{inbox_of(prefix, role)}.>", f"{names.notifications}*"
    publish.append(notifications)
    subscribe = [replies, notifications, f"{names.imported_notifications}>"]
    if role == "worker":
        # To find out that another worker has died: its subject, and the question to its server.
        publish += [f"{names.presence}*", CONNECTIONS]
        subscribe.append(f"{names.presence}*")
    return RoleRights(
        services=services,
        records=records,
        replies=replies,
        notifications=notifications,
        publish=tuple(publish),
        subscribe=tuple(subscribe),
    )


def _to_service(names: SubjectNames, subject: str) -> Service:
    verb = subject.removeprefix(f"{API}.")
    is_api = verb != subject
    return Service(
        subject=subject,
        to=f"{names.api}.{verb}" if is_api else subject,
        is_guarded=subject.startswith(names.guarded) or subject.endswith(f".{names.guarded_stream}"),
        is_streamed=is_api and verb.startswith(STREAMED),
    )


def _to_write(names: SubjectNames, role: Role) -> list[str]:
    """Return the subjects of records in the main stream that a role writes."""
    kept_for: dict[str, tuple[Role, ...]] = {f"{names.earlier_workers}>": (), f"{names.moves}>": ("operator",)}
    own = [subject for subject in names.stored_subjects if role in kept_for.get(subject, (role,))]
    return [*own, names.worker_numbers] if role == "worker" else own


def _to_request(names: SubjectNames, role: Role) -> list[str]:
    requested = [*_to_guard(names, role), *_to_read(names)]
    if role != "submitter":
        requested.append(f"{API}.STREAM.PURGE.{names.stream}")  # NATS cannot restrict a purge to single subjects
    if role == "worker":
        requested += _to_work(names)
    if role == "operator":
        requested += [
            f"{API}.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE") for stream in names.all_streams
        ]
    return requested


def _to_guard(names: SubjectNames, role: Role) -> list[str]:
    """Return the subjects of guarded records that a role writes."""
    kinds: dict[Role, tuple[str, ...]] = {
        "submitter": ("token-use",),
        "worker": ("token-use", "worker", "spent", "audit"),
        "operator": ("token-use", "token", "spent", "move", "audit", "taken-over"),
    }
    return [f"{names.guarded}{kind}.>" for kind in kinds[role]]


def _to_read(names: SubjectNames) -> list[str]:
    return [
        f"{API}.INFO",
        *(f"{API}.STREAM.INFO.{stream}" for stream in names.all_streams),
        *(
            f"{API}.STREAM.MSG.GET.{stream}"
            for stream in (names.stream, names.guarded_stream, names.requests_stream)
        ),
        *(f"{API}.DIRECT.GET.{stream}" for stream in names.all_streams),
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
