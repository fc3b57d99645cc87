"""Getting in: every way to show who one is, against a real server that asks for it, and clear words if not."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from threading import Thread

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.cli.nats_process import HOST
from mainspring.engines.nats import NatsSettings
from tests.nats.server_access import ServerAccess, creds, nkey, tls, token, user_and_password
from tests.nats.servers import MakeServers
from tests.support import PATIENCE

pytestmark = pytest.mark.long


def make_app(
    url: str, folder: Path, settings: NatsSettings | None = None, *, timeout: float = PATIENCE
) -> Mainspring:
    options = f"lease=2&timeout={timeout}&projection={folder}/copy.db"
    return Mainspring(f"{url}?{options}", threads=2, nats=settings)


def double(number: int) -> int:
    return number * 2


def run_a_job(app: Mainspring) -> None:
    """Do what takes all rights: submit, take, settle, list."""
    job = app.job(name="double")(double)
    with app, app.running():
        assert job.submit(21).result(PATIENCE) == 42
        assert app.counts()["COMPLETED"] >= 1


def refusal_of(app: Mainspring) -> str:
    with app, pytest.raises(EngineUnavailable) as error:
        app.manager()
    return str(error.value)


def settings_for(access: ServerAccess) -> NatsSettings:
    context = None
    if access.ca_file is not None:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.cert_file is not None:
            context.load_cert_chain(access.cert_file, access.key_file)
    return NatsSettings(
        user=access.user,
        password=access.password,
        token=access.token,
        nkeys_seed=None if access.nkey_file is None else access.nkey_file.read_text(),
        credentials=None if access.creds_file is None else str(access.creds_file),
        tls=context,
    )


WAYS: dict[str, Callable[[Path], ServerAccess]] = {
    "user and password": lambda _: user_and_password(),
    "token": lambda _: token(),
    "nkey": nkey,
    "creds": creds,
    "tls": tls,
    "mutual tls": lambda folder: tls(folder, verify_clients=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_may_come_in_runs_jobs(way: str, tmp_path: Path, make_nats_server: MakeServers) -> None:
    access = WAYS[way](tmp_path)
    server = make_nats_server(access)
    run_a_job(make_app(server.url, tmp_path, settings_for(access)))


@pytest.mark.parametrize("way", WAYS)
def test_who_may_not_is_told_so_soon(way: str, tmp_path: Path, make_nats_server: MakeServers) -> None:
    server = make_nats_server(WAYS[way](tmp_path))
    words = refusal_of(make_app(server.url, tmp_path, timeout=3))
    assert words.startswith(f"NATS at {server.url.partition('://')[2]}: ")


def test_a_user_and_a_password_may_stand_in_the_url_and_are_never_said(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    access = user_and_password()
    server = make_nats_server(access)
    app = make_app(server.url.replace("://", f"://{access.user}:{access.password}@"), tmp_path)
    run_a_job(app)
    wrong = make_app(server.url.replace("://", "://somebody:swordfish@"), tmp_path)
    words = refusal_of(wrong)
    assert "swordfish" not in words
    assert "uthorization" in words


def test_a_token_may_stand_in_the_url(tmp_path: Path, make_nats_server: MakeServers) -> None:
    access = token()
    server = make_nats_server(access)
    run_a_job(make_app(server.url.replace("://", f"://{access.token}@"), tmp_path))


def test_tls_is_never_given_up_in_silence(tmp_path: Path, make_nats_server: MakeServers) -> None:
    server = make_nats_server(user_and_password())
    open_url = server.url.replace("nats://", "tls://ann:swordfish@")
    assert "the settings ask for TLS, but the server offers no TLS; no credentials were sent" in refusal_of(
        make_app(open_url, tmp_path)
    )
    settings = NatsSettings(user="ann", password="swordfish", tls=ssl.create_default_context())
    assert "give the server a certificate" in refusal_of(make_app(server.url, tmp_path, settings))


def test_a_server_that_leaves_tls_to_its_clients_is_asked_for_it(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    access = tls(tmp_path)
    server = make_nats_server(replace(access, settings=access.settings | {"allow_non_tls": True}))
    run_a_job(make_app(server.url, tmp_path, settings_for(access)))
    assert "CERTIFICATE_VERIFY_FAILED" in refusal_of(make_app(server.url, tmp_path, timeout=3))


# -- servers that do not do


RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by a reset


@contextmanager
def pretended_server(version: str, *, answers: Sequence[bytes] = (b"PONG\r\n",)) -> Iterator[str]:
    """A fake server that greets like one of that version, and answers the pings of each client in its own way.

    It hangs up after another answer than PONG; an empty one is a reset.
    """
    answer_to = chain(answers, repeat(answers[-1]))
    greeting = {
        "server_id": "pretended",
        "server_name": "pretended",
        "version": version,
        "proto": 1,
        "headers": True,
        "max_payload": 1_048_576,
        "host": HOST,
        "jetstream": True,
    }

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                answer = next(answer_to)
                connection.sendall(f"INFO {json.dumps(greeting)}\r\n".encode())
                for line in lines:
                    if line.startswith(b"PING"):
                        connection.sendall(answer)
                        if not answer:
                            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        if answer != b"PONG\r\n":
                            break

    with socket.create_server((HOST, 0)) as listener:
        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"nats://{HOST}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_caller_that_waits_for_a_silent_server_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server((HOST, 0)) as listener:  # it lets clients in, and says nothing
        address = f"{HOST}:{listener.getsockname()[1]}"
        words = refusal_of(make_app(f"nats://{address}", tmp_path, timeout=3))
    assert words.startswith(f"NATS at {address}: no connection: the server does not reply; check that nats-server")
    told = f"NATS at {address} has not accepted the connection yet; still trying, for 3 s in all"
    assert caplog.messages == [told]


def test_a_server_that_is_too_old_is_named_with_what_is_needed(tmp_path: Path) -> None:
    with pretended_server("2.10.26") as url:
        words = refusal_of(make_app(url, tmp_path))
    assert "its version is 2.10.26, and 2.14 or later is needed" in words
    assert "update nats-server" in words


@pytest.mark.parametrize("answers", [(b"-ERR 'Authorization Violation'\r\n", b""), (b"",)])
def test_a_server_that_hangs_up_is_asked_for_the_right_thing_to_check(
    answers: tuple[bytes, ...], tmp_path: Path
) -> None:
    with pretended_server("2.15.1", answers=answers) as url:
        words = refusal_of(make_app(url, tmp_path))
    said = "Authorization Violation" if answers[0] else "reset"
    assert said in words
    assert "check user and password, token, nkey or credentials" in words


def test_a_server_without_jetstream_is_told_from_one_that_does_not_answer(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    server = make_nats_server()
    account = {"accounts": {"PLAIN": {"users": [{"user": "plain", "password": "plain"}]}}, "no_auth_user": "plain"}
    plain = make_nats_server(settings=account)
    run_a_job(make_app(server.url, tmp_path))
    words = refusal_of(make_app(plain.url, tmp_path))
    assert "JetStream is not enabled for this account" in words
    assert "start nats-server with -js" in words


def test_a_closed_port_is_reported_in_time(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    words = refusal_of(make_app(f"nats://{HOST}:{port}", tmp_path, timeout=3))
    assert f"NATS at {HOST}:{port}" in words


# -- rights


def restricted() -> ServerAccess:
    """An operator who may do anything, and a worker who may make, change and delete no stream and no consumer."""
    forbidden = [
        f"$JS.API.{verb}.>"
        for verb in (
            "STREAM.CREATE",
            "STREAM.UPDATE",
            "STREAM.DELETE",
            "CONSUMER.CREATE",
            "CONSUMER.DURABLE",
            "CONSUMER.DELETE",
        )
    ]
    return ServerAccess(
        settings={
            "authorization": {
                "users": [
                    {"user": "operator", "password": "o"},
                    {"user": "worker", "password": "w", "permissions": {"publish": {"deny": forbidden}}},
                ]
            }
        }
    )


def test_workers_without_the_right_to_create_use_what_an_operator_has_prepared(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    server = make_nats_server(restricted())
    prepared = NatsSettings(user="worker", password="w", prepared=True)
    words = refusal_of(make_app(server.url, tmp_path, prepared))
    assert "stream 'mainspring' does not exist" in words
    assert "without prepared=True" in words

    run_a_job(make_app(server.url, tmp_path, NatsSettings(user="operator", password="o")))
    run_a_job(make_app(server.url, tmp_path, prepared))


def test_who_lacks_a_right_is_told_which(tmp_path: Path, make_nats_server: MakeServers) -> None:
    server = make_nats_server(restricted())
    words = refusal_of(make_app(server.url, tmp_path, NatsSettings(user="worker", password="w")))
    assert "STREAM.CREATE" in words
    assert "ermission" in words
