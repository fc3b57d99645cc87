"""The audit trail of the library: the actor of a context, of threads, coroutines and forked children."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import AuditEntry, JobStatus, Keep, Mainspring, Permissions, Retry, Scope, acting_as
from mainspring.jobs.audit import MAX_NAMES, MAX_TEXT, Actor, AuditQuery, clip, clip_names, current_actor
from mainspring.jobs.audit_drafts import ALL_ACTIONS, AuditDraft
from mainspring.jobs.commands import CancelJob, Changed, PauseQueue, PutLimit
from mainspring.testing import time_travel
from tests.support import at_once

START = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Mainspring]:
    with Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}", durability="normal") as app:
        yield app


@dataclass
class Shop:
    """An application with a job function that can be submitted, and one that fails."""

    app: Mainspring

    def __post_init__(self) -> None:
        self.later = self.app.job(name="later", queue="mail")(_do_nothing)
        self.flawed = self.app.job(name="flawed", retry=Retry(max_attempts=1))(_fail)

    def submit(self, job_id: str) -> str:
        return self.later.options(id=job_id, delay=3_600).submit().id


def _do_nothing() -> None:
    return None


def _fail(card: str = "4111") -> None:
    raise RuntimeError("it broke")


@pytest.fixture
def shop(app: Mainspring) -> Shop:
    return Shop(app)


def actions(app: Mainspring, **filters: Any) -> list[tuple[str, str, str | None]]:
    return [(entry.actor, entry.action, entry.target) for entry in reversed(app.audit(1_000, **filters))]


# -- the actor


def test_code_without_an_actor_leaves_no_trace(app: Mainspring, shop: Shop) -> None:
    app.cancel(shop.submit("a"))
    app.queue("mail").pause()
    app.schedules.put("nightly", shop.later, "0 2 * * *")
    app.schedules.trigger("nightly")
    assert app.audit() == []


def test_the_actor_is_that_of_the_innermost_block(app: Mainspring, shop: Shop) -> None:
    with acting_as("alice"):
        app.queue("a").pause()
        with acting_as("bob", source="http", token="id", request_id="r-1"):
            app.queue("b").pause()
        app.queue("c").pause()
    app.queue("d").pause()
    assert actions(app) == [
        ("alice", "queue.pause", "a"),
        ("bob", "queue.pause", "b"),
        ("alice", "queue.pause", "c"),
    ]
    (entry,) = app.audit(actor="bob")
    assert (entry.source, entry.token, entry.request_id) == ("http", "id", "r-1")
    assert app.audit(1)[0].source == "program"


def test_an_actor_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name the user or the program"), acting_as(""):
        pass
    with pytest.raises(ValueError, match="printable"), acting_as("alice\n"):
        pass
    with acting_as("a" * 300):
        actor = current_actor()
        assert actor is not None
        assert len(actor.name) == MAX_TEXT


def test_an_error_in_the_block_ends_the_block(app: Mainspring) -> None:
    with pytest.raises(RuntimeError), acting_as("alice"):
        raise RuntimeError
    app.queue("a").pause()
    assert app.audit() == []


def test_submits_have_no_entries(app: Mainspring, shop: Shop) -> None:
    with acting_as("alice"):
        shop.submit("a")
        shop.later.submit_many([(), ()])
    assert app.audit() == []


def test_a_worker_that_starts_in_the_block_does_not_make_its_handlers_act_as_the_actor(app: Mainspring) -> None:
    @app.job
    def pause() -> None:
        app.queue("other").pause()

    job = pause.submit()
    with acting_as("alice"), app.running():
        job.wait(60)
    assert app.queue("other").is_paused
    assert actions(app, action="queue") == []


def test_the_jobs_of_a_schedule_are_not_triggers(app: Mainspring, shop: Shop) -> None:
    with time_travel(app, start=START) as travel, acting_as("alice"):
        app.schedules.put("hourly", shop.later, "0 * * * *")
        travel.fast_forward(hours=3)
        app.schedules.put("hourly", shop.later, "30 * * * *")  # fires what the old rule has left
        assert actions(app) == [("alice", "schedule.put", "hourly")] * 2


def test_each_thread_has_its_own_actor(app: Mainspring, shop: Shop) -> None:
    people = [f"user-{number}" for number in range(8)]
    ids = {name: [shop.submit(f"{name}-job-{number}") for number in range(25)] for name in people}

    def act(name: str) -> None:
        with acting_as(name):
            for number, job_id in enumerate(ids[name]):
                assert app.cancel(job_id)
                app.queue(f"{name}-{number}").pause()

    at_once(*(partial(act, name) for name in people))
    entries = app.audit(1_000)
    assert len(entries) == 8 * 25 * 2
    assert Counter(entry.actor for entry in entries) == Counter(dict.fromkeys(people, 50))
    for entry in entries:
        assert entry.target is not None
        assert entry.target.startswith(f"{entry.actor}-")


def test_each_coroutine_has_its_own_actor(app: Mainspring, shop: Shop) -> None:
    ids = {name: [shop.submit(f"{name}-{number}") for number in range(10)] for name in ("alice", "bob")}

    async def act(name: str) -> None:
        with acting_as(name):
            await asyncio.gather(*map(app.cancel_async, ids[name]))
            await app.queue(f"{name}-queue").pause_async()
            await app.schedules.put_async(f"{name}-schedule", shop.later, "0 2 * * *")
            handle = await app.schedules.trigger_async(f"{name}-schedule")
            await app.reschedule_async(handle.id, delay=60)
            await app.run_now_async(handle.id)
            await handle.cancel_async()

    async def act_all() -> None:
        await asyncio.gather(act("alice"), act("bob"))
        await app.queue("other").pause_async()

    asyncio.run(act_all())
    entries = asyncio.run(app.audit_async(1_000))
    assert Counter(entry.actor for entry in entries) == {"alice": 16, "bob": 16}
    for entry in entries:
        assert entry.target is not None
        made = app.get(entry.target).schedule if entry.action.startswith("job.") else None
        assert (made or entry.target).startswith(f"{entry.actor}-")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # newer Pythons warn of forks beside threads
def test_a_forked_child_acts_as_its_own_actor(app: Mainspring, shop: Shop) -> None:
    ids = [shop.submit(f"job-{number}") for number in range(4)]
    with acting_as("parent"):
        app.cancel(ids[0])
        child = os.fork()
        if not child:
            code = 1
            try:
                app.cancel(ids[1])
                with acting_as("child"):
                    app.cancel(ids[2])
                app.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        app.cancel(ids[3])
    found = {target: actor for actor, _, target in actions(app)}
    assert found == dict(zip(ids, ("parent", "parent", "child", "parent"), strict=True))


def test_a_context_of_its_own_has_no_actor() -> None:
    with acting_as("alice"):
        assert Context().run(current_actor) is None


# -- changes of many jobs


@pytest.fixture
def letters(app: Mainspring, shop: Shop) -> list[str]:
    ids = [shop.flawed.options(id=f"letter-{number}").submit().id for number in range(5)]
    with app.running():
        for job_id in ids:
            assert app.handle(job_id).wait(60) is JobStatus.FAILED
    return ids


def test_edits_and_replays_name_the_changed_arguments_and_never_their_values(
    app: Mainspring, letters: list[str]
) -> None:
    with acting_as("alice"):
        app.dead_letters.edit(letters[0], {"card": "5222"})
        (copy,) = app.dead_letters.replay(letters[0], changes={"card": "5333"})
        app.dead_letters.replay(type="flawed", limit=3, rate=10, changes={"card": "5444"})
        app.retry(letters[4])
    several, single, edit = app.audit(action="dead_letter")
    assert (edit.target, edit.details) == (letters[0], {"changed": ["card"]})
    assert (single.target, single.jobs, single.details) == (letters[0], (copy,), {"changed": ["card"]})
    assert (several.target, several.count, several.jobs) == (None, 3, tuple(letters[1:4]))
    assert several.details == {"type": "flawed", "limit": 3, "rate": 10, "changed": ["card"]}
    assert app.audit(1)[0].action == "job.retry"
    stored = msgspec.json.encode(app.audit())
    for value in (b"4111", b"5222", b"5333", b"5444"):
        assert value not in stored


def test_a_replay_on_an_event_loop_is_one_entry(app: Mainspring, letters: list[str]) -> None:
    async def replay() -> None:
        with acting_as("alice"):
            await app.dead_letters.replay_async(all=True)

    asyncio.run(replay())
    (entry,) = app.audit()
    assert (entry.count, entry.details, entry.actor) == (5, {"all": True}, "alice")


def test_a_purge_is_one_entry(app: Mainspring, letters: list[str]) -> None:
    with acting_as("alice"):
        app.dead_letters.purge(*letters[:3])
        app.dead_letters.purge(letters[3])
    assert [(entry.target, entry.count) for entry in app.audit()] == [(letters[3], 1), (None, 3)]


def test_tokens_are_named_and_their_secrets_are_not_stored(app: Mainspring) -> None:
    with acting_as("alice"):
        made = app.tokens.create("front end", scopes=["read"])
        app.tokens.revoke(made.info.id)
    revoked, created = app.audit()
    assert (created.action, created.target) == ("token.create", "front end")
    assert created.details == {"token": made.info.id, "scopes": ["read"]}
    assert (revoked.action, revoked.target) == ("token.revoke", "front end")
    assert made.secret.rpartition("_")[2].encode() not in msgspec.json.encode([revoked, created])


# -- drafts


def test_a_draft_that_is_asked_twice_returns_the_same_entry() -> None:
    draft = AuditDraft(Actor(name="alice", source="test"), 1_000, is_bulk=True)
    places = {"a": ("ping", "mail"), "b": ("ping", "mail")}
    commands, done = [CancelJob("a"), CancelJob("b")], [Changed(True, JobStatus.PENDING)] * 2
    first = draft.for_commands(commands, done, places)
    assert draft.for_commands(commands, done, places) == first
    assert first is not None
    assert first.count == 2
    draft.confirm()
    second = draft.for_commands(commands[:1], done[:1], places)
    assert second is not None
    assert (second.id, second.count) == (first.id, 3)


def test_ids_sort_by_time_and_then_by_order() -> None:
    actor = Actor(name="alice", source="test")

    def ids(now: int) -> list[str]:
        draft = AuditDraft(actor, now)
        entries = [draft.for_arrangement(index, PauseQueue("q", is_paused=True), None) for index in range(3)]
        return [entry.id for entry in entries if entry is not None]

    early, late, also_late = ids(1_000), ids(2_000), ids(2_000)
    assert sorted(also_late + early + late) == early + late + also_late
    assert ids(1_000) > early


def test_too_many_types_are_all_types() -> None:
    draft = AuditDraft(Actor(name="alice", source="test"), 1_000, is_bulk=True)
    number = MAX_NAMES + 1
    commands = [CancelJob(f"job-{each}") for each in range(number)]
    places = {command.id: (f"type-{each}", "mail") for each, command in enumerate(commands)}
    entry = draft.for_commands(commands, [Changed(True, JobStatus.PENDING)] * number, places)
    assert entry is not None
    assert (entry.types, entry.queues) == (None, ("mail",))


def test_a_limit_says_its_numbers() -> None:
    draft = AuditDraft(Actor(name="alice", source="test", sudo_user="bob"), 1_000)
    entry = draft.for_arrangement(0, PutLimit("few", 3, 60_000_000), None)
    assert entry is not None
    assert (entry.action, entry.details) == ("limit.put", {"most": 3, "per": 60, "sudo_user": "bob"})
    assert entry.action in ALL_ACTIONS


def test_long_texts_are_cut() -> None:
    assert clip("a" * MAX_TEXT) == "a" * MAX_TEXT
    assert clip("a" * (MAX_TEXT + 1)) == "a" * (MAX_TEXT - 3) + "..."
    assert clip_names({"b", "a"}) == ["a", "b"]
    assert len(clip_names([str(number) for number in range(100)])) == MAX_NAMES


# -- reading


def entry_about(**fields: Any) -> AuditEntry:
    given: dict[str, Any] = {
        "id": "1",
        "at": START,
        "actor": "alice@web-1",
        "action": "job.cancel",
        "target": "job",
    }
    return AuditEntry(**(given | fields))


@pytest.mark.parametrize(
    ("types", "queues", "entry", "is_visible"),
    [
        (None, None, {}, True),
        (None, None, {"types": ("ping",), "queues": ("mail",)}, True),
        (["ping"], None, {}, False),
        (["ping"], None, {"types": ("ping",)}, True),
        (["ping"], None, {"types": ("ping", "pong")}, False),
        (["ping", "pong"], None, {"types": ("ping", "pong")}, True),
        (None, ["mail"], {"types": ("ping",), "queues": ("mail",)}, True),
        (None, ["mail"], {"queues": ("mail",)}, True),
        (None, ["mail"], {"types": ("ping",)}, False),
        (["ping"], ["mail"], {"types": ("ping",), "queues": ("mail", "news")}, False),
        (["ping"], ["mail"], {"queues": ("mail",)}, False),
    ],
)
def test_a_restricted_reader_sees_only_changes_of_its_types_and_queues(
    types: list[str] | None,
    queues: list[str] | None,
    entry: dict[str, Any],
    is_visible: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    permissions = Permissions(
        scopes=frozenset({Scope.READ}),
        types=None if types is None else frozenset(types),
        queues=None if queues is None else frozenset(queues),
    )
    assert entry_about(**entry).is_visible_to(permissions) is is_visible
    assert not entry_about(**entry).is_visible_to(Permissions(scopes=frozenset({Scope.SUBMIT})))


def test_a_page_for_a_restricted_reader_is_full_and_has_a_next_page(app: Mainspring) -> None:
    with acting_as("alice"):
        for number in range(6):
            app.queue("mail").pause()
            app.queue("secret").pause()
            app.queue("mail").resume()
            app.queue("secret").resume()
            assert len(app.audit(100)) == 4 * (number + 1)
    reader = Permissions(scopes=frozenset({Scope.READ}), queues=frozenset({"mail"}))
    first = app.manager().audit(AuditQuery(limit=8, reader=reader))
    second = app.manager().audit(AuditQuery(limit=8, reader=reader, before=first[-1].id))
    assert ([entry.target for entry in first], len(second)) == (["mail"] * 8, 4)
    assert first + second == app.manager().audit(AuditQuery(limit=100, reader=reader))


def test_only_entries_about_jobs_are_found_by_the_id_of_a_job() -> None:
    assert entry_about().concerns("job")
    assert entry_about(action="dead_letter.purge").concerns("job")
    assert not entry_about(action="queue.pause").concerns("job")
    assert entry_about(action="schedule.trigger", target="nightly", jobs=("job",)).concerns("job")


def test_since_is_included_and_until_is_not() -> None:
    at = int(START.timestamp() * 1_000_000)
    entry = entry_about()
    assert AuditQuery(limit=1, since=at).matches(entry)
    assert not AuditQuery(limit=1, since=at + 1).matches(entry)
    assert AuditQuery(limit=1, until=at + 1).matches(entry)
    assert not AuditQuery(limit=1, until=at).matches(entry)


def test_a_limit_must_be_positive(app: Mainspring) -> None:
    with pytest.raises(ValueError, match="limit"):
        app.audit(0)


def test_workers_delete_what_keep_does_not_allow(app: Mainspring) -> None:
    app.keep = Keep(most_audited=2)
    with time_travel(app, start=START), acting_as("alice"):
        for queue in "abc":
            app.queue(queue).pause()
        app.prune()
        assert [entry.target for entry in app.audit()] == ["c", "b"]


def test_entries_are_kept_for_ninety_days(app: Mainspring) -> None:
    with time_travel(app, start=START) as travel, acting_as("alice"):
        app.queue("a").pause()
        travel.fast_forward(days=89)
        app.prune()
        assert len(app.audit()) == 1
        travel.fast_forward(days=2)
        app.prune()
        assert app.audit() == []


def test_keep_checks_its_values() -> None:
    with pytest.raises(ValueError, match="most_audited"):
        Keep(most_audited=0)
    assert Keep(audit=None, most_audited=None).retention().audit is None
    assert Keep(audit=timedelta(days=1)).retention().audit == 86_400_000_000
