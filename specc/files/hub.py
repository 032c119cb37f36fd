"""Where models lie that other programs fetched from the Hugging Face hub, for advice about
names and folders that are no checkpoint themselves.

In its cache a model is a folder `models--OWNER--NAME`; each version that was fetched is one
in `snapshots`, whose files are links into `blobs`. `refs/main` has the newest's name.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from specc.files.read import shown

_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_MOST_BYTES = 200
"""Of a file that holds the name of a version."""


def advice_for_folder(folder: Path) -> str:
    """What to give instead of a folder of the cache; empty for any other folder."""
    found = next(_models(folder), None)
    if found is None:
        return ""
    which = "the version that you mean" if found.parents[1] == folder else "one model"
    return f"it is the hub's cache: give the folder of {which}, {shown(str(found))}"


def advice_for_name(name: str) -> str:
    """What to give instead of a model's name on the hub; empty for what is none."""
    if not _NAME.fullmatch(name):
        return ""
    model = _cache() / f"models--{name.replace('/', '--')}"
    if (found := next(_models(model), None)) is not None:
        return f"the hub's model of that name lies in {shown(str(found))}: give that folder"
    if "/" not in name:
        return ""
    return (
        "specc fetches nothing: if this is a model of the Hugging Face hub, "
        f"`hf download {name}` prints the folder to give instead"
    )


def _cache() -> Path:
    """Where fetched models are kept, as the hub's own programs have it."""
    home = os.environ.get("HF_HOME", "")
    above = Path(home) if home else Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE", "") or above / "hub")


def _models(folder: Path) -> Iterator[Path]:
    """The newest version of each model in a folder of the cache, at most two floors up."""
    with suppress(OSError):
        if (folder / "snapshots").is_dir():
            yield from _newest(folder)
            return
        for hub in (folder, folder / "hub"):
            for model in sorted(hub.glob("models--*")):
                yield from _newest(model)


def _newest(model: Path) -> Iterator[Path]:
    """The version of a model that was fetched last, if it has a config.json."""
    versions = sorted(p.parent for p in (model / "snapshots").glob("*/config.json"))
    with suppress(OSError, ValueError):
        if (model / "refs" / "main").stat().st_size <= _MOST_BYTES:
            main = (model / "refs" / "main").read_text(encoding="ascii").strip()
            versions.sort(key=lambda version: version.name != main)
    yield from versions[:1]
