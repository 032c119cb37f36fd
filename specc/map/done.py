"""What there is to say of a block that is done, beside its part."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Done:
    """What there is to say of a block: rows, faults by row, places and padding; how many
    `seconds` were computed, and of how many multiply-adds (`work`) by the cost formulas.
    """

    number: int
    rows: int
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    places: int = 0
    padding: int = 0
    seconds: float = 0.0
    work: int = 0

    def as_json(self) -> dict[str, object]:
        """As JSON."""
        return dict(vars(self))

    @staticmethod
    def read(data: dict[str, object]) -> "Done":
        """What `as_json` gave."""
        errors = data["errors"]
        assert isinstance(errors, list)
        return Done(
            number=_whole(data["number"]),
            rows=_whole(data["rows"]),
            errors=[(int(n), str(c), str(t)) for n, c, t in errors],
            places=_whole(data["places"]),
            padding=_whole(data["padding"]),
            seconds=float(str(data["seconds"])),
            work=_whole(data["work"]),
        )


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
