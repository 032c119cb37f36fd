"""The slowest decoder there is: every step is a full pass of the reference over
everything written so far.

What else decodes is compared with it. It has no caches, no states and no derived
graphs, in float64.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specc_numpy
from specc.ir.model import resolve_absent_inputs
from support.spec_models import Arrays, Opened, by_reference


class FullPass:
    """A `specc.decode.token_choice.Stepper`. `others` are inputs that stay; `beside` those
    along the time axis.
    """

    def __init__(
        self,
        spec: Opened,
        weights: Arrays,
        others: Mapping[str, NDArray[Any]],
        beside: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        assert spec.model.generation
        self.spec, self.weights = spec, weights
        self.others, self.beside = dict(others), dict(beside or {})
        self.growing, self.source = (spec.model.generation.growing, spec.model.generation.source)
        self.tokens: NDArray[np.int64] | None = None

    def step(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits of the newest row after more tokens; rows beside them are what their
        defaults say.
        """
        if self.tokens is None:
            self.tokens = tokens
        else:
            self.tokens = np.concatenate([self.tokens, tokens], axis=1)
            self.beside = {
                n: np.concatenate([a, self._written(n, tokens)], axis=1)
                for n, a in self.beside.items()
            }
        given = {**self.others, **self.beside, self.growing: self.tokens}
        made = by_reference(self.spec, self.weights, given)[self.source]
        newest = made[:, -1] if made.ndim == 3 else made
        # A text of padding alone begins with what stands before it.
        if made.ndim == 3 and made.shape[1] > self.tokens.shape[1]:
            for there in self.beside.values():
                if there.shape == self.tokens.shape:
                    first = made[:, -1 - there.shape[1]]
                    newest = np.where(there.any(1)[:, None], newest, first)
        return newest.astype(np.float32)

    def _written(self, name: str, tokens: NDArray[np.int64]) -> NDArray[Any]:
        defaults = self.spec.model.defaults
        keep = self.spec.model.graph.input_facts[name].keep
        if defaults is None or name not in defaults.outputs or keep != "any":
            return np.ones(tokens.shape, bool)
        whole = specc_numpy.evaluate_graph(
            resolve_absent_inputs(defaults, (name,)), {self.growing: self.tokens}, {}
        )
        return whole[name][:, -tokens.shape[1] :]

    def reorder(self, rows: NDArray[np.int64]) -> None:
        """Row r goes on from what row `rows[r]` was."""
        assert self.tokens is not None
        self.tokens = self.tokens[rows]
        self.others, self.beside = (
            {n: a[rows] for n, a in m.items()} for m in (self.others, self.beside)
        )
