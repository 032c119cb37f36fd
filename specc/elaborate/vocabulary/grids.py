"""Masks, biases and scores as grids over the rows of a query and a key, on behalf of the
words that take them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from specc.elaborate.definitions import Grid, Rows, bias_grid, expand, mask_grid
from specc.elaborate.kinds import Score
from specc.elaborate.names import weight_path
from specc.elaborate.values import Known, Tensor, WordFunction, describe, first
from specc.elaborate.vocabulary.registry import Site
from specc.ir import ops
from specc.ir.dim import Dim
from specc.text.diagnostic import Failed, Label, fail


def mask_of(site: Site, mask: Known, rows: Rows, beside: int) -> Grid:
    """The option `mask` as a grid for scores of `beside` axes; a truth where it shows
    everything or nothing.
    """
    span = site.spans.get("mask")
    with _pointing_at(site, "mask", "E0604"):
        return mask_grid(site.context, mask, rows, site.scope, span, beside)


def added_of(site: Site, add: Known, rows: Rows, beside: int) -> Tensor | None:
    """The option `add` as a grid of numbers, likewise; None where there is none."""
    span = site.spans.get("add")
    with _pointing_at(site, "add", "E0604"):
        return bias_grid(site.context, add, rows, site.scope, span, beside)


@contextmanager
def _pointing_at(site: Site, option: str, code: str) -> Iterator[None]:
    """An error inside a definition is shown where the definition was given."""
    try:
        yield
    except Failed as failed:
        found, span = failed.diagnostics[0], site.spans.get(option)
        if found.code != code or span is None or found.primary is None:
            raise
        raise Failed(
            replace(found, primary=Label(span), others=(found.primary, *found.others))
        ) from None


def ones(site: Site, shape: tuple[Dim, ...]) -> Tensor:
    """A tensor of ones."""
    x = site.constant(1.0, "f32")
    for axis, length in enumerate(shape):
        x = site.one(ops.Expand(axis, length), site.one(ops.Insert(axis), x))
    return x


def scores(site: Site, score: Score, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
    """The grid of scores of every query and key: `[batch, (heads,) q, k]`."""
    # [… q, 1, d] beside [… 1, k, d]: what is written for two vectors is of all pairs
    query = site.one(ops.Insert(len(q.shape) - 1), q)
    key = site.one(ops.Insert(len(k.shape) - 2), k)
    with widths(site, score.name, q, k):
        if isinstance(score, WordFunction):
            value = first(score.word.make(site, query, key))
        else:
            names = {"q": query, "k": key}
            inner, heads = inner_scope(site, score), len(q.shape) == 4
            value = expand(site.context, score, rows, names, inner, heads=heads)
    if not isinstance(value, Tensor):
        title = f"a score is a grid of numbers; this is {describe(value)}"
        site.fail("E0605", title, "score")
    if len(value.shape) == len(q.shape) + 1 and value.shape[-1] == 1:
        # `linear(…, out=1)` leaves an axis that holds one number
        value = site.one(ops.Squeeze(len(q.shape)), value)
    pairs = (q.shape[-2], k.shape[-2])
    if len(value.shape) != len(q.shape) or value.shape[-2:] != pairs:
        title = (
            f"the score `{score.name}` gives {describe(value)}, not one number "
            "for each query and key"
        )
        helps = [
            "`dot(a, b)` sums over the features; a last axis of length 1 is dropped"
        ]
        site.fail("E0605", title, "score", helps=helps)
    return value


@contextmanager
def widths(site: Site, score: str, q: Tensor, k: Tensor) -> Iterator[None]:
    """Lengths that do not meet, said of what the user wrote, where it is because
    queries and keys differ in width.
    """
    try:
        yield
    except Failed as failed:
        if failed.diagnostics[0].code != "E0302" or q.shape[-1] == k.shape[-1]:
            raise  # something else does not meet, which is said where it stands
        title = (
            f"`{score}` cannot compare queries of {q.shape[-1]} features with "
            f"keys of {k.shape[-1]}"
        )
        places = [(site.spans.get(n), describe(x)) for n, x in (("q", q), ("k", k))]
        others = [Label(span, text) for span, text in places if span is not None]
        helps = [
            "the scores `general` and `additive(size)` learn how the two meet: "
            "`attend_by(general, …) @ name`",
            f"or bring one to the other's size: `linear(k, out={q.shape[-1]}) @ name`",
        ]
        fail(
            "E0607",
            title,
            site.spans.get("score") or site.span,
            others=others,
            helps=helps,
        )


def inner_scope(site: Site, score: Score) -> str:
    """The weight scope of a score or a normalizer: where it was written, if it has
    weights of its own.
    """
    if not score.weights:
        return site.scope
    home = score.env or site.env
    return site.env.under(weight_path(site.context, score.weights, home)).scope
