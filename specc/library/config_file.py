"""Finds and reads the configuration that `--config` or the folder of a checkpoint names."""

from pathlib import Path

from specc.elaborate.config_json import config_source, read_config
from specc.elaborate.json_nodes import JsonObject
from specc.files.read import Unreadable, read_regular, shown
from specc.text.diagnostic import fail

MOST_CONFIG_BYTES = 16 << 20
NAME = "config.json"


HELP = "give the file, or the folder with its config.json, with --config"


def config_at(path: str | Path, help: str = HELP) -> JsonObject:
    """The configuration in a file, or in the config.json of a folder. Fails with E0802,
    whose `help` says what to give, E0410 to E0415.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path = path / NAME
        data = read_regular(path, MOST_CONFIG_BYTES)
    except (Unreadable, OSError, ValueError) as error:
        reason = (
            error.reason
            if isinstance(error, Unreadable)
            else "the name is not one a file can have"
        )
        fail(
            "E0802",
            f"cannot read the configuration `{shown(str(path))}`: {reason}",
            helps=[help],
        )
    return read_config(config_source(data, shown(str(path))))


def has_config(folder: str) -> bool:
    """Whether a checkpoint is a folder that holds a config.json."""
    try:
        return bool(folder) and Path(folder).is_dir() and (Path(folder) / NAME).exists()
    except (OSError, ValueError):
        return False
