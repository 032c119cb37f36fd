"""Build hook that sets the README of the package metadata, without links and images of repository
files, because a package index cannot resolve relative links.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n", re.MULTILINE)
RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)")
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)


def remove_relative_links(text: str) -> str:
    """Return Markdown without comments and relative images. Relative links become plain text."""
    return RELATIVE_LINK.sub(r"\1", RELATIVE_IMAGE.sub("", COMMENT.sub("", text)))


class ReadmeHook(MetadataHookInterface):
    """Sets the `readme` field of the package metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read README.md from the repository root and set the `readme` field."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": remove_relative_links(text)}
