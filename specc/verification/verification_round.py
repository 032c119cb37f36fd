"""Result of one round of `specc verify`."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class VerificationRound:
    """A graph and its reference at one set of lengths.

    `agrees` is None where nothing can be told: nothing was `compared`, or rounding
    decides. `worst` is the largest difference of any of the `results`, of the largest
    value of that result. `note` is what else there is to say, as the end of the line.
    `uncovered` are the branches and loop bodies that no round has executed; a value of
    its own after all rounds.
    """

    graph: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    compared: bool = True
    agrees: bool | None = True
    results: int = 0
    worst: float = 0.0
    note: str = ""
    uncovered: tuple[str, ...] = ()

    def __str__(self) -> str:
        graph = f"{self.graph}: " if self.graph else ""
        if self.uncovered:
            return f"{graph}not covered: {', '.join(self.uncovered)}"
        lengths = f"{format_lengths(self.sizes)}: " if self.compared else ""
        return f"{graph}{lengths}{self._agreeing()}{self.note}"

    def _agreeing(self) -> str:
        """How many results agree, and how well; nothing where that is not so."""
        if not (self.compared and self.agrees):
            return ""
        one = self.results == 1
        agree = "1 result agrees" if one else f"{self.results} results agree"
        return f"{agree}, worst difference {self.worst:.1e} of the largest value"

    def told(self) -> dict[str, object]:
        """Plain values; the note without what joins it to the line."""
        return {
            "graph": self.graph,
            "sizes": dict(self.sizes),
            "compared": self.compared,
            "agrees": self.agrees,
            "results": self.results,
            "worst": self.worst,
            "note": self.note.lstrip("; ,"),
            "uncovered": list(self.uncovered),
        }


def format_lengths(sizes: Mapping[str, int]) -> str:
    """`batch=2, seq=3`."""
    return ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed sizes"
