"""The emitter assigns unique names in few steps and emits equal nodes once."""

from onnx import GraphProto

from specc.ir.types import Type
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter, NameTable, make_unique_name
from specc_onnx.lower.onnx_targets import get_target
from specc_onnx.lower.onnx_values import UnrankedTensor
from specc_onnx.lower.subgraphs import make_value_info


class Counted(set[str]):
    """A set that counts its lookups."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


def test_thousands_of_equal_names_are_numbered_with_few_lookups() -> None:
    taken = Counted()
    count = 3_000
    assert [make_unique_name("Add", taken) for _ in range(count)] == [
        "Add",
        *(f"Add_{n}" for n in range(2, count + 1)),
    ]
    assert taken.asked < 30 * count


def test_number_that_is_already_in_use_is_skipped() -> None:
    taken = {"Add", "Add_2", "Add_4", "Add_5", "Add_8", "Add_2_2"}
    given = [
        make_unique_name(wish, taken)
        for wish in ("Add", "Add", "Add_2", "Add", "Mul", "Add", "Add_4")
    ]
    assert len(set(given)) == len(given)
    assert len(taken) == 6 + len(given)


def make_branch(name: str) -> GraphProto:
    return GraphProto(name=name, output=[make_value_info("y", Type("f32", ()))])


def test_consecutive_branches_are_distinct_keys() -> None:
    """A branch is freed before the next one is built, so both may have the same id."""
    g = Emitter(
        target=get_target("onnx"), opset=23, lengths=DimResolver({}), name_table=NameTable({"long"})
    )
    condition = UnrankedTensor(g, "long", "bool")

    def emit_if(then_branch: GraphProto, else_branch: GraphProto) -> str:
        return g.emit_node("If", condition, then_branch=then_branch, else_branch=else_branch).name

    made = [emit_if(make_branch(f"a{n}"), make_branch(f"b{n}")) for n in range(50)]
    assert len(set(made)) == 50
    both = make_branch("a"), make_branch("b")
    twice = [emit_if(*both) for _ in range(2)]
    assert len(set(twice)) == 1
