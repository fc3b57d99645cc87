"""`mainspring keys`: the file has the secrets, and no output shows them."""

from __future__ import annotations

from pathlib import Path

from mainspring import KeyRing
from tests.cli.shop_program import ShopProgram


def secrets_of(path: Path) -> list[str]:
    return [
        line.partition(":")[2].strip('"') for line in path.read_text().splitlines() if ":" in line and "=" in line
    ]


def test_keys_are_made_replaced_and_listed(shop: ShopProgram) -> None:
    path = Path(shop.folder) / "keys.toml"
    first = shop.run("keys", "create", "first")
    assert (first.code, first.output) == (0, "first\n")
    assert "signs with 'first'" in first.errors
    assert path.stat().st_mode & 0o777 == 0o600
    second = shop.run("keys", "create", "second", "--algorithm", "ed25519")
    assert "ed25519-public:" in second.errors
    assert 'set sign_with = "second"' in second.errors
    assert KeyRing.from_file(path).sign_with == "first"
    assert shop.run("keys", "create", "third", "--sign").code == 0
    ring = KeyRing.from_file(path)
    assert (ring.sign_with, set(ring.ids)) == ("third", {"first", "second", "third"})
    listed = shop.run("keys", "list")
    assert [line.split()[:2] for line in sorted(listed.output.splitlines()[1:])] == [
        ["first", "hmac-sha256"],
        ["second", "ed25519"],
        ["third", "hmac-sha256"],
    ]
    assert {key["key"]: key["signs"] for key in shop.run("keys", "list", "--json").json["keys"]} == {
        "first": False,
        "second": False,
        "third": True,
    }
    for secret in secrets_of(path):
        for result in (first, second, listed):
            assert secret not in result.output + result.errors


def test_the_month_is_the_name_of_a_key(shop: ShopProgram) -> None:
    made = shop.run("keys", "create", "--file", "other.toml", "--json").json
    assert (len(made["key"]), made["signs"], made["file"]) == (len("2026-11"), True, "other.toml")
    again = shop.run("keys", "create", "--file", "other.toml", "--json").json
    assert again["key"].startswith(f"{made['key']}-")


def test_errors_name_the_remedy(shop: ShopProgram) -> None:
    assert "mainspring keys create" in shop.run("keys", "list").error_line
    assert shop.run("keys", "create", "a").code == 0
    assert "give another NAME" in shop.run("keys", "create", "a").error_line
    assert "id of a key" in shop.run("keys", "create", "a b").error_line
    (Path(shop.folder) / "bad.toml").write_text("keys")
    assert "not valid TOML" in shop.run("keys", "create", "--file", "bad.toml").error_line
