"""The fleet in a browser."""

from playwright.async_api import Page, expect

from tests.e2e.console.conftest import ConsoleWorld, in_browser


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
    await expect(unknown.locator("td").nth(3)).not_to_contain_text("0")
