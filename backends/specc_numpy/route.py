"""Evaluate mixture of experts."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import evaluate_length
from specc_numpy.numpy_interpreter import LengthValues, evaluate, evaluate_nodes


@evaluate(ops.Route)
def route(op: ops.Route, env: LengthValues, *operands: Array) -> Array:
    """f[*s d], i[*s k], f[*s k], a[*t]... -> f[*s o]"""
    given = op.split_operands(operands)
    *lead, width = given.x.shape
    count = int(np.prod(lead))
    # tokens are flattened to one axis
    rows = given.x.reshape(*[1] * (len(lead) - 1), count, width)
    inside = {**env, op.token_count_symbol: count}
    made_by = op.get_body_output()
    result = np.zeros((*lead, evaluate_length(made_by.type.shape[-1], env)))
    theirs = (given.ids >= 0) & (given.ids < evaluate_length(op.experts, env))
    if given.keep is not None:
        theirs &= given.keep[..., None]
    # an expert that no token chose contributes nothing
    for expert in np.unique(given.ids[theirs]):
        chosen = theirs & (given.ids == expert)
        own = (w[expert] for w in given.stacked)
        body = dict(zip(op.get_body_inputs(), (rows, *own, *given.captured), strict=True))
        made = evaluate_nodes(op.body, body, inside, [made_by])[made_by]
        weighted = np.where(chosen, given.gates, 0).sum(-1, keepdims=True) * made.reshape(
            result.shape
        )
        # results of an expert for tokens that did not choose it are not computed
        result += np.where(chosen.any(-1, keepdims=True), weighted, 0)
    return result
