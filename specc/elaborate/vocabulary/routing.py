"""`route`: rows sent to a few of many experts, whose block is elaborated once."""

from collections.abc import Sequence
from dataclasses import replace

from specc.elaborate.bodies import cut_body
from specc.elaborate.context import Poisoned
from specc.elaborate.kinds import Applied
from specc.elaborate.stacked import Stack
from specc.elaborate.values import (
    POISON,
    Known,
    Tensor,
    describe,
    first,
    show_type,
)
from specc.elaborate.vocabulary.expert import check_alone, used
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed

ROWS = "routed"
"""What the number of rows is called that one expert is given."""


@word(weights=True)
def route(
    site: Site,
    x: Tensor,
    ids: Tensor,
    gates: Tensor,
    *,
    to: Applied,
    experts: Dim,
    keep: Tensor | None = None,
) -> Tensor:
    """The sum of what the experts named in `ids` make of a row, each times its gate: a
    mixture of experts (arXiv:1701.06538, eq. 1). `x` is [… d], `ids` and `gates` are
    [… k].

    `to` is the block of one expert; its weights lie in the model with an axis of length
    `experts` in front. `keep` […] says which rows exist: the others go to nobody and
    give zeros. Only experts that somebody chose are run.
    """
    _check_rows(site, x, ids, gates, keep)
    _check_experts(site, ids.shape[-1], gates, experts)
    length = _length(site, x)
    stack = Stack(experts)
    ones = (Dim.of(1),) * (len(x.shape) - 2)
    shape = (*ones, Dim.symbol(length), x.shape[-1])
    rows = Value(Type(x.type.dtype, shape))
    start = len(site.context.builder.nodes)
    made = _made(site, to, rows, stack, _inside(site, x, length))
    own = {f"own {name}": value for name, value in stack.inside.items()}
    body, captured = cut_body(
        site.context.builder, {"rows": rows, **own}, {"y": made.value}, start, length
    )
    check_alone(site, body, captured, length)
    body, weights = used(body, list(stack.outside.values()))
    op = ops.Route(body, experts, len(weights), keep is not None)
    given = [x, ids, gates, *([keep] if keep else [])]
    return site.one(op, *given, *(Tensor(v) for v in (*weights, *captured)))


# --- what is given --------------------------------------------------------------------


KINDS = {
    "ids": ("whole numbers", ("i64", "i32")),
    "gates": ("numbers with a fraction", ("f32", "f16", "bf16", "f64")),
    "keep": ("true or false", ("bool",)),
}
"""What the operands beside the rows hold."""


def _check_rows(
    site: Site, x: Tensor, ids: Tensor, gates: Tensor, keep: Tensor | None
) -> None:
    """E0332 for operands that have not the rows of `x`, or hold something else."""
    if len(x.shape) < 2:
        helps = ["put an axis of 1 in front: insert(…, axis=0)"]
        title = "`route` sends the rows of a tensor, […, d], to experts"
        site.fail("E0332", title, "x", f"this is {describe(x)}", helps=helps)
    rows = x.shape[:-1]
    beside = {"ids": (ids, "k"), "gates": (gates, "k"), "keep": (keep, "")}
    for name, (value, behind) in beside.items():
        if value is None:
            continue
        words, dtypes = KINDS[name]
        label = f"this is {describe(value)}"
        if value.type.dtype not in dtypes:
            site.fail("E0332", f"`{name}` of `route` holds {words}", name, label)
        lead, rank = value.shape[: len(rows)], len(rows) + len(behind)
        if lead != rows or len(value.shape) != rank:
            shown = ", ".join([*map(str, rows), *behind])
            title = f"`{name}` of `route` has the rows of what is routed: [{shown}]"
            site.fail("E0332", title, name, label)


def _check_experts(site: Site, k: Dim, gates: Tensor, experts: Dim) -> None:
    """E0332 for other gates than experts of a row, E0330 for more of these than there
    are, E0333 where an input decides how many there are.
    """
    many = gates.shape[-1]
    if k != many:
        axis = len(gates.shape) - 1
        mend = f"take those of the chosen ones: `gather(…, ids, axis={axis})`"
        title = f"`ids` names {k} experts for a row, and `gates` has {many} numbers"
        helps = [mend] if many == experts else []
        site.fail("E0332", title, "gates", f"this is {describe(gates)}", helps=helps)
    if site.context.late(experts.symbols()):
        title = f"there would be {experts} experts, which only an input tells"
        helps = ["their weights are of one size for every input: give a config value"]
        site.fail("E0333", title, "experts", helps=helps)
    if experts.number is None:
        return
    if experts.number < 1:
        site.fail("E0330", f"there would be {experts} experts", "experts")
    if k.number is not None and k.number > experts.number:
        title = f"each row is sent to {k} experts, and there are {experts}"
        site.fail("E0330", title, "ids", f"this names {k} of them")


# --- the block of one expert ----------------------------------------------------------


def _length(site: Site, x: Tensor) -> str:
    """A name for the number of rows that nothing else in sight has."""
    name, lengths = ROWS, site.context.lengths
    taken: Sequence[str] = [*site.env.module.dims, *site.env.dims, *lengths]
    while name in taken or any(name in d.symbols() for d in x.shape):
        name += "_again"
    return name


def _inside(site: Site, x: Tensor, length: str) -> dict[str, Dim]:
    """What the run-time lengths of the file stand for in the block: `x: float[batch,
    seq, d]` is declared of the rows that an expert is sent as well.
    """
    found: dict[str, Dim] = {}
    for name in site.env.module.dims:
        dim = site.env.run_time(name)
        if dim is not None and dim == x.shape[-2]:
            dim = Dim.symbol(length)
        elif dim is not None and dim in x.shape[:-2]:
            dim = Dim.of(1)
        if dim is not None:
            found[name] = dim
    return found


def _made(
    site: Site, to: Applied, rows: Value, stack: Stack, lengths: dict[str, Dim]
) -> Tensor:
    """What the block gives for rows that stand for those an expert is sent. E0331 where
    that is not a row for each.
    """
    context, call = site.context, site.call
    names: dict[str, Known] = {"to": to, "x": Tensor(rows, site.spans.get("x"))}
    # the call is a new one, which stands where the user wrote `route`
    function = tree.Name("to", span=call.function.span)
    inner = tree.Call(function, (tree.Name("x", span=call.span),), span=call.span)
    (length,) = rows.type.shape[-2].symbols()
    before, context.lengths = context.lengths, context.lengths | {length}
    context.stacks.append(stack)
    try:
        there = replace(site.env, names=names, lengths=lengths)
        with context.apart():
            made = first(context.evaluator.call(context, inner, there))
    except Failed as failed:
        shown = show_type(rows.type)
        raise Failed(*(_told(d, shown) for d in failed.diagnostics)) from None
    finally:
        context.stacks.pop()
        context.lengths = before
    if made is POISON:
        raise Poisoned
    if not isinstance(made, Tensor) or made.shape[:-1] != rows.type.shape[:-1]:
        title = f"an expert gives {describe(made)} for {show_type(rows.type)}"
        helps = ["give a row for each row, […, out] for […, in]"]
        site.fail("E0331", title, "to", helps=helps)
    if made.type.dtype not in KINDS["gates"][1]:
        title = f"what experts give is summed: it cannot be {describe(made)}"
        site.fail("E0331", title, "to")
    return made


def _told(fault: Diagnostic, rows: str) -> Diagnostic:
    """A fault about lengths that meet, with what an expert is given."""
    if fault.code != "E0302":
        return fault
    note = (
        f"an expert is given {rows}, the rows that chose it; what belongs to a row goes "
        "to `route` with it, as `concat([x, …])`"
    )
    return replace(fault, notes=(*fault.notes, note))
