"""The file that contains the generation settings of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text


@dataclass
class GenerationConfigFile:
    """The generation settings of a checkpoint in generation_config.json or config.json. `settings`
    are the settings that have been converted so far.
    """

    path: Path
    keys: Mapping[str, object]
    settings: dict[str, object] = field(default_factory=dict)

    def get_value(self, key: str) -> object:
        """Return the value of a key, or None if the key is absent or null."""
        return self.keys.get(key)

    def get_table(self, key: str) -> dict[str, object]:
        """Return the object that is the value of a key, or {} if the key is absent."""
        value = self.get_value(key)
        return value if isinstance(value, dict) else {}

    def raise_unsupported(self, key: str, reason: str) -> NoReturn:
        """Raise E0847 at the position of `key`, or for the whole file if `key` is ""."""
        location = f"`{key}` in " if key else ""
        raise_error(
            "E0847",
            f"{location}`{escape_text(self.path)}` {reason}",
            helps=[
                "remove the setting from the file if the generated sequences may differ",
                "or compile from a directory without this file",
            ],
        )
