"""`mainspring tokens`: the secret is printed once, and nothing else shows it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.shop_program import ShopProgram


def test_a_token_is_printed_once_and_the_store_has_only_a_hash(shop: ShopProgram) -> None:
    made = shop.run_with_app(
        "tokens", "create", "front end", "--scope", "submit", "--type", "cancel_order", "--expires", "90d"
    )
    assert made.code == 0
    token = made.output.strip()
    assert token.startswith("msp_")
    assert token not in made.errors
    assert "allows submit; types shop.cancel_order" in made.errors
    assert "is not shown again" in made.errors
    listed = shop.run_with_app("tokens", "list")
    assert "front end" in listed.output
    secret = token.rpartition("_")[2]
    assert secret not in listed.output
    for path in Path(shop.folder).glob("shop.db*"):
        assert secret.encode() not in path.read_bytes()


def test_json_has_all_fields(shop: ShopProgram) -> None:
    made = shop.run_with_app(
        *("tokens", "create", "shop", "--scope", "read", "--scope", "operate", "--queue", "mail", "--json")
    ).json
    assert made["token"].startswith(f"msp_{made['id']}_")
    assert (made["scopes"], made["types"], made["queues"]) == (["operate", "read"], None, ["mail"])
    (listed,) = shop.run_with_app("tokens", "list", "--json").json["tokens"]
    assert listed == {name: value for name, value in made.items() if name != "token"}
    (revoked,) = shop.run_with_app("tokens", "revoke", made["id"], "--json").json["tokens"]
    assert (revoked["state"], revoked["id"]) == ("revoked", made["id"])


def test_errors_name_the_remedy(shop: ShopProgram) -> None:
    assert (
        "'90x' is neither a duration nor an instant"
        in shop.run_with_app("tokens", "create", "shop", "--scope", "read", "--expires", "90x").error_line
    )
    assert "--scope" in shop.run_with_app("tokens", "create", "shop").error_line
    assert "fly" in shop.run_with_app("tokens", "create", "shop", "--scope", "fly").error_line
    assert (
        "admin cannot be restricted"
        in shop.run_with_app("tokens", "create", "shop", "--scope", "admin", "--queue", "mail").error_line
    )
    assert shop.run_with_app("tokens", "create", "shop", "--scope", "read").code == 0
    result = shop.run_with_app("tokens", "revoke", "shpo")
    assert result.code == 1
    assert "no token 'shpo' that can be used; did you mean 'shop'" in result.error_line


def test_a_type_without_a_handler_is_told(shop: ShopProgram) -> None:
    made = shop.run_with_app("tokens", "create", "shop", "--scope", "submit", "--type", "cancel_ordr")
    assert made.code == 0
    assert "has no handler 'cancel_ordr'; did you mean" in made.errors


def test_without_tokens_the_list_says_how_to_make_one(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    assert "mainspring tokens create NAME" in shop.run_with_app("tokens", "list").errors
