"""`mainspring callbacks`: paused receivers, and what lifts their pauses."""

from __future__ import annotations

from mainspring import JobStatus, Mainspring, Snooze, current_job
from mainspring.jobs.callback_pauses import PUT_OFF, CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause
from tests.cli.shop_program import ShopProgram
from tests.support import eventually

HOST = "hooks.example.com"


def pause(app: Mainspring, *receivers: tuple[str, str | None, str | None]) -> None:
    """Store pauses of five minutes."""
    manager = app.manager()
    now = manager.engine.now()
    for host, type_, url in receivers:
        record = CallbackPauseRecord(host, type_, url, 503, now, now + 300_000_000)
        assert manager.arrange([ChangeCallbackPause(None, record)]) == [True]


def test_pauses_are_listed_and_lifted(shop: ShopProgram) -> None:
    with shop.open() as app:
        pause(app, (HOST, "paid", None), (HOST, "mainspring.http", f"https://{HOST}/a"), ("b.example", None, None))
    table = shop.run_on_store("callbacks", "pauses").output.splitlines()
    assert table[0].split() == ["HOST", "TYPE", "URL", "ANSWER", "PAUSED", "ENDS", "COUNT"]
    assert [row.split()[:4] for row in table[1:]] == [
        ["b.example", "all", "-", "503"],
        [HOST, "mainspring.http", f"https://{HOST}/a", "503"],
        [HOST, "paid", "-", "503"],
    ]
    listed = shop.run_on_store("callbacks", "pauses", "--json").json["pauses"]
    assert [(each["host"], each["type"], each["count"]) for each in listed] == [
        ("b.example", None, 1),
        (HOST, "mainspring.http", 1),
        (HOST, "paid", 1),
    ]
    one = shop.run_on_store("callbacks", "resume", HOST, "--type", "paid")
    assert one.output == f"{HOST} gets requests again; 1 pause lifted\n"
    assert shop.run_on_store("callbacks", "resume", HOST, "--json").json == {"host": HOST, "lifted": 1}
    again = shop.run_on_store("callbacks", "resume", HOST)
    assert (again.code, again.output) == (
        0,
        f"{HOST} was not paused; mainspring callbacks pauses shows all pauses\n",
    )
    assert shop.run_on_store("callbacks", "resume", "b.example").code == 0
    done = shop.run_on_store("callbacks", "pauses")
    assert (done.output, done.errors) == ("", "no receiver is paused\n")
    with shop.open() as app:
        assert [entry.action for entry in app.audit()] == ["callbacks.resume"] * 3


def test_run_now_without_the_application_lifts_the_pause(shop: ShopProgram) -> None:
    """The program knows the store only. The note of the job that was put off names its host."""
    with shop.open() as app:

        @app.job(name="paid")
        def paid() -> None:
            current_job().progress(0, note=f"{PUT_OFF}{HOST} gets no requests for a while")
            raise Snooze(3_600)

        handle = paid.submit()
        with app.running():
            assert eventually(lambda: app.get(handle.id).progress is not None and app.get(handle.id).starts == 1)
            assert eventually(lambda: handle.status() is JobStatus.PENDING)
        pause(app, (HOST, None, None), (HOST, "shipped", None), ("b.example", "shipped", None))
    assert shop.run_on_store("jobs", "run-now", handle.id).output == f"{handle.id} due now\n"
    listed = shop.run_on_store("callbacks", "pauses", "--json").json["pauses"]
    assert [(each["host"], each["type"]) for each in listed] == [("b.example", "shipped"), (HOST, "shipped")]
