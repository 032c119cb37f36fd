"""Weights that several calls use: a slip, unless the spec says by `share` that the
calls are one.

A *trail* is the way to a piece of a spec that is being run: the calls and turns of
loops around it, each a `Step` of its own. Two trails that claim one weight part
somewhere; what they part at are the calls that share it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from specc.elaborate.values import DefinitionFunction
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label
from specc.text.source import Span
from specc.weights.names import Pattern


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One call or one turn of a loop, `under` the scope of weights it opens (empty: it
    opens none).

    `of` is the text that is run, a call or a `repeat`, or the definition that is
    expanded.
    """

    of: "Piece"
    under: str = ""

    @property
    def span(self) -> Span | None:
        """Its text; of a loop only the head."""
        if isinstance(self.of, LOOPS):
            return self.of.over.span
        return self.of.span


Piece: TypeAlias = tree.Call | tree.Repeat | tree.ListFor | DefinitionFunction
"""What a step runs."""

LOOPS = (tree.Repeat, tree.ListFor)
WRITTEN = (tree.Call, *LOOPS)
Trail: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """`share PATH`, the scope of the file that says so, how many steps there are around
    it, and whether the file is a used one.
    """

    path: Pattern
    scope: str = ""
    depth: int = 0
    lent: bool = False

    def covers(self, name: str) -> bool:
        """Whether a path, as the whole model calls it, is meant."""
        if not self.scope:
            return self.path.matches(name)
        return name.startswith(f"{self.scope}.") and self.path.matches(
            name[len(self.scope) + 1 :]
        )


@dataclass
class Sharing:
    """Who uses which weight so far. `needed` has every path that the spec says, and
    whether several calls use it.
    """

    trail: Trail = ()
    needed: dict[str, bool] = field(default_factory=dict)
    _shares: list[Share] = field(default_factory=list)
    _claims: dict[str, Trail] = field(default_factory=dict)
    _held: dict[int, Trail] = field(default_factory=dict)

    def say(self, path: str, scope: str, *, lent: bool = False) -> None:
        """Calls at this path or pattern below `scope` use the same weights, while the
        step that says so lasts. What is `lent` need not be needed.
        """
        self._shares.append(Share(Pattern(path), scope, len(self.trail), lent))
        if not self.trail and not lent:
            self.needed[path] = False

    @contextmanager
    def step(self, of: Piece, under: str = "") -> Iterator[None]:
        """While a call or a turn of a loop is run."""
        before, said = self.trail, len(self._shares)
        self.trail = (*before, Step(of, under))
        try:
            yield
        finally:
            self.trail = before
            del self._shares[said:]

    def hold(self, definition: DefinitionFunction, scope: str) -> None:
        """Remember where a definition with weights of its own was written: there it
        owns them, wherever it is used.
        """
        self._held[id(definition)] = (*self.trail, Step(definition, scope))

    @contextmanager
    def expanding(self, definition: DefinitionFunction) -> Iterator[None]:
        """While a definition is expanded where it is used."""
        before = self.trail
        if held := self._held.get(id(definition)):
            self.trail = (*held[:-1], Step(definition, held[-1].under))
        try:
            yield
        finally:
            self.trail = before

    def claim(self, name: str) -> None:
        """A call wants the weight of that name. E0526 if another has it and nothing
        says that they are one.
        """
        mine, theirs = self.trail, self._claims.setdefault(name, self.trail)
        at = _fork(theirs, mine)
        if at is None or (
            mine[at].of is theirs[at].of and not isinstance(mine[at].of, WRITTEN)
        ):
            return  # one call, or one definition, expanded wherever it is used
        # the scopes that either way opens behind the fork, and the weight itself: a
        # `share` of any of them covers it
        both = {s.under for s in theirs[at:]} & {s.under for s in mine[at:]} - {""} | {
            name
        }
        # said around the fork: what one of the two branches says binds only itself
        said = [s for s in self._shares if s.depth <= at and any(map(s.covers, both))]
        if not said:
            raise Failed(slip(name, theirs[at:], mine[at:]))
        self.needed.update(
            {s.path.text: True for s in said if not s.depth and not s.lent}
        )


def _fork(theirs: Trail, mine: Trail) -> int | None:
    """Where two ways through the calls part; None where they are one."""
    for n, (a, b) in enumerate(zip(theirs, mine, strict=False)):
        if a is not b:
            return n
    return None


def slip(name: str, first: Trail, second: Trail) -> Diagnostic:
    """E0526 for a weight that two calls use."""
    one, other = first[0], second[0]
    # to share the scope that both calls name is plainer than to share the weight
    known = {s.under for s in first} - {""}
    call = next(s for s in second if s.under or not isinstance(s.of, LOOPS))
    said = "`weights { share name }` beside `@ name`"
    if call.under in known:
        said = f"`weights {{ share {call.under} }}`"
    share = f"if one set of weights is meant, say so: {said}"
    if isinstance(other.of, LOOPS) and one.of is other.of:
        inner = next((s for s in second if isinstance(s.of, tree.Call)), other)
        labels = (
            inner.span,
            "each turn uses the same weights",
            other.span,
            "this repeats it",
        )
        turn = f"{{{other.of.variable}}}"
        own = f'`@ "name.{turn}"`'
        if isinstance(other.of, tree.Repeat):
            own = f'`repeat {other.of.variable} in … under "layers.{turn}" {{ … }}`'
        mend = f"give each turn its own: {own}"
        title = f"every turn of the loop uses one weight `{name}`"
    else:
        labels = (
            other.span,
            "this call uses the weights again",
            one.span,
            "they belong to this call",
        )
        mend = "give each call its own name: `… @ name`"
        title = f"two calls use one weight `{name}`"
    at, text, before, said = labels
    primary = Label(at, text) if at else None
    others = (Label(before, said),) if before else ()
    return Diagnostic("E0526", title, primary, others, helps=(mend, share))
