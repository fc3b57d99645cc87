"""The long runs on NATS servers: the scenarios of tests/nats, for minutes instead of seconds."""

from __future__ import annotations

from tests.nats.scenario_chaos import Act, on_one_node, on_three_nodes, run_chaos
from tests.nats.scenario_errors import run_on_nats
from tests.nats.scenario_load import run_load
from tests.nats.scenario_races import race_cancels, race_reschedules
from tests.nats.scenario_restart import restart_with_schedules
from tests.nats.servers import Servers, running_servers
from tests.processes.sandbox import Sandbox

LEASE = 2.0
SCHEDULES = 1_000_000


def soak_nats_chaos(site: Sandbox, seed: int) -> str:
    """Let faults hit workers and one server 60 times."""
    with running_servers() as servers:
        return _run_chaos(site, servers, on_one_node(LEASE), rounds=60, seed=seed)


def soak_nats_cluster(site: Sandbox, seed: int) -> str:
    """Let faults hit workers and three servers 24 times."""
    with running_servers(nodes=3) as servers:
        return _run_chaos(site, servers, on_three_nodes(LEASE), rounds=24, seed=seed)


def _run_chaos(site: Sandbox, servers: Servers, acts: list[Act], *, rounds: int, seed: int) -> str:
    chaos = run_chaos(site, servers, acts, rounds=rounds, lease=LEASE, seed=seed)
    chaos.check()
    return f"{chaos.report}"


def soak_nats_errors(site: Sandbox, seed: int) -> str:
    """Let every call of the engine fail, before it and by a lost reply, on ten stores."""
    errors = jobs = 0
    with running_servers() as servers:
        for number in range(10):
            figures = run_on_nats(servers, f"errors-{number}", site.folder, seed=seed + number)
            errors += figures.errors
            jobs += figures.confirmed
    return f"{errors} errors in calls of the engine, {jobs} jobs confirmed, none lost, none started without need"


def soak_nats_restart(site: Sandbox, _seed: int) -> str:
    """Kill a server that keeps a million schedules."""
    with running_servers() as servers:
        restart = restart_with_schedules(site, servers, count=SCHEDULES)
    assert (restart.pending, restart.starts) == (SCHEDULES, 1), restart
    return f"{restart}"


def soak_nats_cancels(site: Sandbox, seed: int) -> str:
    """Cancel 2,000 jobs around the moments at which they are handed over and started."""
    with running_servers(nodes=3) as servers:
        races = race_cancels(site, servers, count=2_000, seconds=60, seed=seed)
    races.check_cancels()
    return f"{len(races.calls)} cancels, {races.share:.0%} in time"


def soak_nats_reschedules(site: Sandbox, seed: int) -> str:
    """Put off 2,000 jobs around the moments at which they are handed over and started."""
    with running_servers(nodes=3) as servers:
        races = race_reschedules(site, servers, count=2_000, seconds=60, seed=seed)
    races.check_reschedules()
    return f"{len(races.calls)} put off, {races.share:.0%} in time; none ran at its old time, all at the new"


def soak_nats_load(site: Sandbox, _seed: int) -> str:
    """Run 300 jobs a second, a million an hour, on ten workers and three servers for a minute."""
    with running_servers(nodes=3) as servers:
        load = run_load(site, servers, workers=10, per_second=300, seconds=60)
    assert (load.completed, load.lost, load.twice) == (load.submitted, 0, 0), load
    assert load.early < 50, load
    assert load.p99 < 100, load
    return f"{load}"


SCENARIOS = (
    soak_nats_chaos,
    soak_nats_cluster,
    soak_nats_errors,
    soak_nats_restart,
    soak_nats_cancels,
    soak_nats_reschedules,
    soak_nats_load,
)
