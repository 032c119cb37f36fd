"""The seam to the backends: packages are what the Protocols ask for, and every rule
takes what its op gives it.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from types import ModuleType
from typing import get_type_hints

import pytest

import specc_numpy
import specc_onnx
from specc import backend
from specc.ir.op import OPS_BY_NAME, Op, Operand, OptionalOperand
from specc_onnx.lower.rules import lower

TABLES: dict[str, Mapping[type[Op], Callable[..., object]]] = {
    "onnx": lower.rules,
    "numpy": specc_numpy.evaluate.rules,
}


def test_backends_are_what_the_seam_asks_for() -> None:
    assert isinstance(specc_onnx, backend.CompilerBackend)
    assert isinstance(specc_onnx, backend.RunnerBackend)
    assert isinstance(specc_numpy, backend.ReferenceBackend)
    assert backend.load_compiler() is specc_onnx
    assert backend.load_runner() is specc_onnx
    assert backend.load_reference() is specc_numpy


def test_a_package_that_lacks_something_is_none() -> None:
    lacking = ModuleType("lacking")
    names = {*specc_onnx.__all__, *vars(specc_onnx)} - {"write_model", "__getattr__"}
    vars(lacking).update({name: getattr(specc_onnx, name) for name in names})
    assert not isinstance(lacking, backend.CompilerBackend)


@pytest.mark.parametrize(
    "protocol", [backend.CompilerBackend, backend.RunnerBackend, backend.ReferenceBackend]
)
def test_parameters_are_those_of_the_protocol(protocol: type) -> None:
    """`isinstance` sees names alone; a caller also needs what it passes to be taken."""
    package = specc_numpy if protocol is backend.ReferenceBackend else specc_onnx
    for name, asked in vars(protocol).items():
        if name.startswith("_") or isinstance(asked, property):
            continue
        taken = signature(getattr(package, name)).parameters
        wanted = [p for p in signature(asked).parameters.values() if p.name != "self"]
        places = [p.name for p in wanted if p.kind is not Parameter.KEYWORD_ONLY]
        assert list(taken)[: len(places)] == places, name
        assert {p.name for p in wanted} <= taken.keys(), name
        left = [
            p.name
            for p in taken.values()
            if p.default is Parameter.empty and p.name not in {w.name for w in wanted}
        ]
        assert not left, f"{name} needs {left}, which no caller gives"


def faults(op: type[Op], rule: Callable[..., object]) -> list[str]:
    """Where the parameters of a rule are not the operands of its op."""
    operands = op.signature.operands
    taken = list(signature(rule).parameters.values())[2:]
    if taken and taken[-1].kind is Parameter.VAR_POSITIONAL:
        # all in one: so many as the node has
        return [] if len(taken) == 1 else ["some operands by name, others not"]
    if operands and operands[-1].is_repeated:
        return [f"any number of operands, {len(taken)} taken"]
    if len(taken) != len(operands):
        return [f"{len(operands)} operands, {len(taken)} taken"]
    named = {
        known.index: name
        for kind in reversed(op.__mro__)
        for name, known in vars(kind).items()
        if isinstance(known, Operand | OptionalOperand)
    }
    found = []
    for n, (term, parameter) in enumerate(zip(operands, taken, strict=True)):
        if parameter.name != named.get(n, parameter.name):
            found.append(f"`{parameter.name}` is the op's `{named[n]}`")
        if term.is_optional and "None" not in str(parameter.annotation):
            found.append(f"`{parameter.name}` may be missing")
    return found


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", sorted(OPS_BY_NAME))
def test_rules_take_the_operands_of_their_ops(name: str, table: str) -> None:
    op = OPS_BY_NAME[name]
    rule = TABLES[table][op]
    assert not faults(op, rule)
    if rule.__name__ == "<lambda>":
        return  # it has no types, and stands next to its op in a table
    first = next(iter(signature(rule).parameters))
    assert get_type_hints(rule)[first] is op, "a rule of another op"


@pytest.mark.parity
def test_rules_of_torch_do_so_too() -> None:
    torch = pytest.importorskip("specc_torch")
    for op, rule in torch.evaluate.rules.items():
        assert not faults(op, rule), op.name


def _short(op: object, env: object, query: object, key: object) -> None: ...


def _swapped(op: object, env: object, scores: object, mask: object) -> None: ...


def _unnamed(op: object, env: object, mask: object, scores: object) -> None: ...


def test_a_rule_with_other_parameters_is_noticed() -> None:
    assert faults(OPS_BY_NAME["attend"], _short) == ["6 operands, 2 taken"]
    assert not faults(OPS_BY_NAME["hard"], _swapped)
    assert len(faults(OPS_BY_NAME["hard"], _unnamed)) == 2
