"""Whether texts of unequal age may stand beside each other in one step.

Of the younger ones there are columns that do not exist, in front: what is kept of such a
column must reach no result, which is what `specc.passes.prove.padding` proves. A model
without such columns, whose states are all of fixed shape, needs no proof: each text then
has its own state, and no step knows how many there were before it.
"""

from specc.data.batch import keep_of
from specc.ir.defaults import of_each_token
from specc.ir.derived import OFFSET, Derived, State
from specc.ir.model import Model
from specc.passes.measure.strides import strides_before
from specc.passes.prove.padding import reaches

ANY_LEFT = ("any", "left")


def stand_apart(model: Model, derived: Derived) -> bool:
    """Whether texts of unequal age go on together as each would alone."""
    graph, growing = model.graph, derived.growing
    generation = model.generation
    assert generation is not None, "what is derived generates"
    keep = keep_of(graph, growing)
    length = graph.inputs[growing].type.shape[1]
    others = {n for n, v in graph.inputs.items() if length in v.type.shape}
    if others - {growing, keep}:
        return False  # of which nobody knows what they are for columns in front
    if not keep:
        return _of_one_shape(derived)
    if graph.input_facts[keep].keep not in ANY_LEFT or not _known(model, keep, growing):
        return False
    # Windows that move by strides take other rows where columns stand in front.
    if keep in strides_before(graph) or not all(map(_fits, derived.states)):
        return False
    return not reaches(graph, keep, (generation.source,))


def _of_one_shape(derived: Derived) -> bool:
    """Whether all that is kept is as large at every step, and each text has its own: no
    row of the past, nor how many there were.
    """
    fixed = all(s.rows is None and s.batch is not None for s in derived.states)
    return fixed and not derived.whole and OFFSET not in derived.step.inputs


def _known(model: Model, keep: str, growing: str) -> bool:
    """Whether a token that is written exists by itself, whatever stands before it."""
    defaults = model.defaults
    if defaults is None or keep not in defaults.outputs:
        return True
    return of_each_token(defaults, keep, growing) is not None


def _fits(state: State) -> bool:
    """Whether columns can be put in front of a state, or dropped there."""
    if state.batch is None:
        return state.name == OFFSET  # the columns of all texts are as many
    # a window that rows of a head have left, or not, is no matter of columns
    return state.rows is None or not state.initial or state.most == float("inf")
