"""Parameter values that change those of a base."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.weights.parameter_values import ByteRange, ParameterValues
from specc.weights.weight_rules import RequiredParameter


@dataclass(frozen=True)
class ValuesOverlay:
    """Everything about `base` as it is: what implements `ParameterValues` over others says what
    it changes, its `chunks` at the least.
    """

    base: ParameterValues

    @property
    def wanted(self) -> Mapping[str, RequiredParameter]:
        """Every parameter by name."""
        return self.base.wanted

    def tied_to(self, name: str) -> str | None:
        """The parameter whose numbers this one shares."""
        return self.base.tied_to(name)

    def stored_dtype(self, name: str) -> str:
        """The type the numbers come in."""
        return self.base.stored_dtype(name)

    def run(self, name: str) -> ByteRange | None:
        """Where the numbers lie in a file."""
        return self.base.run(name)

    def look_through(self, names: Iterable[str]) -> dict[Path, str]:
        """The SHA-256 of the files that weights stay in."""
        return self.base.look_through(names)
