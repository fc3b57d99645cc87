"""Lost replies: no client knows whether a change was stored, and no job is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random

import pytest

from mainspring import JobStatus
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.write_batch import Write
from tests.nats.apps import mixed
from tests.nats.chaos_workers import projection_in
from tests.nats.scenario_chaos import submit_all_kinds
from tests.nats.servers import Servers
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE, amount

pytestmark = pytest.mark.long

ENOUGH = 21  # lost answers
SEEDS = amount([31], thorough=[31, 32, 33])


def lose_answers(engine: NatsEngine, share: float, chance: Random, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the answers to some changes be lost, after they were stored; return what those were about."""
    jetstream = engine._jetstream
    commit = jetstream._commit
    lost: list[str] = []

    async def commit_and_lose(writes: Sequence[Write]) -> int | None:
        first = await commit(writes)
        if (
            first is not None
            and not writes[0].subject.startswith(engine._names.workers)
            and chance.random() < share
        ):
            lost.append(writes[0].subject)
            return None
        return first

    monkeypatch.setattr(jetstream, "_commit", commit_and_lose)
    return lost


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_whose_answers_are_lost_lose_no_job_and_start_none_twice(
    seed: int, tmp_path: Path, nats_server: Servers, nats_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)
    mixed.app.url = f"{nats_server.url}?prefix={nats_prefix}&lease=10&timeout=60&{projection_in(tmp_path)}"
    with Sandbox(tmp_path) as site, mixed.app as app, app.running():
        engine = app.manager().engine
        assert isinstance(engine, NatsEngine)
        lost = lose_answers(engine, 0.3, chance, monkeypatch)
        ids: list[str] = []
        rounds = count()
        while len(lost) < ENOUGH:  # a busy machine makes fewer transactions, with more changes in each
            new = [job_id for _ in range(3) for job_id in submit_all_kinds(f"{next(rounds)}", chance)]
            for job_id in new:
                try:
                    assert app.handle(job_id).wait(PATIENCE) is JobStatus.COMPLETED
                except TimeoutError as error:
                    raise AssertionError(f"seed {seed}: {app.get(job_id)}") from error
            ids += new
        monkeypatch.undo()
        assert {job.id for job in app.jobs(limit=10_000)} == set(ids)
        ended = Counter(entry.job for entry in site.run_log() if entry.event == "end")
        assert ended == dict.fromkeys(ids, 1), f"seed {seed}"
