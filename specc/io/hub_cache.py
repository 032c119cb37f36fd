"""Suggest a local checkpoint directory for a Hugging Face hub name or cache directory."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from specc.io.safe_read import escape_text

_MODEL_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_MAX_BYTES = 200
"""Maximum size of a file that holds a revision."""


def suggest_for_cache_directory(folder: Path) -> str:
    """What to give instead of a folder of the cache; empty for any other folder."""
    found = next(_iterate_cached_models(folder), None)
    if found is None:
        return ""
    which = "the version that you mean" if found.parents[1] == folder else "one model"
    return f"it is the hub's cache: give the folder of {which}, {escape_text(found)}"


def suggest_for_hub_name(name: str) -> str:
    """What to give instead of a model's name on the hub; empty for what is none."""
    if not _MODEL_ID.fullmatch(name):
        return ""
    model = _get_cache_directory() / f"models--{name.replace('/', '--')}"
    if (found := next(_iterate_cached_models(model), None)) is not None:
        return f"the hub's model of that name lies in {escape_text(found)}: give that folder"
    if "/" not in name:
        return ""
    return f"if this is a model of the Hugging Face Hub, give `hf:{name}`"


def _get_cache_directory() -> Path:
    """Where fetched models are kept, as the hub's own programs have it."""
    home = os.environ.get("HF_HOME", "")
    above = Path(home) if home else Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE", "") or above / "hub")


def _iterate_cached_models(folder: Path) -> Iterator[Path]:
    """The newest version of each model in a folder of the cache, at most two floors up."""
    with suppress(OSError):
        if (folder / "snapshots").is_dir():
            yield from _iterate_newest_snapshot(folder)
            return
        for hub in (folder, folder / "hub"):
            for model in sorted(hub.glob("models--*")):
                yield from _iterate_newest_snapshot(model)


def _iterate_newest_snapshot(model: Path) -> Iterator[Path]:
    """The version of a model that was fetched last, if it has a config.json."""
    versions = sorted(p.parent for p in (model / "snapshots").glob("*/config.json"))
    with suppress(OSError, ValueError):
        if (model / "refs" / "main").stat().st_size <= _MAX_BYTES:
            main = (model / "refs" / "main").read_text(encoding="ascii").strip()
            versions.sort(key=lambda version: version.name != main)
    yield from versions[:1]
