"""What holds files, and lets go of them at the end of a `with`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Closed when the block that opened it is left, whatever happened there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held. Closing twice does no more than closing once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
