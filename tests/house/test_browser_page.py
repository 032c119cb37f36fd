"""The page of docs/demos/browser allows only its own directory and never creates markup from
text."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "demos" / "browser"
HTML = (PAGE / "index.html").read_text("utf-8")
SCRIPTS = sorted(PAGE.glob("*.js"))


def test_content_security_policy() -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', HTML)
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("script-src") == "'self' 'wasm-unsafe-eval'"
    assert set(rules.values()) <= {"'self'", "'none'"}


def test_no_inline_scripts_or_styles() -> None:
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", HTML)
    assert not re.search(r'(src|href)="(?!style\.css|page\.js)', HTML)


def test_scripts_create_no_markup_and_evaluate_no_text() -> None:
    assert len(SCRIPTS) >= 4
    for path in SCRIPTS:
        text = path.read_text("utf-8")
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
        )
        assert not found, path.name
        addresses = set(re.findall(r"https?://[^\s\"'`]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}
