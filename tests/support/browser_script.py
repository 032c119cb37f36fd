"""Open an HTML page offline in a browser, run steps, and print the results as JSON.

    browser_script.py PAGE.html CHROMIUM light|dark STEP…

A step is `click SELECTOR`, `hover SELECTOR X Y`, `fill SELECTOR VALUE`, `check SELECTOR`, `text
SELECTOR`, `count SELECTOR`, `shown SELECTOR`. The Python of `.other-runtimes/browser` runs this file.
"""

import json
import shlex
import sys

from playwright.sync_api import Page, sync_playwright


def run_step(page: Page, step: str) -> object:
    """Run one step and return its result."""
    verb, selector, *rest = shlex.split(step)
    found = page.locator(selector).first
    match verb:
        case "click":
            found.click(timeout=5000)
        case "hover":
            found.hover(position={"x": float(rest[0]), "y": float(rest[1])})
        case "fill":
            found.fill(rest[0])
        case "check":
            found.check()
        case "text":
            return found.inner_text()
        case "count":
            return page.locator(selector).count()
        case "shown":
            return found.is_visible()
    return None


def main(path: str, chromium: str, scheme: str, steps: list[str]) -> None:
    """Return console messages, requested URLs and the results of the steps."""
    said: list[str] = []
    asked: list[str] = []
    with sync_playwright() as program:
        browser = program.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": 1280, "height": 960}
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{path}")
        read = [run_step(page, step) for step in steps]
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    print(json.dumps({"said": said, "asked": asked, "read": read, "paper": paper}))


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
