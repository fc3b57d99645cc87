"""`mainspring nats permissions`: what it prints is what the manual shows, and what nats-server reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mainspring.cli.nats_process import find_server
from tests.cli.shop_program import ShopProgram
from tests.support import PATIENCE

pytestmark = pytest.mark.long

MANUAL = Path(__file__).parents[2] / "docs" / "nats.md"
USAGE = 2


def test_the_manual_shows_what_is_printed(shop: ShopProgram) -> None:
    done = shop.run("nats", "permissions", "--prefix", "shop", "--role", "worker")
    assert (done.code, done.errors) == (0, "")
    assert f"```text\n{done.output}```\n" in MANUAL.read_text()


def test_a_server_takes_it_with_passwords_from_its_environment(
    shop: ShopProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = shop.run("nats", "permissions", "--prefix", "shop", "--prefix", "2nd-hand").output
    (shop.folder / "accounts.conf").write_text(printed)
    (shop.folder / "nats.conf").write_text("include accounts.conf\n")
    variables = [
        f"{application}_{role}_PASSWORD"
        for application in ("SHOP", "APP_2ND_HAND")
        for role in ("SUBMITTER", "WORKER", "OPERATOR")
    ]
    for variable in variables:
        refused = check(shop.folder / "nats.conf")
        assert f"variable reference for '{variable}'" in refused.stderr
        monkeypatch.setenv(variable, "s3cret")
    assert "is valid" in check(shop.folder / "nats.conf").stderr


def test_the_administrators_are_in_the_only_block_of_accounts_that_a_server_reads(
    shop: ShopProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = shop.run("nats", "permissions", "--prefix", "shop", "--administrators").output
    assert printed.count("accounts {") == 1
    assert printed.endswith("}\nsystem_account: SYS\n")
    (shop.folder / "nats.conf").write_text(printed)
    for role in ("SUBMITTER", "WORKER", "OPERATOR"):
        monkeypatch.setenv(f"SHOP_{role}_PASSWORD", "s3cret")
    for variable in ("SHOP_ADMINISTRATOR_PASSWORD", "NATS_SYSTEM_PASSWORD"):
        assert f"variable reference for '{variable}'" in check(shop.folder / "nats.conf").stderr
        monkeypatch.setenv(variable, "s3cret")
    assert "is valid" in check(shop.folder / "nats.conf").stderr


def check(file: Path) -> subprocess.CompletedProcess[str]:
    command = [str(find_server()), "-t", "-c", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_scripts_get_users_urls_and_subjects(shop: ShopProgram) -> None:
    found = shop.run("nats", "permissions", "--prefix", "shop", "--account", "APPS", "--json").json
    assert [grant["user"] for grant in found] == ["shop-submitter", "shop-worker", "shop-operator"]
    assert {grant["data_account"] for grant in found} == {"APPS"}
    assert [grant["account"] for grant in found] == ["SHOP_SUBMITTER", "SHOP_WORKER", "SHOP_OPERATOR"]
    assert found[1]["url"] == "nats://shop-worker:PASSWORD@HOST:4222?prefix=shop&role=worker"
    assert found[1]["password_variable"] == "SHOP_WORKER_PASSWORD"
    assert "shop.api.CONSUMER.MSG.NEXT.shop.*" in found[1]["publish"]
    assert {
        "subject": "$JS.API.CONSUMER.MSG.NEXT.shop.*",
        "to": "shop.api.CONSUMER.MSG.NEXT.shop.*",
        "is_guarded": False,
        "is_streamed": True,
    } in found[1]["services"]
    assert "_INBOX_shop_worker.>" in found[1]["subscribe"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--prefix", "a b"], "prefix 'a b': the prefix of a NATS store must have 1 to 64"),
        (["--account", "no good"], "account 'no good' is no name"),
        (["--account", "MAINSPRING_WORKER"], "the account MAINSPRING_WORKER would be that of the data and of"),
        (["--prefix", "a-b", "--prefix", "A_b"], "the account A_B_SUBMITTER would be that of"),
        (["--administrators", "--json"], "leave out --json and --role"),
        (["--role", "boss"], "'boss' is not one of 'submitter', 'worker', 'operator'"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(given: list[str], said: str, shop: ShopProgram) -> None:
    done = shop.run("nats", "permissions", *given)
    assert done.code == USAGE
    assert said in done.error_line
