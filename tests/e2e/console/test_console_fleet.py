"""The fleet in a browser."""

from playwright.async_api import Page, expect

from tests.e2e.console.conftest import PHONE, ConsoleWorld, NewPage, in_browser
from tests.e2e.console.looks import accessible, fits


@in_browser
async def test_the_fleet_shows_every_workload_and_marks_what_is_unknown(
    console: ConsoleWorld, page: Page
) -> None:
    await page.goto(console.url)
    rows = page.locator("table.fleet tbody tr")
    await expect(rows).to_have_count(6)
    await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    unknown = rows.filter(has_text="new-model")
    await expect(unknown).to_contain_text("unknown")
    for cell in (0, 1, 2, 3):
        await expect(unknown.locator("td").nth(cell)).not_to_contain_text("0")
    await expect(rows.first).to_contain_text("Prewarm missed")
    await expect(rows.filter(has_text="recommender")).to_contain_text("6 / 9")


@in_browser
async def test_filter_order_and_pages_keep_the_page_and_have_addresses(
    console: ConsoleWorld, page: Page
) -> None:
    await page.goto(console.url)
    await page.keyboard.press("/")
    await page.keyboard.type("midnight")
    rows = page.locator("table.fleet tbody tr")
    await expect(rows).to_have_count(2)
    await page.locator("#sort-demand").click()
    await expect(page.locator("th[aria-sort=descending]")).to_contain_text("Demand")
    await expect(rows.first).to_contain_text("recommender")
    await expect(page.locator("#sort-demand")).to_be_focused()
    assert "q=midnight" in page.url
    assert "sort=demand" in page.url
    await page.reload()
    await expect(rows).to_have_count(2)
    await page.fill("#q", "nothing like it")
    await expect(page.locator(".empty")).to_contain_text("No workload matches")


@in_browser
async def test_the_fleet_is_accessible_in_both_themes_and_fits_a_phone(
    console: ConsoleWorld, new_page: NewPage
) -> None:
    for scheme in ("light", "dark"):
        for size in (None, PHONE):
            page = await new_page(scheme=scheme, size=size)
            await page.goto(console.url)
            await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
            await accessible(page)
            await fits(page)
