"""The passes that `compile` runs, in their order, by name.

    elaborated graph ─ inline ─ fuse_scan ─ split_scan ─┬─ quantize ─ narrow ─ what is lowered
                       (if asked)                       │  (each if asked, each graph)
                                                        └─ prove ─ step ─ encode

A pass takes a `Work`, the graphs with what is known beside them, and gives another.
Every graph that goes in or comes out is sound (`specc.ir.verify`): under `VERIFYING`
that is checked after each pass, so that a pass that breaks a graph is named, not the
one that stumbles over it. `specc show --ir --after PASS` prints what a pass gives.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.ir import ops
from specc.ir.derived import Cache, Derived
from specc.ir.graph import Graph
from specc.ir.model import Generation, Streaming
from specc.ir.precision import Plan
from specc.ir.verify import verify
from specc.passes.derive.derive import Stepped, encoded, stepped
from specc.passes.derive.plan import Rows
from specc.passes.narrow.narrow import Half, narrow_derived
from specc.passes.narrow.narrow import narrow as narrowed
from specc.passes.prove.causality import growing_symbol, prove, prove_stream
from specc.passes.prove.chunks import chunk_of, in_chunks
from specc.passes.prove.defaults import prove_defaults
from specc.passes.prove.flow import flow
from specc.passes.quantize.caches import kept_small
from specc.passes.quantize.plan import Wish, decide
from specc.passes.quantize.quantize import quantize as rounded
from specc.passes.simplify.fuse_scan import fuse_scan
from specc.passes.simplify.inline import inline_defaults
from specc.passes.simplify.rewrite import Rule, rewrite
from specc.passes.simplify.split_scan import split_scan
from specc.passes.simplify.turn import of_products, straight, turn
from specc.text.diagnostic import Failed, fail

VERIFYING: ContextVar[bool] = ContextVar("VERIFYING", default=False)
"""Whether graphs are verified after every pass: under `--debug`, and in tests."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What passes work on.

    `defaults` computes inputs of `graph` that nobody gives, until `inline` has put it
    inside. `generation` says along which input `graph` grows, where it does, `streaming`
    what is made of one whose rows come; behind `chunk` these are counted in chunks of
    that many. `rows` are
    those that a step gives of what is drawn from; unless `bounded`, attention through a
    window keeps rows that it no longer sees. Where it `begins`, `encode` gives what the
    first token of an empty text is drawn from, if anything does. `outputs` are the
    results that a step can give, which `prove` finds; `plan` says which weights are
    rounded, as `--quantize int8` does where it is None, `width` in how many bits is
    computed what suffers no harm; `half` is what `step` made,
    `derived` that with `encode`.
    """

    graph: Graph
    defaults: Graph | None = None
    generation: Generation | None = None
    streaming: Streaming | None = None
    chunk: int = 1
    rows: Rows = "newest"
    bounded: bool = True
    begins: bool = False
    outputs: Mapping[str, Rows] = field(default_factory=dict)
    plan: Plan | None = None
    width: Half = "f16"
    half: Stepped | None = None
    derived: Derived | None = None

    def grows(self) -> tuple[str, tuple[str, ...]]:
        """The input that grows, and the results that are to be made. E0701 where there
        is none.
        """
        if self.generation is not None:
            return self.generation.growing, (self.generation.source,)
        if self.streaming is None:
            _nothing_generated(self.graph)
        return self.streaming.growing, self.streaming.sources

    def graphs(self) -> tuple[Graph, ...]:
        """The graphs there are now: the newest in place of what it was made from."""
        if self.derived is not None:
            encode = (self.derived.encode,) if self.derived.encode else ()
            return *encode, self.derived.step
        if self.half is not None:
            return (self.half.graph,)
        return self.graph, *((self.defaults,) if self.defaults else ())


@dataclass(frozen=True)
class Pass:
    """One pass: its name, what it is for, and the function that does it.

    One that is `optional` works only where it is asked for.
    """

    name: str
    about: str
    run: Callable[[Work], Work]
    optional: bool = False


def _inline(work: Work) -> Work:
    if work.defaults is None:
        return work
    graph = inline_defaults(work.graph, work.defaults)
    return replace(work, graph=graph, defaults=None)


def _fuse(work: Work) -> Work:
    return replace(work, graph=_of_loops(work.graph, fuse_scan))


def _split(work: Work) -> Work:
    return replace(work, graph=_of_loops(work.graph, split_scan))


def _of_loops(graph: Graph, rule: Rule) -> Graph:
    """The graph by a rule for loops; without any it is not built anew."""
    loops = any(isinstance(node.op, ops.Scan) for node, _ in graph.nodes)
    return rewrite(graph, [rule]) if loops else graph


def _quantize(work: Work) -> Work:
    plan = work.plan
    if plan is None:
        plan = decide(work.graph, Wish(kind="int8"), "rows", {}).plan
    return replace(work, graph=rounded(work.graph, plan))


def _narrow(work: Work) -> Work:
    return replace(work, graph=narrowed(work.graph, work.width))


def _chunk(work: Work) -> Work:
    growing, sources = work.grows()
    if work.streaming is None:
        return work
    symbol = _symbol(work.graph, growing)
    chunk = chunk_of(work.graph, symbol, sources)
    return replace(work, graph=in_chunks(work.graph, symbol, chunk), chunk=chunk)


def _symbol(graph: Graph, growing: str, chunk: int = 1) -> str:
    """The length that grows. E0702 where there is none."""
    symbol = growing_symbol(graph, growing, chunk)
    if symbol is None:
        fail(
            "E0702",
            f"`{growing}` cannot grow: it has no axis behind the batch of "
            "a run-time length",
        )
    return symbol


def _prove(work: Work) -> Work:
    """Fails with E0701 and E0702 where nothing grows, with E0711 to E0718 where it cannot."""
    graph, chunk = work.graph, work.chunk
    growing, sources = work.grows()
    symbol = _symbol(graph, growing, chunk)
    faults = (
        prove(graph, symbol, growing, sources)
        if work.streaming is None
        else prove_stream(graph, symbol, growing, sources, chunk)
    )
    if faults:
        raise Failed(*faults)
    if faults := prove_defaults(graph, work.defaults, symbol, growing, sources):
        raise Failed(*faults)
    outputs: dict[str, Rows] = dict.fromkeys(sources, work.rows)
    states = flow(graph, symbol, chunk)
    for name, value in graph.outputs.items():
        # Beside what is drawn from, a step can give every result that has the growing
        # axis once and is causal as well: attention maps have it twice.
        once = len(states.state(value).axes) == 1
        if name in outputs or not once:
            continue
        if not prove(graph, symbol, growing, [name], chunk):
            outputs[name] = "new"
    return replace(work, outputs=outputs)


def _nothing_generated(graph: Graph) -> NoReturn:
    """Fails with E0701.

    A graph that was itself taken out of another is not taken apart again. Its spec does
    say what it generates, so that nothing is to be added there. No name of a spec has a
    blank in it.
    """
    mend = "add `generate NAME of INPUT from RESULT { … }` to the spec"
    if graph.name.endswith((" step", " encode")):
        mend = "ask for the graph that it was made from, `score`, or for the spec"
    fail("E0701", f"`{graph.name}` does not say what it generates", helps=[mend])


def _step(work: Work) -> Work:
    growing, (source, *_) = work.grows()
    half = stepped(
        work.graph,
        growing,
        work.outputs,
        bounded=work.bounded,
        begins=source if work.begins else "",
        chunk=work.chunk,
    )
    return replace(work, half=half)


def _encode(work: Work) -> Work:
    assert work.half is not None, "`step` comes first"
    return replace(work, derived=encoded(work.half))


PASSES = (
    Pass("inline", "inputs that have a default are computed inside", _inline, True),
    Pass("fuse_scan", "a loop over a known cell becomes a recurrent layer", _fuse),
    Pass("split_scan", "what no carry needs leaves its loop", _split),
    Pass("quantize", "weights are rounded to few bits", _quantize, True),
    Pass("narrow", "what may be is computed in 16 bits", _narrow, True),
    Pass("chunk", "what is streamed is counted in chunks of its strides", _chunk),
    Pass("prove", "no op lets a row see a later one; no graph is changed", _prove),
    Pass("step", "one step of a text, with rows kept from before", _step),
    Pass("encode", "what is computed once for all steps", _encode),
)
"""Every pass that changes graphs or decides whether one may, in the order of `compile`."""

SIMPLIFY = ("fuse_scan", "split_scan")
LOOPS = ("split_scan",)
"""The same where weights are rounded, and with them those of cells: their loops stay."""
"""The passes behind which a graph is as every target gets it."""
DERIVE = ("chunk", "prove", "step", "encode")
"""The passes that take a graph that generates apart."""


def run(work: Work, names: Sequence[str]) -> Work:
    """`work` behind the passes of these names, in the order of `PASSES`."""
    sound: list[Graph] = []
    for each in PASSES:
        if each.name in names:
            work = each.run(work)
            if VERIFYING.get():
                sound = _verify(work, each.name, sound)
    return work


def up_to(last: str) -> tuple[str, ...]:
    """The passes that `compile` has run when `last` is done; the optional ones only if
    `last` is one.
    """
    names = [each.name for each in PASSES]
    before = PASSES[: names.index(last)]
    return *(each.name for each in before if not each.optional), last


def _verify(work: Work, name: str, sound: Sequence[Graph]) -> list[Graph]:
    """The graphs behind a pass, all sound: those known to be so before are the same."""
    for graph in work.graphs():
        if graph not in sound:
            faults = verify(graph)
            assert not faults, f"behind the pass `{name}`:\n" + "\n".join(faults)
    return list(work.graphs())


def inline(graph: Graph, defaults: Graph) -> Graph:
    """`graph` with what `defaults` computes inside."""
    return run(Work(graph=graph, defaults=defaults), ("inline",)).graph


def simplify(graph: Graph, *, fused: bool = True) -> Graph:
    """The graph as every target gets it: loops that an op does, unless `fused` is
    false, and out of loops what need not be in them.
    """
    return run(Work(graph=graph), SIMPLIFY if fused else LOOPS).graph


def quantize(graph: Graph, plan: Plan) -> Graph:
    """`graph` with the weights of `plan` rounded."""
    return run(Work(graph=graph, plan=plan), ("quantize",)).graph


def keep_small(step: Graph, caches: Sequence[Cache]) -> Graph:
    """`step` with these states in 8 bits."""
    made = kept_small(step, caches)
    if VERIFYING.get():
        faults = verify(made)
        assert not faults, "behind the states in 8 bits:\n" + "\n".join(faults)
    return made


def turned_over(graph: Graph, names: Collection[str]) -> tuple[Graph, frozenset[str]]:
    """`graph` with those of these matrices that only linear maps read stored as `[in,
    out]`, and which they are.
    """
    found = of_products(graph) & frozenset(names)
    made = turn(graph, found) if found else graph
    if VERIFYING.get():
        faults = verify(made)
        assert not faults, "behind the matrices turned over:\n" + "\n".join(faults)
    return made, found


def as_described(graph: Graph) -> Graph:
    """`graph` with matrices as its linear maps read them, however they are stored."""
    return straight(graph)


def narrow(graph: Graph, width: Half) -> Graph:
    """`graph` computing in 16 bits what suffers no harm by it."""
    return run(Work(graph=graph, width=width), ("narrow",)).graph


def derived_narrow(derived: Derived, width: Half) -> Derived:
    """The same of a graph that was taken apart, with the states between its graphs."""
    made = narrow_derived(derived, width)
    if VERIFYING.get():
        for graph in (made.encode, made.step):
            faults = verify(graph) if graph else []
            assert not faults, "behind the pass `narrow`:\n" + "\n".join(faults)
    return made


def derive(work: Work) -> Derived:
    """`encode` and `step` for the result that is drawn from, and for results that can
    be had beside it.

    Fails with the proof's errors, E0711 to E0718, where the model cannot be generated.
    """
    derived = run(work, DERIVE).derived
    assert derived is not None
    return derived
