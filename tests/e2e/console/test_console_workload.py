"""One workload in a browser."""

from playwright.async_api import Page, expect

from tests.e2e.console.conftest import PHONE, ConsoleWorld, NewPage, in_browser
from tests.e2e.console.looks import accessible, fits


@in_browser
async def test_everything_about_a_workload_is_on_its_page(console: ConsoleWorld, page: Page) -> None:
    await page.goto(f"{console.url}/workloads/recommender")
    await expect(page.locator("#axis")).to_have_attribute(
        "data-drawn", "/workloads/recommender/series?range=day"
    )
    await expect(page.locator("#head")).to_contain_text("Midnight sale")
    await expect(page.locator("#head")).to_contain_text("+3 on the way")
    await expect(page.locator(".ladder")).to_contain_text("6 / 9")
    await expect(page.locator("table.decisions tbody tr")).to_have_count(12)
    await expect(page.locator("#parts")).to_contain_text("Season")
    await expect(page.locator("#parts")).to_contain_text("unproven")
    await expect(page.locator("#parts")).to_contain_text("Not limited")


@in_browser
async def test_a_workload_nobody_knows_anything_of_has_no_zeros(console: ConsoleWorld, page: Page) -> None:
    await page.goto(f"{console.url}/workloads/new-model")
    tiles = page.locator("#head .tiles dd")
    for number in (0, 2, 3, 4):
        await expect(tiles.nth(number)).to_contain_text("unknown")
    await expect(page.locator("#parts")).to_contain_text("Nothing was decided yet.")
    await expect(page.locator("#parts")).to_contain_text("No forecast was made yet.")


@in_browser
async def test_a_decision_explains_itself_in_a_drawer_and_gives_the_focus_back(
    console: ConsoleWorld, page: Page
) -> None:
    await page.goto(f"{console.url}/workloads/recommender")
    link = page.locator("#why-recommender-11")
    await link.focus()
    await page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    await expect(drawer).to_contain_text("Midnight sale needs 9 warm by its deadline")
    await expect(drawer.get_by_role("row", name="Event")).to_contain_text("decided")
    await expect(drawer.get_by_role("row", name="Present demand")).to_contain_text("overruled")
    await accessible(page)
    await page.keyboard.press("Escape")
    await expect(drawer).to_be_hidden()
    await expect(link).to_be_focused()
    # The same without scripts: an address of its own.
    await page.goto(f"{console.url}/decisions/recommender-11")
    await expect(page.locator("h1")).to_have_text("Why this many replicas")
    await accessible(page)


@in_browser
async def test_the_time_axis_zooms_by_keyboard_and_by_drag_and_changes_its_range(
    console: ConsoleWorld, page: Page
) -> None:
    await page.goto(f"{console.url}/workloads/recommender")
    axis = page.locator("#axis")
    await expect(axis).to_have_attribute("data-drawn", "/workloads/recommender/series?range=day")
    await page.locator("#axis-table summary").click()
    first = page.locator("#axis-rows th").first
    whole = await first.inner_text()
    await page.get_by_role("button", name="Zoom in").focus()
    await page.keyboard.press("Enter")
    await expect(first).not_to_have_text(whole)
    await page.get_by_role("button", name="All").click()
    await expect(first).to_have_text(whole)
    over = page.locator("#demand .u-over")
    box = await over.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 60, steps=4)
    await page.mouse.up()
    await expect(first).not_to_have_text(whole)
    await expect(page.locator("#readout")).to_contain_text("forecast")
    for name in ("week", "month", "event"):
        await page.locator(f"#range-{name}").click()
        await expect(axis).to_have_attribute("data-drawn", f"/workloads/recommender/series?range={name}")
        await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        assert f"range={name}" in page.url


@in_browser
async def test_the_workload_is_accessible_in_both_themes_and_fits_a_phone(
    console: ConsoleWorld, new_page: NewPage
) -> None:
    for scheme in ("light", "dark"):
        for size in (None, PHONE):
            page = await new_page(scheme=scheme, size=size)
            await page.goto(f"{console.url}/workloads/recommender")
            await expect(page.locator("#demand canvas")).to_be_visible()
            await accessible(page)
            await fits(page)
