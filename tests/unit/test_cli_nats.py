"""`mainspring nats dev`, as the real program: servers that work, and that are gone when it is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.cli.nats_process import HeldPorts
from tests.nats.raw_clients import add_stream, answered, connected
from tests.programs import Program, program, read_line
from tests.support import PATIENCE, wait_for_end_of

pytestmark = pytest.mark.long

USAGE = 2
PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}

StartCli = Callable[..., Program]


@pytest.fixture
def start_cli(tmp_path: Path) -> Iterator[StartCli]:
    """Start the program with some arguments; its temporary folders are in `tmp_path`."""
    own = os.environ | PLAIN | {"TMPDIR": str(tmp_path)}
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(
            program("-m", "mainspring", "nats", "dev", *arguments, environment=own)
        )


@pytest.fixture
def port() -> Iterator[int]:
    """The first of three free ports in a row."""
    with HeldPorts() as held:
        yield held.choose(in_a_row=3)


def read_json(process: Program) -> dict[str, Any]:
    return dict(json.loads(read_line(process)))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def store(urls: str, name: str) -> int:
    """Store a message in a stream that there may be already, and return how many it holds."""
    async with connected(urls.split(",")) as client:
        jetstream = await add_stream(client, "TRIED")
        await answered(lambda: jetstream.publish("TRIED.number", b"hello", headers={"Nats-Msg-Id": name}))
        return (await answered(lambda: jetstream.stream_info("TRIED"))).state.messages


def test_it_says_where_the_server_is_and_what_to_write(start_cli: StartCli, port: int) -> None:
    process = start_cli("--port", str(port))
    said = ""
    while "stop with Ctrl+C" not in said:
        said += read_line(process)
    assert f'app = Mainspring("nats://127.0.0.1:{port}")' in said
    assert "removed at the end" in said
    assert asyncio.run(store(f"nats://127.0.0.1:{port}", "once")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_removes_what_was_temporary(
    start_cli: StartCli, port: int, tmp_path: Path, number: signal.Signals
) -> None:
    process = start_cli("--port", str(port), "--json")
    said = read_json(process)
    assert Path(said["store"]).parent == tmp_path
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 0
    assert not is_alive(said["nodes"][0]["pid"])
    assert list(tmp_path.iterdir()) == []


def test_three_nodes_are_a_cluster_on_ports_in_a_row(start_cli: StartCli, port: int) -> None:
    said = read_json(start_cli("--nodes", "3", "--port", str(port), "--json"))
    assert said["url"] == ",".join(f"nats://127.0.0.1:{port + index}" for index in range(3))
    assert len({node["pid"] for node in said["nodes"]}) == 3
    assert asyncio.run(store(said["url"], "once")) == 1


def test_a_store_that_is_given_is_kept(start_cli: StartCli, port: int, tmp_path: Path) -> None:
    for expected in (1, 2):
        process = start_cli("--port", str(port), "--store", str(tmp_path / "data"), "--json")
        said = read_json(process)
        assert said["store"] == str(tmp_path / "data")
        assert asyncio.run(store(said["url"], f"number {expected}")) == expected
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)


def test_with_roles_there_are_urls_whose_rights_differ(start_cli: StartCli, port: int, tmp_path: Path) -> None:
    process = start_cli("--port", str(port), "--roles", "shop", "--json")
    urls = read_json(process)["roles"]
    assert list(urls) == ["submitter", "worker", "operator"]
    with Mainspring(urls["operator"]) as operator:
        operator.tokens.create("front end", scopes=["submit"])
    with Mainspring(f"{urls['submitter']}&timeout=5") as submitter:
        assert [token.name for token in submitter.tokens.list()] == ["front end"]
        with pytest.raises(EngineUnavailable, match=r"no permission to publish to 'shop\.guarded\.token"):
            submitter.tokens.revoke("front end")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert list(tmp_path.iterdir()) == []  # no passwords stay


def test_a_flag_for_roles_means_the_usual_prefix_and_excludes_other_files(start_cli: StartCli, port: int) -> None:
    urls = read_json(start_cli("--port", str(port), "--roles", "--json"))["roles"]
    assert urls["worker"].endswith(f"@127.0.0.1:{port}?prefix=mainspring&role=worker")
    refused = start_cli("--roles", "--include", __file__)
    assert refused.wait(PATIENCE) == USAGE


def test_sync_always_is_in_the_configuration(start_cli: StartCli, port: int, tmp_path: Path) -> None:
    read_json(start_cli("--port", str(port), "--store", str(tmp_path), "--sync-always", "--json"))
    configuration = json.loads((tmp_path / "mainspring" / "nats-server.conf").read_text())
    assert configuration["jetstream"]["sync_interval"] == "always"


def test_no_server_outlives_a_program_that_was_killed(start_cli: StartCli, port: int) -> None:
    process = start_cli("--port", str(port), "--json")
    said = read_json(process)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        process.kill()
        wait_for_end_of(connection)  # which comes when the server is gone
    assert process.wait() == -signal.SIGKILL
    assert said["nodes"][0]["url"] == f"nats://127.0.0.1:{port}"


def test_a_server_that_ends_by_itself_ends_the_program(start_cli: StartCli, port: int) -> None:
    process = start_cli("--port", str(port), "--json")
    os.kill(read_json(process)["nodes"][0]["pid"], signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert (
        "nats-server: mainspring has ended by itself; its log, removed unless a store is given, ends with"
        in errors
    )


def test_a_node_of_a_cluster_that_is_killed_comes_back_while_the_others_go_on(
    start_cli: StartCli, port: int
) -> None:
    process = start_cli("--nodes", "3", "--port", str(port), "--json")
    said = read_json(process)
    os.kill(said["nodes"][1]["pid"], signal.SIGKILL)
    assert process.stderr is not None
    assert process.stderr.readline() == "mainspring-2 has ended; the others continue, and it is restarted in 5 s\n"
    again = process.stderr.readline()
    assert again.startswith("mainspring-2 was restarted, pid ")
    assert is_alive(int(again.split()[-1]))
    assert asyncio.run(store(said["url"], "once")) == 1


def test_a_port_that_is_taken_is_named(start_cli: StartCli, port: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", port)):
        process = start_cli("--port", str(port))
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert errors == (
        f"mainspring: nats-server: port {port} of 127.0.0.1 is taken; "
        "stop the program that listens there, or choose another port\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_two_nodes_are_refused(start_cli: StartCli) -> None:
    process = start_cli("--nodes", "2")
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == USAGE
    assert "a cluster of 2 servers is not supported; give 1 or 3" in errors


def test_help_has_an_example(start_cli: StartCli) -> None:
    output, _ = start_cli("--help").communicate(timeout=PATIENCE)
    assert "Example: mainspring nats dev --nodes 3 --store nats-data" in output
