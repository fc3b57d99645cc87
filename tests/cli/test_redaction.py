"""Redacted parameters on the command line, with the handlers and without them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import JobStatus, Mainspring, Retry
from mainspring.jobs.recurrence.rules import Every
from tests.cli.shop_program import ENVIRONMENT, CommandResult, ShopProgram
from tests.nats.servers import Servers
from tests.support import PATIENCE

SECRET = "canary-4111"
USAGE = 2
MODULE = """
from mainspring import Mainspring, Retry

app = Mainspring("sqlite:///shop.db", durability="normal")


@app.job(redact=("card", "pin"), retry=Retry(max_attempts=1))
def pay(order: int, card: str, pin: int = 0) -> None:
    raise RuntimeError(f"order {order}: {card} {pin}")
"""


@pytest.fixture
def redacting(shop: ShopProgram) -> ShopProgram:
    """A shop whose application redacts parameters."""
    (shop.folder / "shop.py").write_text(MODULE)
    return shop


@pytest.fixture
def redacting_on_nats(
    redacting: ShopProgram, nats_server: Servers, nats_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ShopProgram:
    """The same on NATS."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))
    redacting.url = f"{nats_server.url}?prefix={nats_prefix}"
    return redacting


def fill(shop: ShopProgram) -> None:
    """Make a dead letter, a job that waits and a schedule, all with secrets."""
    with Mainspring(shop.url, grace=0) as app:

        @app.job(name="shop.pay", redact=("card", "pin"), retry=Retry(max_attempts=1))
        def pay(order: int, card: str, pin: int = 0) -> None:
            raise RuntimeError(f"order {order}: {card} {pin}")

        with app.running():
            assert pay.options(id="dead").submit(1, SECRET, 864209).wait(PATIENCE) is JobStatus.FAILED
        pay.options(id="waiting", delay=3600).submit(2, SECRET)
        app.schedules.put("hourly", pay, Every(3600), arguments=(3, SECRET))


def outputs(shop: ShopProgram) -> Iterator[CommandResult]:
    """Run all commands that print jobs."""
    for with_app in (False, True):
        run = shop.run_with_url if with_app else shop.run_on_store  # type: ignore[attr-defined]
        for command in (
            ("jobs", "list"),
            ("jobs", "show", "dead"),
            ("jobs", "show", "waiting"),
            ("dlq", "list"),
            ("dlq", "show", "dead"),
            ("dlq", "replay", "dead", "--dry-run"),
            ("explain", "dead"),
            ("explain", "waiting"),
            ("schedules", "list"),
            ("schedules", "show", "hourly"),
            ("doctor",),
        ):
            yield run(*command)
            yield run(*command, "--json")
    edit = ("dlq", "replay", "dead", "--set", f"card={SECRET}-new", "--set", "pin=864209", "--dry-run")
    yield shop.run_with_url(*edit)  # type: ignore[attr-defined]
    yield shop.run_with_url("dlq", "replay", "dead", "--set", f"pin={SECRET}")  # type: ignore[attr-defined]
    yield shop.run_with_url("submit", "pay", "order=1", "card=1", f"pin={SECRET}")  # type: ignore[attr-defined]
    yield shop.run_on_store("jobs", "list", "--argument", f"card={SECRET}")
    yield shop.run_on_store("jobs", "list", "--text", SECRET)


def check(shop: ShopProgram) -> None:
    fill(shop)
    shop.run_with_url = lambda *arguments: shop.run(*arguments, "--app", "shop:app", "--url", shop.url)  # type: ignore[attr-defined]
    shown = 0
    for result in outputs(shop):
        text = result.output + result.errors
        assert "canary" not in text
        assert "864209" not in text
        shown += "[redacted]" in text
    assert shown >= 30
    refused = shop.run_on_store("jobs", "list", "--argument", f"card={SECRET}")
    assert refused.code == USAGE
    assert (
        "jobs cannot be found by 'card', because the job type 'shop.pay' redacts this parameter"
        in refused.error_line
    )
    canceled = shop.run_on_store("jobs", "cancel", "--argument", f"card={SECRET}", "--yes")
    assert canceled.code == USAGE
    assert shop.run_on_store("jobs", "list", "--text", SECRET, "--json").json["jobs"] == []
    done = shop.run_with_url("dlq", "replay", "dead", "--set", "order=9", "--json").json  # type: ignore[attr-defined]
    (pair,) = done["replayed"]
    with Mainspring(shop.url) as app:
        assert SECRET.encode() in app.manager().record(pair["job"]).payload


def test_commands_on_a_file_show_no_redacted_values(redacting: ShopProgram) -> None:
    check(redacting)


@pytest.mark.long
def test_commands_on_nats_show_no_redacted_values(redacting_on_nats: ShopProgram) -> None:
    check(redacting_on_nats)
