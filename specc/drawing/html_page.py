"""Self-contained HTML pages."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from specc.drawing.svg import MADE_BY
from specc.io.json_io import Json

HERE = Path(__file__).parent


def read_page_resource(name: str) -> str:
    """A style or a program that lies beside this module."""
    return (HERE / name).read_text(encoding="utf-8")


def render_page(
    title: str, body: str, *, styles: Sequence[str], programs: Sequence[str], data: Json
) -> str:
    """The whole file. `body` is markup whose texts are escaped; `data` is what a program
    finds as JSON in the element `data`. A `title` is plain text.
    """
    style, program = "\n".join(styles), "\n".join(programs)
    return "\n".join(
        [
            "<!doctype html>",
            MADE_BY,
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" '
            f'content="{content_security_policy(style, program)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            body,
            f'<script type="application/json" id="data">{escape_json(data)}</script>',
            f"<script>{program}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def content_security_policy(style: str, program: str) -> str:
    """The content-security-policy of a page with this style and this program."""
    return (
        f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{b64encode(digest).decode('ascii')}'"


def escape_json(data: Json) -> str:
    """JSON that stands in a script element and cannot end it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    # `</script>` in a token would end the element; JSON reads the escapes as the same
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
