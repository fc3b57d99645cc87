"""Names on a NATS server, and addresses of servers: any name becomes a safe token, and no secret is printed."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.app import Mainspring
from mainspring.engines.nats.settings import NatsSettings, parse_url, without_password, without_secrets
from mainspring.engines.nats.subject_names import SubjectNames, digest, from_token, to_token
from mainspring.errors import EngineUnavailable

SAFE = re.compile(r"[A-Za-z0-9_=~-]+")
LONGEST_LINE = 4_096  # what the server reads before the data of a message
ROOM_FOR_THE_REST = 256  # the verb, the address for the answer, sizes
SECRET = "s3cr3t"

names = st.text(max_size=200)


# -- tokens


@given(names)
@example("")
@example("\0")
@example("=00")
@example("=")
@example("a.b >*")
def test_a_token_is_one_safe_part_of_a_subject_and_tells_its_name(name: str) -> None:
    token = to_token(name)
    assert SAFE.fullmatch(token)
    assert from_token(token) == name


@given(names, names)
@example("", "\0")
@example(".", "=2E")
@example("a", "A")
def test_different_names_have_different_tokens(name: str, other: str) -> None:
    assert (to_token(name) == to_token(other)) == (name == other)


def test_names_that_are_safe_stay_readable() -> None:
    assert to_token("order-42_B") == "order-42_B"


@given(names, names, names)
@example("🕰" * 200, "🕰" * 200, "🕰" * 200)
@example("." * 200, "é" * 200, "注" * 200)
def test_no_subject_is_longer_than_the_server_reads(queue: str, handler: str, job: str) -> None:
    subject = SubjectNames("p" * 64).ready_of(queue, handler, 2, job)
    assert len(subject) + ROOM_FOR_THE_REST < LONGEST_LINE


@given(st.lists(names, min_size=2, max_size=4, unique=True))
def test_no_two_things_share_a_subject(parts: list[str]) -> None:
    names_ = SubjectNames("p")
    subjects = [
        subject
        for name in parts
        for subject in (
            names_.job(name),
            names_.scheduled("job", name),
            names_.scheduled("expire", name),
            names_.reminder("enter", name),
            names_.limiter(name, "gate"),
            names_.limiter("family", name),
            names_.waiting_job("gate", "group", name),
            names_.key(name),
            names_.occurrence(name, 7),
            names_.schedule(name),
            names_.skipped(name),
            names_.ready_of(name, "type", 1, "job"),
            names_.ready_of("queue", name, 1, "job"),
            names_.ready_of("queue", "type", 1, name),
        )
    ]
    assert len(set(subjects)) == len(subjects)


def test_parts_of_a_digest_are_told_apart() -> None:
    assert digest("a", "b") != digest("ab")
    assert digest("a", "b") != digest("b", "a")
    assert digest("a") == digest("a")


def test_everything_that_is_kept_is_in_one_stream_and_news_are_in_none() -> None:
    names_ = SubjectNames("p")
    patterns = [re.escape(subject).replace(">", ".+") for subject in names_.stored_subjects]

    def is_kept(subject: str) -> bool:
        return any(re.fullmatch(pattern, subject) for pattern in patterns)

    kept = [names_.job("a"), names_.scheduled("job", "a"), names_.reminder("enter", "a"), names_.limiter("f", "g")]
    kept += [names_.waiting_job("g", "", "a"), names_.key("k"), names_.occurrence("s", 1), names_.schedule("s")]
    kept += [names_.skipped("s"), names_.lane("q", "t", 1), names_.ready_of("q", "t", 1, "a")]
    assert all(is_kept(subject) for subject in (*kept, names_.settings, names_.listeners))
    guarded = [names_.worker(1), names_.guarded_audit_entry("e"), f"{names_.tokens}a", f"{names_.spent}a"]
    assert all(subject.startswith(names_.guarded) and not is_kept(subject) for subject in guarded)
    assert not is_kept(f"{names_.notifications}lane")
    assert not is_kept(names_.events)


# -- prefixes


@pytest.mark.parametrize("prefix", ["mainspring", "shop-production", "A_1", "p" * 64])
def test_a_prefix_begins_every_name(prefix: str) -> None:
    names_ = SubjectNames(prefix)
    assert all(subject.startswith(f"{prefix}.") for subject in names_.stored_subjects)
    assert (names_.stream, names_.events_stream) == (prefix, f"{prefix}-events")


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "*", ">", "größe", "a\n", "p" * 65, "a/b"])
def test_a_prefix_that_cannot_be_part_of_a_subject_is_refused(prefix: str) -> None:
    with pytest.raises(EngineUnavailable) as error:
        SubjectNames(prefix)
    assert str(error.value) == (
        f"prefix {prefix!r}: the prefix of a NATS store must have 1 to 64 ASCII letters, digits, '-' and '_'; "
        "choose another one, such as 'shop-production'"
    )


# -- addresses


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("nats://host", ["nats://host"]),
        ("nats://host:4222", ["nats://host:4222"]),
        ("nats://a:4222,b:4223, c", ["nats://a:4222", "nats://b:4223", "nats://c"]),
        ("nats://a,nats://b", ["nats://a", "nats://b"]),
        ("tls://a,b?prefix=shop", ["tls://a", "tls://b"]),
        ("nats://user:password@host", ["nats://user:password@host"]),
    ],
)
def test_a_url_names_servers(url: str, servers: list[str]) -> None:
    assert parse_url(url, NatsSettings())[0] == servers


def test_settings_of_a_url_go_before_those_that_were_given() -> None:
    given_ = NatsSettings(prefix="a", lease=5.0, user="ann")
    _, settings = parse_url("nats://host?prefix=b&replicas=3&timeout=2.5&projection=/tmp/x.db", given_)
    assert (settings.prefix, settings.replicas, settings.timeout) == ("b", 3, 2.5)
    assert (settings.lease, settings.user, settings.projection) == (5.0, "ann", "/tmp/x.db")


@pytest.mark.parametrize(
    "url", ["nats://", "nats://,", "nats://:4222", "nats://?prefix=a", "nats://user:p@", "nats://a:b"]
)
def test_a_url_without_a_server_is_refused(url: str) -> None:
    with pytest.raises(
        EngineUnavailable, match="it names no server, or an invalid one; write nats://host:4222; separate several"
    ):
        parse_url(url, NatsSettings())


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("color=red", "there is no setting 'color'"),
        ("Prefix=a", "there is no setting 'Prefix'"),
        ("password=hunter2", "there is no setting 'password'"),
        ("replicas=many", "the setting replicas='many' is invalid"),
        ("lease=", "the setting lease='' is invalid"),
    ],
)
def test_a_setting_that_is_not_understood_is_refused(setting: str, problem: str) -> None:
    with pytest.raises(EngineUnavailable, match="; settings in a URL are prefix, replicas, lease") as refusal:
        parse_url(f"nats://host?{setting}", NatsSettings())
    assert problem in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


# -- secrets


ADDRESSES = [
    f"nats://ann:{SECRET}@host:4222",
    f"nats://{SECRET}@host",
    f"nats://a:{SECRET}@one:4222,b:{SECRET}@two:4222",
    f"nats://a:{SECRET}@one,nats://b:{SECRET}@two",
    f"tls://ann:{SECRET}%40@host",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_no_secret_of_a_url_is_printed(url: str) -> None:
    servers, _ = parse_url(url, NatsSettings())
    assert SECRET not in without_secrets(servers)
    assert SECRET not in without_password(url)
    assert SECRET not in repr(Mainspring(url))
    with pytest.raises(EngineUnavailable) as error:
        parse_url(f"{url}?color=red", NatsSettings())
    assert SECRET not in str(error.value)


def test_servers_are_told_with_their_ports() -> None:
    assert without_secrets(["nats://ann:x@a", "nats://b:4333"]) == "a:4222,b:4333"


def test_no_secret_of_the_settings_is_printed() -> None:
    settings = NatsSettings(user="ann", password=SECRET, token=SECRET, nkeys_seed=SECRET)
    assert "ann" in repr(settings)
    assert SECRET not in repr(settings)


def test_a_role_says_where_answers_come_and_what_a_process_need_not_try() -> None:
    _, worker = parse_url("nats://host?prefix=shop&role=worker", NatsSettings())
    assert worker.inbox == "_INBOX_shop_worker"
    assert rights(worker) == (True, True, False, True)
    submitter = NatsSettings(role="submitter", inbox_prefix="_MINE")
    assert submitter.inbox == "_MINE"
    assert rights(submitter) == (False, False, False, False)
    no_role = NatsSettings()
    assert no_role.inbox == "_INBOX"
    assert rights(no_role) == (True, True, True, True)
    assert rights(NatsSettings(prepared=True)) == (True, False, False, True)


def rights(settings: NatsSettings) -> tuple[bool, ...]:
    return settings.may_claim, settings.creates_consumers, settings.creates_streams, settings.may_purge


def test_a_role_that_there_is_not_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match="role 'boss': there is no such role; use submitter, worker"):
        parse_url("nats://host?role=boss", NatsSettings())
