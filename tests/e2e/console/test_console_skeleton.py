"""What every page has: loss and return of the API, language, theme, keyboard, local times."""

import asyncio

from forecrest.v1 import workload_pb2, workload_service_pb2
from playwright.async_api import Page, expect

from tests.e2e.console.conftest import ConsoleWorld, NewPage, in_browser
from tests.e2e.console.looks import accessible


async def _register(console: ConsoleWorld, name: str) -> None:
    workload = workload_pb2.Workload(
        model_name="m", profiles=[workload_pb2.CapacityProfile(engine="e", qps_max=10)]
    )
    await console.client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload_id=name, workload=workload)
    )


@in_browser
async def test_a_lost_api_greys_the_numbers_and_says_since_when_and_its_return_needs_no_reload(
    own_console: ConsoleWorld, page: Page
) -> None:
    await _register(own_console, "first")
    await page.goto(own_console.url)
    await page.evaluate("window.sameDocument = true")
    banner, root = page.locator("#banner"), page.locator("html")
    await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    await expect(banner).not_to_have_class("banner shown")
    await own_console.stop_api()
    await expect(root).to_have_attribute("data-stale", "", timeout=60_000)
    await expect(banner).to_contain_text("Connection lost since")
    await expect(banner).to_contain_text("numbers are of")
    # What was known stays to be seen.
    await expect(page.locator("table.fleet tbody tr")).to_have_count(1)
    # Somebody who comes now sees the same, and nothing that looks fresh.
    other = await page.context.new_page()
    await other.goto(own_console.url)
    await expect(other.locator("#banner")).to_contain_text("Connection lost since")
    await expect(other.locator("html")).to_have_attribute("data-stale", "")
    await own_console.start_api()
    await _register(own_console, "second")
    await expect(page.locator("table.fleet tbody tr")).to_have_count(2, timeout=60_000)
    await expect(banner).to_be_hidden()
    assert await page.evaluate("window.sameDocument && !document.documentElement.hasAttribute('data-stale')")


@in_browser
async def test_a_console_that_ends_is_noticed_by_its_pages(own_console: ConsoleWorld, page: Page) -> None:
    await page.goto(own_console.url)
    await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    await own_console.console.stop()
    await expect(page.locator("#banner")).to_contain_text("console itself does not answer", timeout=60_000)
    await expect(page.locator("html")).to_have_attribute("data-stale", "")


@in_browser
async def test_one_refresh_serves_all_viewers_and_none_happens_for_nobody(
    own_console: ConsoleWorld, page: Page
) -> None:
    def refreshes() -> int:
        return sum(task.get_name() == "console fleet" for task in asyncio.all_tasks())

    async def none_is_left() -> None:
        async with asyncio.timeout(60):
            while refreshes():  # noqa: ASYNC110 -- its end is asked for
                await asyncio.sleep(0.02)

    await none_is_left()  # of the console that other tests share, on the same loop
    await page.goto(own_console.url)
    others = [await page.context.new_page() for _ in range(3)]
    for one in others:
        await one.goto(own_console.url)
        await expect(one.locator("#pulse")).to_have_attribute("data-state", "live")
    assert 1 == refreshes()
    for one in [page, *others]:
        await one.close()
    await none_is_left()


@in_browser
async def test_language_and_theme_are_kept(console: ConsoleWorld, new_page: NewPage) -> None:
    page = await new_page(locale="zh-CN", scheme="dark")
    await page.goto(console.url)
    await expect(page.locator("h1")).to_have_text("总览")
    await expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    await page.get_by_role("link", name="English").click()
    await expect(page.locator("h1")).to_have_text("Fleet")

    async def background() -> str:
        found: str = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    dark = await background()
    await page.get_by_role("link", name="Light").click()
    light = await background()
    assert dark != light
    await page.goto(f"{console.url}/workloads/ranker")
    assert light == await background()
    await expect(page.locator("html")).to_have_attribute("lang", "en")


@in_browser
async def test_the_keyboard_alone_suffices(console: ConsoleWorld, page: Page) -> None:
    await page.goto(console.url)
    await page.keyboard.press("Tab")
    skip = page.locator(".skip")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.locator("#w-recommender").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("recommender")


@in_browser
async def test_times_are_in_the_viewers_zone_and_hover_shows_utc(console: ConsoleWorld, page: Page) -> None:
    await page.goto(f"{console.url}/workloads/recommender")
    first = page.locator("table.decisions time").first
    await expect(first).to_have_attribute("data-done", "1")
    shown, title = await first.inner_text(), await first.get_attribute("title") or ""
    utc_hour, local_hour = int(title[11:13]), int(shown.rpartition(", ")[2][:2])
    assert title.endswith("UTC")
    assert (utc_hour + 8) % 24 == local_hour  # Asia/Shanghai


@in_browser
async def test_an_unknown_address_and_the_login_are_pages_in_words(console: ConsoleWorld, page: Page) -> None:
    await page.goto(f"{console.url}/workloads/not-there")
    await expect(page.locator("h1")).to_have_text("That did not work")
    await expect(page.locator("main")).to_contain_text("There is no such thing here.")
    await accessible(page)
    await page.goto(f"{console.url}/login")
    await expect(page.get_by_label("Token")).to_be_focused()
    await accessible(page)


@in_browser
async def test_pages_ask_nobody_but_the_console(console: ConsoleWorld, page: Page) -> None:
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    await page.goto(f"{console.url}/workloads/recommender")
    await expect(page.locator("#demand canvas")).to_be_visible()
    assert len(asked) > 5
    assert [] == [url for url in asked if not url.startswith(console.url)]
