"""Changes of jobs by clicking: each says what it did, and the store has it."""

from __future__ import annotations

from datetime import timedelta

from playwright.sync_api import Browser, expect

from mainspring import JobStatus
from mainspring.clock import SystemClock
from tests.browser.served_shop import Site
from tests.browser.visits import visiting
from tests.support import PATIENCE, eventually


def test_a_job_is_run_rescheduled_canceled_and_retried(browser: Browser, site: Site) -> None:
    app, shop = site.shop.app, site.shop
    later = shop.mail.after(timedelta(hours=5))
    run, moved, canceled = (later.submit(f"{word}@shop.example", "Hello") for word in ("run", "move", "cancel"))
    failed = shop.charge.submit(1, 99_000)
    failed.wait(PATIENCE)
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open(f"/jobs/{run.id}")
        visit.click("Run now", inside="main", says="now")
        expect(page.locator("[data-live=state] .badge").first).to_have_text("completed")
        assert run.wait(PATIENCE) is JobStatus.COMPLETED

        visit.open(f"/jobs/{moved.id}")
        page.locator("details.reschedule summary").click()
        page.locator("#when").fill("soon")
        visit.click("Reschedule", inside="details.reschedule")
        expect(page.locator(".toasts .note.error")).to_be_visible()
        page.locator("#when").fill("2d")
        visit.click("Reschedule", inside="details.reschedule", says="Rescheduled")
        assert app.get(moved.id).due > SystemClock().now() + timedelta(days=1)

        visit.open(f"/jobs/{canceled.id}")
        visit.click("Cancel", inside="main", says="Canceled")
        assert app.get(canceled.id).status is JobStatus.CANCELED
        expect(page.locator("[data-live=state] .badge").first).to_have_text("canceled")

        visit.open(f"/jobs/{failed.id}")
        expect(page.locator("ol.timeline")).to_contain_text("card of order 1 was refused")
        visit.click("Retry", inside="main")
        eventually(lambda: app.get(failed.id).status is JobStatus.FAILED and app.get(failed.id).starts == 2)
        app.cancel(moved.id)


def test_a_dead_letter_is_edited_and_replayed_after_a_dry_run(browser: Browser, site: Site) -> None:
    app = site.shop.app
    letter = site.shop.charge.submit(2, 99_500, card="4000 1234")
    letter.wait(PATIENCE)
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open(f"/jobs/{letter.id}")
        expect(page.locator("main")).not_to_contain_text("4000 1234")
        visit.click("Edit and replay", inside="main")
        cents = page.get_by_label("cents")
        expect(cents).to_have_value("99500")
        cents.fill("many")
        visit.click("Dry run", inside="main")
        expect(page.locator("[aria-invalid=true]")).to_have_attribute("name", "argument.cents")
        visit.faults.clear()  # the browser reports the status 422 of a form with errors
        page.get_by_label("cents").fill("1200")
        visit.click("Dry run", inside="main")
        expect(page.get_by_role("heading", name="Dry run")).to_be_visible()
        expect(page.locator("main")).to_contain_text("Changed: cents")
        assert app.get(letter.id).replayed_as is None
        visit.click("Replay", inside="main", says="Replayed")
        replayed = app.get(letter.id).replayed_as
        assert replayed is not None
        assert app.handle(replayed).wait(PATIENCE) is JobStatus.COMPLETED
        expect(page.locator("h1")).to_contain_text("shop.charge_card")
        expect(page.locator("[data-live=state] .badge").first).to_have_text("completed")
        page.get_by_role("link", name="shop.charge_card").last.click()  # the original
        expect(page.locator("main")).to_contain_text(letter.id)


def test_many_jobs_are_changed_by_filter_after_a_dry_run(browser: Browser, site: Site) -> None:
    app = site.shop.app
    queue = app.queue("bulk-mail")
    mail = site.shop.mail.options(queue="bulk-mail", delay=timedelta(hours=5))
    mail.submit_many([{"to": f"c{n}@shop.example", "subject": "x"} for n in range(30)])
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open("/jobs?queue=bulk-mail")
        expect(page.locator("[data-row]")).to_have_count(30)
        page.get_by_role("link", name="Cancel …").click()
        expect(page.locator("main")).to_contain_text("30 jobs would be canceled")
        assert app.counts(queue="bulk-mail")["PENDING"] == 30
        visit.click("Cancel 30 jobs", inside="main")
        expect(page.locator("main")).to_contain_text("30 jobs were canceled")
        assert app.counts(queue="bulk-mail")["CANCELED"] == 30
        visit.click("Back to the list", inside="main")
        expect(page.locator("[data-row] .badge", has_text="canceled")).to_have_count(30)
    assert queue.name == "bulk-mail"


def test_selected_rows_are_changed_after_a_dry_run(browser: Browser, site: Site) -> None:
    app = site.shop.app
    mail = site.shop.mail.options(queue="selected-mail", delay=timedelta(hours=5))
    ids = mail.submit_many([{"to": f"s{n}@shop.example", "subject": "x"} for n in range(6)])
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open("/jobs?queue=selected-mail&order=oldest")
        bar = page.locator("#selected")
        expect(bar).to_be_hidden()
        boxes = page.locator("[data-row] td.select input")
        everything = page.get_by_label("Select all jobs on this page")
        everything.check()
        expect(bar).to_contain_text("6 selected")
        everything.uncheck()
        expect(bar).to_be_hidden()
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("x")
        expect(boxes.nth(1)).to_be_checked()
        boxes.nth(4).check()
        mail.submit("late@shop.example", "x")  # an update keeps the selection
        expect(page.locator("[data-row]")).to_have_count(7)
        expect(bar).to_contain_text("2 selected")
        visit.click("Cancel …", inside="#selected")
        expect(page.locator("main")).to_contain_text("2 jobs would be canceled")
        assert app.counts(queue="selected-mail")["CANCELED"] == 0
        assert visit.grave_findings() == []
        visit.click("Cancel 2 jobs", inside="main")
        expect(page.locator("main")).to_contain_text("2 jobs were canceled")
        assert {job.id for job in app.jobs(queue="selected-mail", status="CANCELED")} == {ids[1], ids[4]}
        visit.click("Back to the list", inside="main")
        expect(page.locator("[data-row]").first).to_have_attribute("data-key", ids[0])
    with visiting(browser, site.url, site.token(), java_script_enabled=False) as visit:
        visit.open("/jobs?queue=selected-mail&order=oldest")
        visit.page.locator("[data-row] td.select input").first.check()
        visit.click("Run now …", inside="#selected")
        expect(visit.page.locator("main")).to_contain_text("1 job would be made due now")
        visit.click("Run now 1 job", inside="main")
        expect(visit.page.locator("main")).to_contain_text("1 job was made due now")
    assert app.handle(ids[0]).wait(PATIENCE) is JobStatus.COMPLETED


def test_a_job_is_submitted_by_the_form_of_its_handler(browser: Browser, site: Site) -> None:
    app = site.shop.app
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open("/jobs")
        visit.click("Submit a job", inside="main")
        page.get_by_label("Type", exact=True).select_option("shop.ship_order")  # loads the form by itself
        page.locator("[name='argument.order_id']").fill("many")
        visit.click("Submit", inside="main")
        expect(page.locator("[aria-invalid=true]")).to_have_attribute("name", "argument.order_id")
        visit.faults.clear()  # the browser reports the status 422 of a form with errors
        page.locator("[name='argument.order_id']").fill("7001")
        page.locator("[name='argument.speed']").select_option(label="EXPRESS")
        page.locator("[name='argument.address']").fill('{"street": "Allee 1", "city": "Berlin"}')
        page.get_by_label("Id", exact=True).fill("by-hand-7001")
        visit.click("Submit", inside="main")
        expect(page.locator("h1")).to_contain_text("shop.ship_order")
        assert app.handle("by-hand-7001").wait(PATIENCE) is JobStatus.COMPLETED
        expect(page.locator("[data-live=outcome]")).to_contain_text("DHL00007001")
        visit.open("/jobs?argument.order_id=7001")
        expect(page.locator("[data-row]")).to_have_count(1)
        visit.open("/submit?type=shop.ship_order")
        page.locator("[name='argument.order_id']").fill("7001")
        page.get_by_label("Id", exact=True).fill("by-hand-7001")
        visit.click("Submit", inside="main")
        expect(page.get_by_role("link", name="Open that job")).to_be_visible()
        visit.faults.clear()  # the status 409
