"""Scales of states that are kept in few bits, among the numbers of a model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specc.ir.array import Array
from specc.weights.over import Over
from specc.weights.rules import Wanted
from specc.weights.values import Run


@dataclass(frozen=True)
class WithScales(Over):
    """The numbers of a model, and arrays f32 beside them by name. Implements `Values`."""

    scales: Mapping[str, Array]

    @cached_property
    def wanted(self) -> Mapping[str, Wanted]:
        """Every parameter by name."""
        more = {
            n: Wanted(name=n, shape=array.shape) for n, array in self.scales.items()
        }
        return {**self.base.wanted, **more}

    def tied_to(self, name: str) -> str | None:
        """The parameter whose numbers this one shares."""
        return None if name in self.scales else self.base.tied_to(name)

    def stored_dtype(self, name: str) -> str:
        """The type the numbers come in."""
        return "f32" if name in self.scales else self.base.stored_dtype(name)

    def run(self, name: str) -> Run | None:
        """Where the numbers lie in a file; scales lie in none."""
        return None if name in self.scales else self.base.run(name)

    def chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """The numbers as bytes. Fails as those of the checkpoint do."""
        if name not in self.scales:
            yield from self.base.chunks(name, dtype)
            return
        array = np.ascontiguousarray(self.scales[name], np.float32)
        yield array.view(np.uint8).reshape(-1).data
