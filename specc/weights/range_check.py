"""Check that weights fit a narrower dtype."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from specc.io.safe_read import escape_text
from specc.weights.norm_folding import MOVED
from specc.weights.parameter_values import VALUES, ByteRange, convert_dtype
from specc.weights.value_overlay import ValuesOverlay

SCALES = "scales looked at, by which its numbers reach"
"""What is counted of a rounded weight."""


@dataclass(frozen=True)
class NarrowDtype:
    """The type that a parameter is computed in. Scales stand for numbers up to `most`
    times as large, of the weight `of`.
    """

    dtype: str
    of: str
    most: float = 1.0


@dataclass(frozen=True)
class RangeCheckedValues(ValuesOverlay):
    """The numbers of a model, those of `narrow` looked at on their way; those of `moved`
    have a part of a norm's gain. Implements `Values`.
    """

    narrow: Mapping[str, NarrowDtype]
    moved: Container[str] = ()

    def run(self, name: str) -> ByteRange | None:
        """Where the numbers lie in a file. Fails with E0517 as `chunks` does: what stays
        in a file is asked for by nobody else.
        """
        found = self.base.run(name)
        if found is not None and name in self.narrow:
            for _ in self.chunks(name, "f32"):
                pass
        return found

    def chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """The numbers as bytes. Fails as those of the checkpoint do, and with E0517 for
        one that the type they are computed in cannot hold.
        """
        narrow = self.narrow.get(name)
        for chunk in self.base.chunks(name, dtype):
            # what is stored in that type was looked at when it was converted
            if narrow is not None and dtype == "f32":
                block = np.frombuffer(chunk, np.float32) * np.float32(narrow.most)
                place = f"`{escape_text(narrow.of)}`"
                mends = (MOVED,) if narrow.of in self.moved else ()
                counted = VALUES if name == narrow.of else SCALES
                convert_dtype(block, narrow.dtype, place, *mends, counted=counted)
            yield chunk
