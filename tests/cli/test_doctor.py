"""`mainspring doctor`, by the real program: on a sound store, on faults, in pipes and on a terminal."""

from pathlib import Path

import pytest

from tests.cli.shop_program import ENVIRONMENT, ShopProgram
from tests.nats.servers import Servers
from tests.support import PATIENCE

pytestmark = pytest.mark.long

OF_THE_MACHINE = {"python", "open-files", "time-zones", "synchronised", "file-system", "fsync", "clock"}
FAILURE, USAGE, UNAVAILABLE = 1, 2, 3


def severities(report: dict[str, object]) -> dict[str, str]:
    """What was found about the store, whatever the machine is like."""
    findings: list[dict[str, str]] = report["findings"]  # type: ignore[assignment]
    return {
        finding["check"]: finding["severity"]
        for finding in findings
        if finding["severity"] != "ok" and finding["check"] not in OF_THE_MACHINE
    }


def test_a_sound_store_is_in_order(shop: ShopProgram) -> None:
    worker = shop.start("run", "shop:app")
    try:
        (ran,) = shop.submit({"order_id": 1}, delay=0)
        with shop.open() as app:
            assert app.handle(ran).wait(PATIENCE).is_final
        done = shop.run_with_app("doctor", "--json")
    finally:
        worker.terminate()
        worker.communicate()
    assert severities(done.json) == {"durability": "info", "dead-letters": "info"}
    assert done.code == 0
    assert set(done.json) == {"store", "worst", "counts", "findings"}
    assert set(done.json["findings"][0]) == {"check", "severity", "what", "reason", "remedy", "commands"}


def test_several_faults_at_once_are_told_with_their_remedies(shop: ShopProgram) -> None:
    shop.make_dead_letters("dead")
    shop.submit({"order_id": 1}, delay=0)
    (shop.folder / "shop.db").chmod(0o666)
    done = shop.run_with_app("doctor")
    assert done.code == FAILURE
    lines = done.output.splitlines()
    assert "error    workers       no worker runs, and 1 job is due, the oldest for " in done.output
    assert f"                       -> chmod o-w {shop.folder / 'shop.db'}" in lines
    assert "                         mainspring run shop:app" in lines
    assert "                         mainspring dlq list --app shop:app" in lines
    assert "dead-letters  1 dead letter, the newest from " in done.output
    assert "schedules of this application are not stored, so they do not fire: shop.nightly_report" in done.output
    assert "1 error, " in lines[-1]
    assert "\x1b" not in done.output


def test_warnings_fail_only_if_one_is_strict(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    (shop.folder / "shop.db").chmod(0o666)
    assert shop.run_on_store("doctor").code == 0
    strict = shop.run_on_store("doctor", "--strict", "--json")
    assert strict.code == FAILURE
    assert severities(strict.json) == {"permissions": "warning", "workers": "info", "application": "info"}


def test_a_missing_store_is_an_error_and_nothing_is_made(shop: ShopProgram) -> None:
    done = shop.run_on_store("doctor", "--json")
    assert (done.code, severities(done.json)["file"]) == (FAILURE, "error")
    assert [path.name for path in shop.folder.iterdir()] == ["shop.py"]


def test_a_store_in_memory_is_refused_and_so_is_no_store_at_all(shop: ShopProgram) -> None:
    assert shop.run("doctor", "--url", "memory://").code == UNAVAILABLE
    assert shop.run("doctor").code == USAGE


def test_a_terminal_gets_colours_and_lines_that_fit(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, delay=0)
    code, shown = shop.run_on_terminal("doctor", "--url", shop.url, columns=70)
    assert code == FAILURE
    assert "\x1b[1;31merror" in shown
    plain = shown.replace("\x1b", "")
    assert "no worker runs, and 1 job is due" in plain
    *lines, _ = _without_colours(shown).splitlines()  # the last line names the store
    assert max(len(line) for line in lines if f"--url {shop.url}" not in line) <= 70  # commands are to be pasted


def _without_colours(shown: str) -> str:
    return "".join(part.partition("m")[2] if place else part for place, part in enumerate(shown.split("\x1b[")))


def test_a_server_is_examined_from_a_shell(
    shop: ShopProgram, nats_server: Servers, nats_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))
    shop.url = f"{nats_server.url}?prefix={nats_prefix}"
    missing = shop.run_on_store("doctor", "--json")
    assert (missing.code, severities(missing.json)["stream"]) == (FAILURE, "error")
    shop.make_dead_letters("dead")
    found = shop.run_on_store("doctor", "--json", "--monitor", nats_server.nodes[0].monitor_url)
    assert found.code == 0
    expected = {"sync": "warning", "workers": "info", "dead-letters": "info", "application": "info"}
    assert severities(found.json) == expected
