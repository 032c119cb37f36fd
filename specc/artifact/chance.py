"""What of a model's weights was drawn and not trained, as those who run it are told."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chance:
    """The seed that weights were drawn from: all of them, or `count` of a new head."""

    seed: int
    count: int = 0

    def __str__(self) -> str:
        if not self.count:
            return f"the weights are random (seed {self.seed})"
        many = "s of a new head are" if self.count > 1 else " of a new head is"
        return f"{self.count} weight{many} random (seed {self.seed})"
