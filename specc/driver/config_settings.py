"""Parse `--set path=value`."""

from collections.abc import Sequence

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source
from specc.frontend.spec_modules import ConfigAssignment, flatten_assignments
from specc.io.safe_read import escape_text
from specc.syntax.parse import parse_expression


def parse_config_settings(sets: Sequence[str]) -> dict[str, ConfigAssignment]:
    """Return the values given by `--set`, keyed by config path. Raise E0407 if `=` is missing."""
    assigned: dict[str, ConfigAssignment] = {}
    for setting in sets:
        path, equals, text = setting.partition("=")
        if not equals:
            raise_error(
                "E0407",
                f"`--set {escape_text(setting)}` has no value",
                helps=["write --set heads=4"],
            )
        expr = parse_expression(Source(f"--set {path}", text))
        flatten_assignments(path.strip(), expr, expr.span, assigned)
    return assigned
