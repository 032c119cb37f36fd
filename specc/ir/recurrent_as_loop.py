"""Expand RNN, GRU and LSTM ops to a `Scan` over their cell.

The input projection `W x + b` is computed for all positions before the loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly
from specc.ir.graph import Graph, GraphBuilder, Input, NodeOperands, Value
from specc.ir.ops.loop import remove_axis

RecurrentOp = ops.Rnn | ops.Gru | ops.Lstm
CellCaptures = Mapping[str, Value]


def expand_recurrent_to_scan(
    builder: GraphBuilder, op: RecurrentOp, args: NodeOperands, scope: str = ""
) -> tuple[Value, ...]:
    """Expand the recurrent op `op` with operands `args`: add the input projection, the initial
    states and the loop over the cell to `builder`. Return the results of `op`, i.e. all outputs,
    then the final states.
    """
    projection_operands = (
        op.sequence.get_entry(args),
        op.input_weights.get_entry(args),
        op.input_bias.get_entry(args),
    )
    projections = builder.add_op(ops.Linear(), *projection_operands, scope=scope)
    # recurrent layers return the hidden states of all positions, then the final states
    state_types = op.infer_result_types(*(a.type if a else None for a in args))[1:]
    initial_states = [state.get_entry(args) for state in op.initial_states]
    initial_values = [
        initial_state or _add_zeros(builder, t.shape, t.dtype)
        for initial_state, t in zip(initial_states, state_types, strict=True)
    ]
    captures = _add_captures(builder, op, args, state_types[0].shape[1])
    body = _build_body(op, projections, initial_values, captures)
    keep = op.keep.get_entry(args)
    scan = ops.Scan(body, 1, len(initial_values), 1, op.reverse, keep is not None)
    mask_operands = [keep] if keep else []
    results = builder.add_node(
        scan, *mask_operands, projections, *initial_values, *captures.values(), scope=scope
    )
    # loops return the final loop-carried values first, whereas recurrent layers return the outputs
    # first
    return (results[-1], *results[:-1])


def _add_captures(b: GraphBuilder, op: RecurrentOp, args: NodeOperands, width: Dim) -> CellCaptures:
    """Return the loop-invariant values, keyed by name: the recurrent weight `u`, its bias `c`, and
    the optional weights of an LSTM. `width` is the hidden size.
    """
    w_hh, b_hh = op.recurrent_weights.get_entry(args), op.recurrent_bias.get_entry(args)
    weights: dict[str, Value | None] = {"u": w_hh, "c": b_hh}
    if isinstance(op, ops.Lstm):
        weights |= {"peep": op.peepholes.get_entry(args), "map": op.projection.get_entry(args)}
    elif isinstance(op, ops.Gru):
        weights = _split_gru_weights(b, op, w_hh, b_hh, width)
    return {name: value for name, value in weights.items() if value}


@dataclass(frozen=True)
class RecurrentCellBuilder:
    """A helper that adds the nodes of a recurrent cell to a graph builder."""

    b: GraphBuilder

    def add_op(self, fn: str, *args: Value) -> Value:
        """Add an op: `add`, `mul` or `sub` of two values, or a unary function."""
        return self.b.add_op(ops.Arith(fn) if len(args) == 2 else ops.Pointwise(fn), *args)

    def add_linear(self, x: Value, w: Value, bias: Value | None = None) -> Value:
        """Add a linear layer `x @ w.T + bias`."""
        return self.b.add_op(ops.Linear(), x, w, bias)

    def split_last_axis(self, x: Value, count: int) -> list[Value]:
        """Split the last axis, which is divisible by `count`, into `count` equal chunks."""
        axis = x.rank - 1
        size = divide_dims_exactly(x.shape[axis], count)
        return [self.b.add_op(ops.Slice(axis, size * n, size * (n + 1)), x) for n in range(count)]


def _build_body(
    op: RecurrentOp, sequence: Value, initial_states: Sequence[Value], captures: CellCaptures
) -> Graph:
    """Build the loop body, which computes one step of the cell. The inputs of the body are the
    input projection of one position, the states and the captures. The outputs of the body are the
    next states and the output of the position.
    """
    inner = GraphBuilder()
    position = inner.add_input("row", Input(remove_axis(sequence.type, 1)))
    carries = [inner.add_input(f"state {n}", Input(s.type)) for n, s in enumerate(initial_states)]
    captured = {name: inner.add_input(name, Input(v.type)) for name, v in captures.items()}
    next_states = build_recurrent_cell(RecurrentCellBuilder(inner), op, position, carries, captured)
    return inner.build_graph(
        "step", {**{f"next {n}": s for n, s in enumerate(next_states)}, "out": next_states[0]}
    )


def build_recurrent_cell(
    cell: RecurrentCellBuilder,
    op: RecurrentOp,
    input: Value,
    states: Sequence[Value],
    captures: CellCaptures,
) -> Sequence[Value]:
    """Return the next states for the input projection `input` and the weights `captures`."""
    match op:
        case ops.Rnn(activation):
            projection = cell.add_linear(states[0], captures["u"], captures.get("c"))
            return [cell.add_op(activation, cell.add_op("add", input, projection))]
        case ops.Gru():
            z, new = build_gru_gates(cell, op, input, states[0], captures)
            # this equals `z · old + (1 - z) · new`, but needs one multiplication fewer
            gated, base = (states[0], new) if op.update == "old" else (new, states[0])
            return [
                cell.add_op("add", base, cell.add_op("mul", z, cell.add_op("sub", gated, base)))
            ]
    return _compute_lstm_cell(cell, input, states, captures)


def _split_gru_weights(
    b: GraphBuilder, op: ops.Gru, u: Value | None, c: Value | None, h: Dim
) -> dict[str, Value | None]:
    """Return the recurrent weight `u` and bias `c` of a GRU, keyed by name. If the reset gate is
    applied before the recurrent projection, the rows for the new state are separate entries, `u
    new` and `c new`.
    """
    if op.reset == "after":
        return {"u": u, "c": c}
    weights: dict[str, Value | None] = {}
    for name, value in (("u", u), ("c", c)):
        if value:
            weights[name] = b.add_op(ops.Slice(0, Dim.from_value(0), h * 2), value)
            weights[f"{name} new"] = b.add_op(ops.Slice(0, h * 2, h * 3), value)
    return weights


def build_gru_gates(
    cell: RecurrentCellBuilder, op: ops.Gru, input: Value, h: Value, captures: CellCaptures
) -> tuple[Value, Value]:
    """Return the update gate and the candidate state of a GRU for the hidden state `h`."""
    r_x, z_x, n_x = cell.split_last_axis(input, 3)
    # the fused MatMul includes the new state only if the reset gate is applied after the recurrent
    # projection
    count = 3 if op.reset == "after" else 2
    projections = cell.split_last_axis(cell.add_linear(h, captures["u"], captures.get("c")), count)
    r = cell.add_op("sigmoid", cell.add_op("add", r_x, projections[0]))
    z = cell.add_op("sigmoid", cell.add_op("add", z_x, projections[1]))
    if op.reset == "after":
        recurrent_term = cell.add_op("mul", r, projections[2])
    else:
        recurrent_term = cell.add_linear(
            cell.add_op("mul", r, h), captures["u new"], captures.get("c new")
        )
    return z, cell.add_op("tanh", cell.add_op("add", n_x, recurrent_term))


def _compute_lstm_cell(
    f: RecurrentCellBuilder, input: Value, states: Sequence[Value], w: CellCaptures
) -> Sequence[Value]:
    """Return the next hidden and cell state of an LSTM, with optional peepholes and projection."""
    h, c = states
    projection = f.add_linear(h, w["u"], w.get("c"))
    i, forget, new, o = f.split_last_axis(f.add_op("add", input, projection), 4)
    if "peep" in w:
        from_i, from_f, from_o = f.split_last_axis(w["peep"], 3)
        i = f.add_op("add", i, f.add_op("mul", from_i, c))
        forget = f.add_op("add", forget, f.add_op("mul", from_f, c))
    gated_input = f.add_op("mul", f.add_op("sigmoid", i), f.add_op("tanh", new))
    retained_cell = f.add_op("mul", f.add_op("sigmoid", forget), c)
    c = f.add_op("add", retained_cell, gated_input)
    # the output gate's peephole reads the new cell state, and the other peepholes read the old cell
    # state (Gers and Schmidhuber, 2000)
    if "peep" in w:
        o = f.add_op("add", o, f.add_op("mul", from_o, c))
    hidden = f.add_op("mul", f.add_op("sigmoid", o), f.add_op("tanh", c))
    return [f.add_linear(hidden, w["map"]) if "map" in w else hidden, c]


def _add_zeros(b: GraphBuilder, shape: Sequence[Dim], dtype: str) -> Value:
    """Add a tensor of zeros with the shape `shape` and the element type `dtype`."""
    zeros = b.add_op(ops.Constant(0.0, dtype))
    for axis, length in enumerate(shape):
        zeros = b.add_op(ops.Expand(axis, length), b.add_op(ops.Insert(axis), zeros))
    return zeros
