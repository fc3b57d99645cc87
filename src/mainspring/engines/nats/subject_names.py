"""Subject names: below a prefix P, a subject for every record and message that is stored.

The main stream has all that changes together with jobs:

    P.job.<job>                         the record of a job
    P.at.<kind>.<key>                   a scheduled message: the server publishes it to its target when it is due
    P.ready.<queue>.<type>.<priority>.<job>   a job to be claimed; each lane has a consumer shared by all workers
    P.chore.<kind>.<key>                a reminder for any worker
    P.gate.<family>.<limiter>           the record of a limiter: a sequence, a bucket of a limit, or a queue
    P.line.<limiter>.<group>.<job>      a job that waits for a limiter
    P.key.<key>                         the jobs that hold a unique key
    P.occurrence.<schedule>.<n>         the job of an occurrence
    P.schedule.<name>, P.skipped.<name> the record of a schedule, and its occurrences without a job
    P.worker.new                        its revisions are the numbers of new workers
    P.lane.<queue>.<type>.<priority>    a lane
    P.move.<move>                       the progress of a migration
    P.settings                          pauses, limits, dead-letter handlers and redacted parameters
    P.listeners                         until when events are written
    P.audit.<entry>                     an entry of the audit trail

The guarded stream has records that no message schedule can write, each with kind and key:

    P.guarded.token.<id>                a token of HTTP servers
    P.guarded.token-use.<id>            when it was last used
    P.guarded.worker.<n>                the heartbeat of a worker
    P.guarded.spent.<id>                the envelope of a signed job that has ended
    P.guarded.move.<move>               the stage of a migration
    P.guarded.audit.<entry>             an entry of the audit trail about a token or a worker
    P.guarded.taken-over.records        the records of earlier versions have been copied from the main stream

Events, activity and idempotency keys (P.request.<caller>.<key>) have streams of their own.

A subject has one message at most: publishing again replaces it. Names that users choose are encoded as tokens
without dots, blanks and wildcards.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b

from mainspring.errors import EngineUnavailable

API = "$JS.API"
"""The subject of the JetStream API in an account with JetStream."""
USER_INFO = "$SYS.REQ.USER.INFO"
"""The subject on which the server answers which user and account this connection has."""
CONNECTIONS = "$SYS.REQ.ACCOUNT.PING.CONNZ"
"""The subject on which all servers answer which connections of this account they have."""
DEFAULT_PREFIX = "mainspring"
LONG_TOKEN = 300
"""Tokens with more characters are encoded as base64, so that no subject exceeds the limit of the server."""
REMEMBERED = 4_096
"""How many hashes a process remembers. A job under a limit needs those of its limiter about twenty times."""
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(r"=([0-9A-F]{2})")


def to_token(name: str) -> str:
    """Encode a name as a token of a subject. Different names have different tokens."""
    if name.isascii() and name.isalnum():  # nearly all ids are
        return name
    token = _UNSAFE.sub(lambda match: b"=%02X" % match.group()[0], name.encode()).decode()
    if len(token) <= LONG_TOKEN:
        return token or "="
    return "==" + urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def from_token(token: str) -> str:
    """Decode a token that `to_token` has made to its name."""
    if "=" not in token:
        return token
    if token == "=":
        return ""
    if token.startswith("=="):
        encoded = token[2:]
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    raw = _ESCAPED.sub(lambda match: chr(int(match.group(1), 16)), token)
    return raw.encode("latin-1").decode()


def imported_api(prefix: str) -> str:
    """Return the subject under which the account of a role imports the JetStream API."""
    return f"{prefix}.api"


@lru_cache(REMEMBERED)
def digest(*parts: str) -> str:
    """Return a token of 32 characters for these names: their hash of 128 bits, so collisions do not occur."""
    return blake2b("\x00".join(parts).encode(), digest_size=16).hexdigest()


@lru_cache(REMEMBERED)
def _lane_tokens(queue: str, type_: str, priority: int) -> str:
    return f"{to_token(queue)}.{to_token(type_)}.{priority}"


class SubjectNames:
    """The names of the subjects below one prefix."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise EngineUnavailable(
                engine=f"prefix {prefix!r}",
                reason="the prefix of a NATS store must have 1 to 64 ASCII letters, digits, '-' and '_'",
                remedy="choose another one, such as 'shop-production'",
            )
        self.prefix = prefix
        self.stream = prefix
        self.guarded_stream = f"{prefix}-guarded"
        self.events_stream = f"{prefix}-events"
        self.activity_stream = f"{prefix}-activity"
        self.requests_stream = f"{prefix}-requests"
        self.jobs = f"{prefix}.job."
        self.ready = f"{prefix}.ready."
        self.reminders = f"{prefix}.chore."
        self.limiters = f"{prefix}.gate."
        self.lanes = f"{prefix}.lane."
        self.schedules = f"{prefix}.schedule."
        self.worker_numbers = f"{prefix}.worker.new"
        self.moves = f"{prefix}.move."
        self.settings = f"{prefix}.settings"
        self.listeners = f"{prefix}.listeners"
        self.audit = f"{prefix}.audit."
        self.guarded = f"{prefix}.guarded."
        self.workers = f"{self.guarded}worker."
        self.spent = f"{self.guarded}spent."
        self.tokens = f"{self.guarded}token."
        self.token_uses = f"{self.guarded}token-use."
        self.guarded_audit = f"{self.guarded}audit."
        self.open_moves = f"{self.guarded}move."
        self.earlier_workers = f"{prefix}.worker."
        """Where earlier versions store heartbeats: in the main stream."""
        self.events = f"{prefix}.event"
        self.activity = f"{prefix}.activity"
        """The counts of what processes did, in a stream of their own."""
        self.requests = f"{prefix}.request."
        """The requests with an idempotency key, in a stream of their own."""
        self.api = imported_api(prefix)
        self.notifications = f"{prefix}.note."
        """Not stored: notifications to the processes that are connected."""
        self.presence = f"{prefix}.presence."
        """Not stored: each process with workers listens on a subject of its own, see `presence.py`."""

    @property
    def stored_subjects(self) -> list[str]:
        """The subjects whose messages the main stream stores."""
        kinds = ("job", "at", "ready", "chore", "gate", "line", "key", "occurrence", "schedule", "skipped")
        more = [self.settings, self.listeners]
        return [*(f"{self.prefix}.{kind}.>" for kind in (*kinds, "worker", "lane", "move", "audit")), *more]

    @property
    def all_streams(self) -> tuple[str, ...]:
        """The names of all streams."""
        return self.stream, self.guarded_stream, self.events_stream, self.activity_stream, self.requests_stream

    def job(self, job_id: str) -> str:
        """Return the subject of a job's record."""
        return self.jobs + to_token(job_id)

    def lane(self, queue: str, type_: str, priority: int) -> str:
        """Return the subject of a lane's record; a lane has the jobs of one queue, type and priority."""
        return f"{self.lanes}{_lane_tokens(queue, type_, priority)}"

    def ready_of(self, queue: str, type_: str, priority: int, job_id: str) -> str:
        """Return the subject of the message that offers a job to the workers."""
        return f"{self.ready}{_lane_tokens(queue, type_, priority)}.{to_token(job_id)}"

    @property
    def storage_test(self) -> str:
        """The subject of a message by which a process finds out whether the server stores messages."""
        return self.scheduled("test", "storage")

    @property
    def all_scheduled(self) -> str:
        """The wildcard of all scheduled messages."""
        return f"{self.prefix}.at.>"

    def scheduled(self, kind: str, key: str) -> str:
        """Return the subject of a scheduled message, which the server publishes to its target when it is due."""
        return f"{self.prefix}.at.{kind}.{to_token(key)}"

    def reminder(self, kind: str, key: str) -> str:
        """Return the subject of a reminder: a message to any worker, such as that a job expires now."""
        return f"{self.reminders}{kind}.{to_token(key)}"

    def limiter(self, family: str, limiter: str) -> str:
        """Return the subject of the record of a limiter: a sequence, a limit for one key, or a queue."""
        return f"{self.limiters}{digest(family)}.{digest(limiter)}"

    def limiters_of_family(self, family: str) -> str:
        """Return the subject, with a wildcard, of the records of a limit for all its keys.

        `family` is the limit's name.
        """
        return f"{self.limiters}{digest(family)}.*"

    def waiting_job(self, limiter: str, group: str, job_id: str) -> str:
        """Return the subject of the message of a job that waits for a limiter: a sequence, a limit or a queue."""
        return f"{self.prefix}.line.{digest(limiter)}.{digest(group)}.{to_token(job_id)}"

    def line(self, limiter: str, group: str) -> str:
        """Return the subject, with a wildcard, of the messages of jobs that wait for a limiter and are under the
        same limits.
        """
        return f"{self.prefix}.line.{digest(limiter)}.{digest(group)}.*"

    def limiter_of_line(self, subject: str) -> str | None:
        """Return the token of the limiter (a sequence, a limit or a queue) for which a job waits.

        `subject` is a result of `waiting_job`; return None for any other subject. The token is the last one of the
        subject of the limiter's record: see `limiter`.
        """
        prefix = f"{self.prefix}.line."
        return subject.removeprefix(prefix).partition(".")[0] if subject.startswith(prefix) else None

    def key(self, unique_key: str) -> str:
        """Return the subject of the record that has the ids of the jobs with a unique key."""
        return f"{self.prefix}.key.{digest(unique_key)}"

    def occurrence(self, schedule: str, number: int) -> str:
        """Return the subject of the record that has the id of the job of one occurrence of a schedule."""
        return f"{self.prefix}.occurrence.{to_token(schedule)}.{number}"

    def schedule(self, name: str) -> str:
        """Return the subject of a schedule's record."""
        return self.schedules + to_token(name)

    def skipped(self, schedule: str) -> str:
        """Return the subject of the record of those occurrences of a schedule for which no job was made."""
        return f"{self.prefix}.skipped.{to_token(schedule)}"

    def request(self, caller: str, key: str) -> str:
        """Return the subject of a request with an idempotency key."""
        return f"{self.requests}{digest(caller)}.{digest(key)}"

    def requests_of(self, caller: str) -> str:
        """Return the subject of all requests of a caller, with a wildcard."""
        return f"{self.requests}{digest(caller)}.*"

    def token(self, token_id: str) -> str:
        """Return the subject of a token of HTTP servers."""
        return self.tokens + to_token(token_id)

    def token_use(self, token_id: str) -> str:
        """Return the subject of the time at which a token was last used."""
        return self.token_uses + to_token(token_id)

    def spent_envelope(self, signed_id: str) -> str:
        """Return the subject of the message that remembers the signature (envelope) of an ended job."""
        return self.spent + digest(signed_id)

    @property
    def taken_over(self) -> str:
        """The mark that the guarded records of earlier versions have been copied."""
        return f"{self.guarded}taken-over.records"

    @property
    def imported_notifications(self) -> str:
        """Where the account of a role has the notifications of other roles, see `permissions.py`."""
        return f"{self.prefix}.heard."

    @property
    def earlier_spent(self) -> str:
        """Where earlier versions store the envelopes of ended signed jobs: in the main stream."""
        return f"{self.prefix}.spent."

    def earlier_spent_envelope(self, signed_id: str) -> str:
        """Return the subject under which earlier versions remember the signature of an ended job."""
        return self.earlier_spent + digest(signed_id)

    @property
    def earlier_tokens(self) -> str:
        """The record in which earlier versions store all tokens."""
        return f"{self.prefix}.tokens"

    @property
    def earlier_token_uses(self) -> str:
        """The record in which earlier versions store the times of the last use of all tokens."""
        return f"{self.prefix}.token-uses"

    def guarded_audit_entry(self, entry: str) -> str:
        """Return the subject of an entry of the audit trail about a token or a worker."""
        return self.guarded_audit + entry

    def open_move(self, move_id: str) -> str:
        """Return the subject of the stage of a migration."""
        return self.open_moves + to_token(move_id)

    def audit_entry(self, entry: str) -> str:
        """Return the subject of an entry of the audit trail."""
        return self.audit + entry

    def worker(self, number: int) -> str:
        """Return the subject of a worker's heartbeat."""
        return f"{self.workers}{number}"

    def earlier_worker(self, number: int) -> str:
        """Return the subject under which earlier versions store the heartbeat of a worker."""
        return f"{self.earlier_workers}{number}"
