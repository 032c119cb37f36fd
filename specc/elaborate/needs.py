"""What is raised where something is to be decided by a number that is not known."""

from specc.text.source import Span


class NeedsValue(Exception):
    """A choice of structure hangs on symbols that stand for config values."""

    def __init__(self, symbols: frozenset[str], span: Span | None) -> None:
        super().__init__(", ".join(sorted(symbols)))
        self.symbols = symbols
        self.span = span
