"""Changes of queues, schedules and groups of dead letters by clicking."""

from __future__ import annotations

from datetime import timedelta

from playwright.sync_api import Browser, expect

from mainspring import Every
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause
from tests.browser.served_shop import Site
from tests.browser.visits import visiting
from tests.support import PATIENCE, eventually


def test_a_queue_is_paused_resumed_and_drained(browser: Browser, site: Site) -> None:
    app = site.shop.app
    site.shop.mail.options(queue="pausable", delay=timedelta(hours=5)).submit("a@shop.example", "x")
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        row = "tr[data-key=pausable]"
        visit.open("/queues")
        visit.click("Pause", inside=row, says="Paused")
        expect(page.locator(f"{row} .badge")).to_have_text("paused")  # without a reload
        assert app.queue("pausable").is_paused
        visit.click("Resume", inside=row, says="Resumed")
        expect(page.locator(row).get_by_role("button", name="Pause")).to_be_visible()
        assert not app.queue("pausable").is_paused
        page.locator(row).get_by_role("link", name="pausable").click()
        visit.click("Drain", inside="main")
        expect(page.locator("main")).to_contain_text("the queue is drained")
        assert app.queue("pausable").is_paused
        visit.click("Resume", inside="main", says="Resumed")
        expect(page.locator("main .badge").first).to_have_text("active")
    app.queue("pausable").resume()


def test_the_pause_of_a_receiver_is_lifted(browser: Browser, site: Site) -> None:
    manager = site.shop.app.manager()
    now, host = manager.engine.now(), "busy.shop.example"
    pause = CallbackPauseRecord(host, "shop.notify", None, 503, now, now + 300_000_000)
    assert manager.arrange([ChangeCallbackPause(None, pause)]) == [True]
    with visiting(browser, site.url, site.token()) as visit:
        visit.open("/callbacks")
        row = f"tr[data-key^='{host}']"
        expect(visit.page.locator(row)).to_contain_text("503")
        visit.click("Resume", inside=row, says="gets requests again")
        expect(visit.page.locator(row)).to_have_count(0)  # without a reload
    assert host not in [pause.host for pause in site.shop.app.callback_pauses()]


def test_a_schedule_is_stored_triggered_paused_changed_and_removed(browser: Browser, site: Site) -> None:
    app = site.shop.app
    with visiting(browser, site.url, site.token(), timezone_id="America/New_York") as visit:
        page = visit.page
        visit.open("/schedules")
        visit.click("New schedule", inside="main")
        page.get_by_label("Name", exact=True).fill("clicked")
        page.get_by_label("Job type").fill("mail.send")
        page.get_by_label("Arguments").fill('{"to": "a@shop.example", "subject": "Hello"}')
        page.get_by_label("Cron expression").fill("30 2 29 2 *")
        page.get_by_label("Time zone", exact=True).fill("Europe/Berlin")
        expect(page.locator("#preview")).to_contain_text("02-29 02:30")  # as one types
        expect(page.locator("#preview")).to_contain_text("02-28 20:30")  # in the zone of the browser
        visit.click("Store the schedule", inside="main", says="clicked")
        stored = app.schedules.get("clicked")
        assert stored.next_due is not None
        assert (stored.type, stored.next_due.month, stored.next_due.day) == ("mail.send", 2, 29)

        visit.open("/schedules/clicked")
        visit.click("Trigger now", inside="main", says="Triggered")
        eventually(lambda: [each.status for each in app.schedules.jobs("clicked")] == ["COMPLETED"])
        expect(page.locator("[data-live=schedule_history] tbody tr")).to_have_count(1)
        visit.click("Pause", inside="main", says="Paused")
        expect(page.locator("[data-live=schedule_state] .badge").first).to_have_text("paused")
        assert app.schedules.get("clicked").is_paused
        visit.click("Resume", inside="main", says="Resumed")
        expect(page.locator("[data-live=schedule_state] .badge").first).to_have_text("active")
        assert not app.schedules.get("clicked").is_paused

        visit.click("Change", inside="main")
        page.get_by_label("at a fixed interval").check()
        page.get_by_label("Interval in seconds").fill("86400")
        visit.click("Store the change", inside="main", says="clicked")
        rule = app.schedules.get("clicked").rule
        assert isinstance(rule, Every)
        assert rule.interval == timedelta(days=1)

        visit.open("/schedules/clicked")
        visit.click("Remove …", inside="main")
        visit.click("Remove the schedule", inside="main", says="Removed")
        assert "clicked" not in [each.name for each in app.schedules.list()]


def test_a_group_of_dead_letters_is_replayed_and_another_one_purged(browser: Browser, site: Site) -> None:
    app, shop = site.shop.app, site.shop
    bounced = [shop.mail.options(queue="group").submit(f"bounce{n}@g.example", "x") for n in range(4)]
    refused = [shop.charge.options(queue="group").submit(n, 99_000) for n in range(3)]
    for handle in (*bounced, *refused):
        handle.wait(PATIENCE)
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open("/dead-letters?queue=group")
        expect(page.locator("[data-row]")).to_have_count(2)
        page.locator("a.error-title", has_text="no mailbox").click()
        visit.click("Replay …", inside="main")
        page.get_by_label("New values of arguments").fill('{"to": "good@g.example"}')
        visit.click("Dry run", inside="main")
        expect(page.locator("main")).to_contain_text("4 new jobs would be submitted")
        assert app.dead_letters.count(queue="group") == 7
        visit.click("Replay 4 now", inside="main", says="Replayed 4")
        assert app.dead_letters.count(queue="group") == 3
        eventually(lambda: app.counts(queue="group")["COMPLETED"] == 4)

        visit.open("/dead-letters?queue=group")
        expect(page.locator("[data-row]")).to_have_count(1)
        page.locator("a.error-title").click()
        page.get_by_label(f"Select job {refused[1].id}").check()
        visit.click("Purge …", inside="#selected")
        visit.click("Delete 1 for good", inside="main", says="1")
        assert {job.id for job in app.dead_letters.list(queue="group")} == {refused[0].id, refused[2].id}

        visit.open("/dead-letters?queue=group")
        page.locator("a.error-title").click()
        visit.click("Purge …", inside=".page-head")
        visit.click("Delete 2 for good", inside="main", says="2")
        assert app.dead_letters.count(queue="group") == 0
