"""Ways to let a NATS server publish for a client: a schedule, the reply to a request, a delivery, a trace.

The server does not look at the rights of the client for such a message. A way gets a target and a body that the
target would understand.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from mainspring.engines.nats.permissions import rights_of
from mainspring.engines.nats.settings import ROLES, Role
from mainspring.engines.nats.subject_names import API, SubjectNames, digest
from tests.support import PATIENCE

OWN = "shop.key.own"
"""The subject of a record that every role may write."""
LANE = "shop.ready.own.own.1"

Way: TypeAlias = Callable[["Attacker", str, bytes], Awaitable[None]]


class Attacker:
    """A user of NATS who lets the server publish. `api` is the subject of the JetStream API for this user."""

    def __init__(self, client: Client, api: str) -> None:
        self.client = client
        self.api = api
        self.errors: list[str] = []

    async def ask(self, subject: str, body: object = None) -> dict[str, Any]:
        """Send a request and return the reply; an empty one if no reply comes."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        try:
            reply = await self.client.request(subject, data, timeout=PATIENCE)
        except (NoRespondersError, NatsTimeoutError):
            return {}
        return dict(json.loads(reply.data))

    async def store(self, subject: str, body: bytes) -> None:
        """Store a record, and wait until it is stored."""
        await self.ask(subject, body)

    async def request(self, subject: str, reply: str, body: object = b"") -> None:
        """Send a request whose reply goes to any subject."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.client.publish(subject, data, reply=reply)


async def reply_of_direct_get(user: Attacker, target: str, body: bytes) -> None:
    await user.store(OWN, body)
    await user.request(f"{user.api}.DIRECT.GET.shop", target, {"last_by_subj": OWN})


async def replies_of_direct_gets(user: Attacker, target: str, body: bytes) -> None:
    await user.store(OWN, body)
    await user.request(f"{user.api}.DIRECT.GET.shop", target, {"multi_last": [OWN]})
    await user.request(f"{user.api}.DIRECT.GET.shop", target, {"next_by_subj": OWN, "batch": 3})


async def replies_of_the_api(user: Attacker, target: str, body: bytes) -> None:
    for verb in ("INFO", "STREAM.INFO.shop", "CONSUMER.INFO.shop.none", "STREAM.PURGE.shop-none"):
        await user.request(f"{user.api}.{verb}", target)
    await user.store(OWN, body)
    await user.request(f"{user.api}.STREAM.MSG.GET.shop", target, {"last_by_subj": OWN})


async def reply_of_a_publish(user: Attacker, target: str, body: bytes) -> None:
    await user.request(OWN, target, body)


async def reply_of_the_servers(user: Attacker, target: str, _body: bytes) -> None:
    await user.request("$SYS.REQ.USER.INFO", target)
    await user.request("$SYS.REQ.ACCOUNT.PING.CONNZ", target)


async def trace(user: Attacker, target: str, body: bytes) -> None:
    await user.client.publish(OWN, body, headers={"Nats-Trace-Dest": target})


async def pulled_messages(user: Attacker, target: str, body: bytes) -> None:
    consumer = await make_consumer(user, target, {})
    await user.store(f"{LANE}.{digest(target)}", body)
    await user.request(f"{user.api}.CONSUMER.MSG.NEXT.shop.{consumer}", target, {"batch": 1, "expires": 10**9})


async def deliveries_of_a_push_consumer(user: Attacker, target: str, body: bytes) -> None:
    await user.store(f"{LANE}.{digest(target)}", body)
    await make_consumer(user, target, {"deliver_subject": target})


async def deliveries_of_an_ordered_consumer(user: Attacker, target: str, body: bytes) -> None:
    await user.store(f"{LANE}.{digest(target)}", body)
    ordered = {"deliver_subject": target, "flow_control": True, "idle_heartbeat": 10**9, "mem_storage": True}
    await make_consumer(user, target, ordered)


async def make_consumer(user: Attacker, target: str, config: dict[str, object]) -> str:
    """Make a consumer of one message, in a lane of its own, and return its name."""
    name = digest(target, *map(str, config))
    subject = f"{LANE}.{digest(target)}"
    wanted = {"name": name, "filter_subject": subject, "ack_policy": "explicit", "inactive_threshold": 2 * 10**9}
    await user.ask(
        f"{user.api}.CONSUMER.CREATE.shop.{name}.{subject}", {"stream_name": "shop", "config": wanted | config}
    )
    return name


async def schedule(user: Attacker, target: str, body: bytes) -> None:
    """Let the server publish at a time that has passed. It refuses a target in another stream at once."""
    headers = {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": target}
    await user.client.request(f"shop.at.{digest(target)}", body, timeout=PATIENCE, headers=headers)


FOR_ALL: tuple[Way, ...] = (
    schedule,
    reply_of_direct_get,
    replies_of_direct_gets,
    replies_of_the_api,
    reply_of_a_publish,
    reply_of_the_servers,
    trace,
)
FOR_WORKERS: tuple[Way, ...] = (
    pulled_messages,
    deliveries_of_a_push_consumer,
    deliveries_of_an_ordered_consumer,
)


def ways_of(role: Role) -> tuple[Way, ...]:
    """Return the ways that a role could try."""
    return (*FOR_ALL, *FOR_WORKERS) if role == "worker" else FOR_ALL


STREAM = {"name": "shop", "subjects": ["elsewhere"], "retention": "workqueue"}
API_TARGETS: dict[str, bytes] = {
    "STREAM.DELETE.shop": b"",
    "STREAM.PURGE.shop": b"",
    "STREAM.PURGE.shop-requests": b"",
    "STREAM.UPDATE.shop": json.dumps(STREAM).encode(),
    "STREAM.CREATE.evil": json.dumps({"name": "evil", "subjects": ["evil"]}).encode(),
    "STREAM.MSG.DELETE.shop": b'{"seq": 1}',
    "STREAM.SNAPSHOT.shop": b'{"deliver_subject": "evil"}',
    "STREAM.RESTORE.evil": b'{"config": {"name": "evil", "subjects": ["evil"]}, "state": {}}',
    "STREAM.LEADER.STEPDOWN.shop": b"",
    "STREAM.PEER.REMOVE.shop": b'{"peer": "mainspring"}',
    "CONSUMER.DELETE.shop.kept": b"",
    "CONSUMER.PAUSE.shop.kept": b'{"pause_until": "2100-01-01T00:00:00Z"}',
    "CONSUMER.CREATE.shop.evil.shop.job.>": json.dumps(
        {
            "stream_name": "shop",
            "config": {"name": "evil", "filter_subject": "shop.job.>", "ack_policy": "explicit"},
        }
    ).encode(),
    "ACCOUNT.PURGE.SHOP": b"",
}
"""Requests that would change the streams, with bodies that the server accepts."""


def targets_of(role: Role) -> dict[str, bytes]:
    """Return the subjects that a role may not publish to, with bodies: those of other roles, and of the API."""
    names = SubjectNames("shop")
    everything = {service.subject for other in ROLES for service in rights_of("shop", other).services}
    own = rights_of("shop", role)
    reserved = everything - {service.subject for service in own.services} | {"shop.unknown", "shop.guarded.evil"}
    literal = {subject.replace(">", "evil").replace("*", "evil"): b"evil" for subject in reserved}
    apis = {f"{api}.{verb}": body for api in (API, names.api) for verb, body in API_TARGETS.items()}
    return {target: body for target, body in (literal | apis).items() if target not in own.publish}


async def wait_until_answered(user: Attacker) -> None:
    """Wait until the server has answered all requests that this user has sent before.

    Replies of a stream leave the server in order, so the reply to a later request comes after them.
    """
    await user.ask(f"{user.api}.STREAM.INFO.shop")
    assert await user.ask(OWN, b"the end")
    inbox = user.client.new_inbox()
    replies = await user.client.subscribe(inbox)
    await user.request(f"{user.api}.DIRECT.GET.shop", inbox, {"last_by_subj": OWN})
    await replies.next_msg(PATIENCE)
    await replies.unsubscribe()
