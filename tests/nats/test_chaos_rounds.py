"""Chaos on real servers: killed, cut off, stopped and restarted; nothing is lost. The soak goes on for longer."""

from pathlib import Path

import pytest

from tests.nats.scenario_chaos import on_one_node, on_three_nodes, run_chaos
from tests.nats.servers import MakeServers
from tests.processes.sandbox import Sandbox
from tests.support import amount

pytestmark = pytest.mark.long

LEASE = 4.0  # seconds, more than a busy machine keeps a worker waiting that nothing was done to
SHARE = amount(0.6, thorough=1.0)  # of the jobs of a round


def test_one_server_loses_no_job_and_starts_none_again_without_a_reason(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    with Sandbox(tmp_path) as site:
        acts = on_one_node(LEASE)
        chaos = run_chaos(site, make_nats_server(), acts, rounds=len(acts), lease=LEASE, seed=11, share=SHARE)
    print(f"seed 11, one node: {chaos.report}")  # noqa: T201 - the figures are asked for
    chaos.check()


def test_three_servers_lose_no_job_and_start_none_again_without_a_reason(
    tmp_path: Path, make_nats_cluster: MakeServers
) -> None:
    with Sandbox(tmp_path) as site:
        acts = on_three_nodes(LEASE)[: amount(2, thorough=3)]  # a worker is killed on one node, too
        chaos = run_chaos(site, make_nats_cluster(), acts, rounds=len(acts), lease=LEASE, seed=12, share=SHARE)
    print(f"seed 12, three nodes: {chaos.report}")  # noqa: T201 - the figures are asked for
    chaos.check()
