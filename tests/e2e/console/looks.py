"""What every page must look like: no finding of axe, nothing wider than the screen."""

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


async def accessible(page: Page) -> None:
    """Fail with what axe finds on the page as it is now."""
    # The injected script is axe's own; Playwright evaluates outside of the page's policy.
    found = await Axe().run(page, options=RULES)
    violations = [
        f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
        for one in found.response["violations"]
        for node in one["nodes"][:3]
    ]
    # Said here: pytest rewrites assertions of test files only.
    assert not violations, "\n".join(violations)


async def fits(page: Page) -> None:
    """Fail if the page scrolls sideways."""
    wider = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0, f"{page.url} is {wider} px wider than the screen"
