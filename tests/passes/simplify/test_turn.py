"""Weights read as `[in, out]`: the same results, for all that only products read."""

import numpy as np

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Parameter
from specc.ir.types import Type
from specc.ir.verify import verify
from specc.ir.write import write
from specc.passes.simplify.turn import of_products, straight, turn


def graph(out: int, width: int, *, shown: bool = False) -> Graph:
    """Two linear maps, of which one matrix is a table as well."""
    made = Builder()
    x = made.input("x", Input(Type("f32", (Dim.symbol("n"), Dim.of(width)))))
    w = made.parameter(Parameter(name="w", type=Type.of("f32", out, width), initial=""))
    b = made.parameter(Parameter(name="b", type=Type.of("f32", out), initial=""))
    v = made.parameter(Parameter(name="v", type=Type.of("f32", width, out), initial=""))
    y = made.one(ops.Linear(), made.one(ops.Linear(), x, w, b), v, None)
    z = made.one(ops.MatMul(), x, v)
    more = {"w": w} if shown else {}
    return made.finish("g", {"y": y, "z": z, **more})


def test_results_stay_and_the_graph_is_sound() -> None:
    rng = np.random.default_rng(0)
    for out, width in rng.integers(1, 6, (8, 2)):
        whole = graph(int(out), int(width))
        assert of_products(whole) == {"w"}
        turned = turn(whole, {"w"})
        assert not verify(turned)
        assert [d.number for d in turned.parameters["w"].type.shape] == [width, out]
        given = {"x": rng.normal(size=(3, width))}
        weights = {
            n: rng.normal(size=[d.number for d in v.type.shape])
            for n, v in whole.parameters.items()
        }
        wanted = specc_numpy.run(whole, given, weights)
        found = specc_numpy.run(turned, given, {**weights, "w": weights["w"].T})
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


def test_it_can_be_taken_back() -> None:
    whole = graph(2, 3)
    assert write(straight(turn(whole, {"w"}))) == write(whole)
    assert straight(whole) is whole


def test_a_matrix_that_is_a_result_is_left_as_it_is() -> None:
    assert not of_products(graph(2, 3, shown=True))
