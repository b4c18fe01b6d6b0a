"""A planner's and an operator's evening in a browser: register, change, import, watch, overrule."""

import asyncio
from datetime import timedelta

from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # it ships no types
from forecrest.v1 import control_service_pb2, event_pb2, event_service_pb2, workload_service_pb2
from playwright.async_api import Page, expect

from controller.adapters.clock import SystemClock
from tests.e2e.console import world
from tests.e2e.console.conftest import PHONE, WIDE, ConsoleWorld, NewPage, in_browser
from tests.e2e.console.looks import accessible

# A slow machine takes its time; nothing here waits longer than it must.
expect.set_options(timeout=60_000)

PAGES = (
    "/events",
    "/events?view=agenda",
    "/events?view=list",
    "/events/new?workload=recommender",
    "/events/import",
    "/events/midnight-sale",
    "/events/midnight-sale/edit",
    "/events/midnight-sale/cancel",
    "/events/flash-drop/report",
    "/night/midnight-sale",
    "/engines",
    "/overrides",
)
DROP = """async ([text]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([text], "team.ics", { type: "text/calendar" }));
    const drop = document.getElementById("drop");
    drop.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


async def one_workload(lab: ConsoleWorld, *, known: bool = True) -> None:
    """The reference case: a recommender, with two days of history and a forecast if ``known``."""
    now = SystemClock().now()
    await lab.client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(
            workload_id="recommender", workload=world.workload("recommender")
        )
    )
    if not known:
        return
    await world.record_history(lab.client, "recommender", 8000.0, now, 2)
    await world.store_loop(lab.store, "recommender", 8000.0, 4, 4, now)


@in_browser
async def test_a_planner_registers_a_promotion_after_its_preview_and_meets_a_colleagues_change(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console)
    await page.goto(f"{own_console.url}/events")
    # Everything a person does: four steps. The only workload, tonight's midnight and the zone stand there already.
    await page.get_by_role("link", name="Register an event").first.click()
    await page.get_by_label("Name").fill("Midnight sale")
    await page.get_by_label("Requests per second", exact=True).fill("9000")
    await page.get_by_label("Requests per second", exact=True).fill("35000")
    preview = page.locator("#preview")
    await expect(preview.locator(".why")).to_contain_text("35\u202f000")
    await expect(preview.locator("dd.prewarm")).to_contain_text("before the start")
    replicas = await preview.locator("dd.replicas").inner_text()
    await expect(page.get_by_label("Time zone")).to_have_value("Asia/Shanghai")
    await page.get_by_role("button", name="Register event").click()
    await expect(page.get_by_role("status").first).to_contain_text("Registered.")
    await expect(page.locator("#preview dd.replicas")).to_have_text(replicas, use_inner_text=True)

    await page.get_by_role("link", name="Change").click()
    theirs = event_pb2.Event(name="events/midnight-sale", expected_peak_qps=20_000)
    await own_console.client.events.UpdateEvent(event_service_pb2.UpdateEventRequest(event=theirs))
    await page.get_by_label("Name").fill("Midnight sale, day two")
    await page.get_by_role("button", name="Save changes").click()
    await expect(page.get_by_role("heading", name="Changed by someone else")).to_be_visible()
    await expect(page.locator(".conflict")).to_contain_text("20000")
    await page.get_by_role("link", name="Take theirs (reload)").click()
    await expect(page.get_by_label("Requests per second", exact=True)).to_have_value("20000")

    await page.get_by_label("End", exact=True).fill("2020-01-01T00:00")
    await expect(page.locator("#error-end")).to_contain_text("must be after start_time")
    await page.get_by_role("link", name="Back").click()
    await page.get_by_role("link", name="Cancel event").click()
    await page.get_by_label("Reason, for the record").fill("postponed")
    await page.get_by_role("button", name="Yes, cancel it").click()
    await expect(page.locator("main")).to_contain_text("Cancelled: postponed")


KEPT = "The API does not answer. What you typed is kept: try again, nothing happens twice."


@in_browser
async def test_what_was_typed_while_the_api_is_away_is_sent_again_when_it_is_back_and_done_once(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console)

    async def send(button: str) -> None:
        async with page.expect_navigation():
            await page.get_by_role("button", name=button).click()

    async def sent_while_away_and_again(button: str) -> None:
        await own_console.stop_api()
        for _ in range(2):  # what is kept once is kept again
            await send(button)
            await expect(page.get_by_role("alert").first).to_contain_text(KEPT)
        await accessible(page)
        await own_console.start_api()
        # The console's connection comes back within seconds; until then people are told, and try again.
        async with asyncio.timeout(60):
            while await page.get_by_text(KEPT).count():
                await send(button)

    await page.goto(f"{own_console.url}/events/new?workload=recommender")
    await page.get_by_label("Name").fill("Midnight sale")
    await page.get_by_label("Requests per second", exact=True).fill("35000")
    await sent_while_away_and_again("Register event")
    await expect(page.get_by_role("status").first).to_contain_text("Registered.")

    await page.get_by_role("link", name="Change").click()
    await page.get_by_label("Name").fill("Midnight sale, day two")
    await sent_while_away_and_again("Save changes")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Midnight sale, day two")

    await page.get_by_role("link", name="Cancel event").click()
    await page.get_by_label("Reason, for the record").fill("postponed")
    await sent_while_away_and_again("Yes, cancel it")
    await expect(page.locator("main")).to_contain_text("Cancelled: postponed")

    kept = await own_console.client.events.ListEvents(event_service_pb2.ListEventsRequest())
    assert [("Midnight sale, day two", 3)] == [(one.display_name, one.revision) for one in kept.events]


@in_browser
async def test_a_page_that_could_not_be_read_is_there_at_the_next_try(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console)
    await own_console.stop_api()
    await page.goto(f"{own_console.url}/events/import")
    await expect(page.get_by_role("alert")).to_contain_text("The API does not answer. Nothing was changed.")
    await accessible(page)
    await own_console.start_api()
    await page.get_by_role("link", name="Try again").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Import from a calendar")


@in_browser
async def test_a_chart_that_cannot_be_read_says_why_in_place_of_being_empty(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console)
    await page.goto(own_console.url)
    await page.goto(f"{own_console.url}/workloads/recommender?range=day")
    await expect(page.locator("#demand canvas")).to_be_visible()
    await own_console.stop_api()
    await page.goto(f"{own_console.url}/workloads/recommender?range=week")
    await expect(page.locator("#axis-problem")).to_contain_text(
        "The API does not answer. This page tries again by itself."
    )
    await own_console.start_api()
    await expect(page.locator("#demand canvas")).to_be_visible()
    await expect(page.locator("#axis-problem")).to_be_hidden()


def a_calendar() -> str:
    """One stream in three days."""
    start = SystemClock().now() + timedelta(days=3)
    return "\r\n".join(
        (
            "BEGIN:VCALENDAR",
            "VERSION:2.0",
            "PRODID:-//test//EN",
            "BEGIN:VEVENT",
            "UID:stream-1@example.com",
            f"DTSTAMP:{start:%Y%m%dT%H0000Z}",
            f"DTSTART:{start:%Y%m%dT%H0000Z}",
            f"DTEND:{start + timedelta(hours=1):%Y%m%dT%H0000Z}",
            "SUMMARY:Evening stream",
            "END:VEVENT",
            "END:VCALENDAR",
            "",
        )
    )


@in_browser
async def test_a_calendar_file_is_dropped_looked_at_and_imported(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console)
    await page.goto(f"{own_console.url}/events/import")
    await page.evaluate(DROP, [a_calendar()])
    await expect(page.locator("#import-rows")).to_contain_text("Nothing was imported")
    await page.get_by_label("Requests per second", exact=True).fill("4000")
    await page.get_by_role("button", name="Show what would happen").click()
    await expect(page.locator("#import-rows")).to_contain_text("Evening stream")
    await page.get_by_role("button", name="Import now").click()
    await expect(page.get_by_role("status").first).to_contain_text("Imported: 1")
    await expect(page.locator("table.events")).to_contain_text("Evening stream")


@in_browser
async def test_an_import_that_the_api_did_not_answer_is_made_once_it_is_back(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console)
    await page.goto(f"{own_console.url}/events/import")
    text, rate = a_calendar(), page.get_by_label("Requests per second", exact=True)
    await page.evaluate(DROP, [text])
    await rate.fill("4000")
    show, now = (page.get_by_role("button", name=name) for name in ("Show what would happen", "Import now"))
    await show.click()
    await expect(page.locator("#import-rows")).to_contain_text("Evening stream")
    await own_console.stop_api()
    async with page.expect_navigation():
        await now.click()
    await expect(page.get_by_role("alert").first).to_contain_text("choose the file again")
    await expect(rate).to_have_value("4000")
    await own_console.start_api()
    # Looked at again until the console's connection is back.
    async with asyncio.timeout(60):
        await page.evaluate(DROP, [text])
        while True:
            await expect(page.locator("#import-rows")).not_to_have_attribute("aria-busy", "true")
            if await now.count():
                break
            await show.click()
    await now.click()
    await expect(page.get_by_role("status").first).to_contain_text("Imported: 1")
    kept = await own_console.client.events.ListEvents(event_service_pb2.ListEventsRequest())
    assert ["Evening stream"] == [one.display_name for one in kept.events]


@in_browser
async def test_event_night_counts_down_shows_the_ladder_and_never_a_stale_answer_as_fresh(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console, known=False)
    now = SystemClock().now()
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    event = event_pb2.Event(
        display_name="Midnight sale",
        workloads=["workloads/recommender"],
        time_zone="Asia/Shanghai",
        expected_peak_qps=35_000,
    )
    event.start_time.FromDatetime(start)
    event.end_time.FromDatetime(start + timedelta(hours=1))
    await own_console.client.events.CreateEvent(
        event_service_pb2.CreateEventRequest(event=event, event_id="midnight-sale")
    )
    await page.goto(f"{own_console.url}/night")
    await expect(page.locator("#verdict")).to_have_attribute("data-verdict", "none")
    first = await page.locator("#countdown").inner_text()
    await expect(page.locator("#countdown")).not_to_have_text(first)
    # The loop plans: the page shows it without a reload.
    await world.store_loop(own_console.store, "recommender", 8000.0, 9, 6, now)
    await expect(page.locator("#verdict")).to_have_attribute("data-verdict", "on_time")
    await expect(page.locator(".rungs li")).to_have_count(5)
    await expect(page.locator(".rungs li").last).to_contain_text("6")
    await own_console.stop_api()
    await expect(page.locator("html")).to_have_attribute("data-stale", "")
    await expect(page.locator("#banner")).to_be_visible()
    await own_console.start_api()
    await expect(page.locator("html")).not_to_have_attribute("data-stale", "")


@in_browser
async def test_an_override_is_refused_without_an_end_then_put_in_force_and_ended(
    own_console: ConsoleWorld, page: Page
) -> None:
    await one_workload(own_console)
    await page.goto(f"{own_console.url}/overrides")
    form = page.locator("#override-form")
    await form.get_by_label("Workload").select_option("recommender")
    await form.get_by_label("Replicas").fill("12")
    await form.get_by_label("Reason").fill("load test")
    await form.get_by_role("button", name="Put in force").click()
    await expect(form).to_contain_text("must end by itself")
    await form.get_by_label("Ends after").select_option("60")
    await form.get_by_role("button", name="Put in force").click()
    await expect(page.locator("#board")).to_contain_text("At least 12 replicas")
    listed = await own_console.client.control.ListOverrides(control_service_pb2.ListOverridesRequest())
    assert ["load test"] == [one.reason for one in listed.overrides]
    await page.get_by_role("button", name="End").click()
    await expect(page.locator("#board")).to_contain_text("No override is in force")


@in_browser
async def test_every_page_is_accessible_and_fits_wide_and_on_a_phone(
    console: ConsoleWorld, new_page: NewPage
) -> None:
    found: list[str] = []
    for size, scheme, locale in ((WIDE, "light", "en-GB"), (PHONE, "dark", "zh-CN")):
        page = await new_page(size=size, scheme=scheme, locale=locale)
        for path in PAGES:
            await page.goto(console.url + path)
            await page.wait_for_selector("html[data-ready]")
            result = await Axe().run(page)
            found += [
                f"{path} {scheme}: {v['id']} {[n['html'][:120] for n in v['nodes'][:3]]}"
                for v in result.response["violations"]
            ]
            wide = await page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            found += [f"{path} {scheme}: {wide} px too wide"] if wide > 0 else []
    assert "" == "\n".join(found)
