"""The README as the package index shows it: links that lead into the source lead nowhere
there, so that their words stay and the links go.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)")
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)


def plain(text: str) -> str:
    """Markdown without pictures and links of files beside it."""
    return LINK.sub(r"\1", PICTURE.sub("", COMMENT.sub("", text)))


class Readme(MetadataHookInterface):
    """Fills in the readme of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read README.md, which stands beside this file."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": plain(text)}
