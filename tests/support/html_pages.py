"""Parse generated HTML pages and check the rules that all of them follow."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser


class PageParser(HTMLParser):
    """The elements of a page, with their attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = tag
        self.inside.setdefault(tag, []).append("")

    def handle_data(self, data: str) -> None:
        if self.open:
            self.inside[self.open][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.open = ""


def read_page_data(text: str) -> dict:
    """Return the JSON data in a page."""
    return json.loads(PageParser(text).inside["script"][0])


def check_page(text: str) -> None:
    """Check the rules of every page: a strict content security policy with hashes, no external
    URLs, no inline handlers.
    """
    read = PageParser(text)
    names = [name for name, _ in read.elements]
    assert names.count("script") == 2, "data and program"
    assert names.count("style") == 1
    assert not {"iframe", "object", "embed", "link", "base", "form"} & set(names)
    (policy,) = [
        a["content"]
        for n, a in read.elements
        if n == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    for kind, inside in (("script", read.inside["script"][1]), ("style", read.inside["style"][0])):  # fmt: skip
        digest = hashlib.sha256(inside.encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for name, attributes in read.elements:
        assert "style" not in attributes, name
        assert not [a for a in attributes if a.startswith("on")], name
        for address in ("href", "src"):
            value = attributes.get(address) or "#"
            assert value.startswith(("#", "data:image/png;base64,")), value
    outside = re.sub(r'xmlns="http://www.w3.org/[^"]*"', "", text)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", outside)
