"""Names that are given once: the first free number, found with little work; nodes that
are written once, where they are one.
"""

from onnx import GraphProto

from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter import Emitter, NameTable
from specc_onnx.lower.onnx_nodes import make_unique_name
from specc_onnx.lower.onnx_targets import get_target


class Counted(set[str]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


def test_one_wish_of_thousands_is_numbered_in_order_and_with_little_work() -> None:
    taken = Counted()
    count = 3_000
    assert [make_unique_name("Add", taken) for _ in range(count)] == [
        "Add",
        *(f"Add_{n}" for n in range(2, count + 1)),
    ]
    assert taken.asked < 30 * count


def test_a_name_that_is_taken_out_of_turn_is_not_given_again() -> None:
    taken = {"Add", "Add_2", "Add_4", "Add_5", "Add_8", "Add_2_2"}
    given = [
        make_unique_name(wish, taken)
        for wish in ("Add", "Add", "Add_2", "Add", "Mul", "Add", "Add_4")
    ]
    assert len(set(given)) == len(given)
    assert len(taken) == 6 + len(given)


def test_branches_that_come_one_after_the_other_are_not_the_same() -> None:
    """Each is gone when the next one is made, and may lie where it lay."""
    g = Emitter(
        target=get_target("onnx"), opset=23, lengths=LengthResolver({}), names=NameTable({"long"})
    )
    made = [
        g.node(
            "If", "long", then_branch=GraphProto(name=f"a{n}"), else_branch=GraphProto(name=f"b{n}")
        )
        for n in range(50)
    ]
    assert len(set(made)) == 50
    both = GraphProto(name="a"), GraphProto(name="b")
    twice = [g.node("If", "long", then_branch=both[0], else_branch=both[1]) for _ in range(2)]
    assert len(set(twice)) == 1
