"""The backend packages implement the protocols of `specc.backend`, and every rule takes the
operands of its op.
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
from specc_onnx.lower.registry import lower

TABLES: dict[str, Mapping[type[Op], Callable[..., object]]] = {
    "onnx": lower.rules,
    "numpy": specc_numpy.evaluate.rules,
}


def test_packages_implement_the_protocols() -> None:
    assert backend.load_compiler() is specc_onnx
    assert backend.load_runner() is specc_onnx
    assert backend.load_reference_backend() is specc_numpy


def test_package_without_a_function_is_no_backend() -> None:
    incomplete = ModuleType("lacking")
    vars(incomplete)["__all__"] = [n for n in specc_onnx.__all__ if n != "write_model"]
    assert backend.find_missing_members(incomplete, backend.CompilerBackend) == {"write_model"}
    vars(incomplete)["write_model"] = specc_onnx.write_model
    assert not backend.find_missing_members(incomplete, backend.CompilerBackend)


@pytest.mark.parametrize(
    "protocol", [backend.CompilerBackend, backend.RunnerBackend, backend.ReferenceBackend]
)
def test_parameters_match_the_protocol(protocol: type) -> None:
    """Loading a backend compares names only, so the parameters are compared here."""
    package = specc_numpy if protocol is backend.ReferenceBackend else specc_onnx
    for name, declared in vars(protocol).items():
        if name.startswith("_") or isinstance(declared, property):
            continue
        parameters = signature(getattr(package, name)).parameters
        expected = [p for p in signature(declared).parameters.values() if p.name != "self"]
        positional = [p.name for p in expected if p.kind is not Parameter.KEYWORD_ONLY]
        assert list(parameters)[: len(positional)] == positional, name
        assert {p.name for p in expected} <= parameters.keys(), name
        required_extra = [
            p.name
            for p in parameters.values()
            if p.default is Parameter.empty and p.name not in {w.name for w in expected}
        ]
        assert not required_extra, f"{name} needs {required_extra}, which no caller gives"


def find_signature_errors(op: type[Op], rule: Callable[..., object]) -> list[str]:
    """Return the errors of a rule whose parameters are not the operands of its op."""
    operands = op.signature.operands
    parameters = list(signature(rule).parameters.values())[2:]
    if parameters and parameters[-1].kind is Parameter.VAR_POSITIONAL:
        # all in one: so many as the node has
        return [] if len(parameters) == 1 else ["some operands by name, others not"]
    if operands and operands[-1].is_repeated:
        return [f"any number of operands, {len(parameters)} taken"]
    if len(parameters) != len(operands):
        return [f"{len(operands)} operands, {len(parameters)} taken"]
    named = {
        known.index: name
        for kind in reversed(op.__mro__)
        for name, known in vars(kind).items()
        if isinstance(known, Operand | OptionalOperand)
    }
    found = []
    for n, (term, parameter) in enumerate(zip(operands, parameters, strict=True)):
        if parameter.name != named.get(n, parameter.name):
            found.append(f"`{parameter.name}` is the op's `{named[n]}`")
        if term.is_optional and "None" not in str(parameter.annotation):
            found.append(f"`{parameter.name}` may be missing")
    return found


@pytest.mark.parametrize("table", TABLES)
def test_rule_parameters_match_op_operands(table: str) -> None:
    for name, op in OPS_BY_NAME.items():
        rule = TABLES[table][op]
        assert not find_signature_errors(op, rule), name
        if rule.__name__ == "<lambda>":
            continue  # it has no types, and stands next to its op in a table
        first = next(iter(signature(rule).parameters))
        assert get_type_hints(rule)[first] is op, f"a rule of another op than {name}"


@pytest.mark.parity
def test_torch_rule_parameters_match_op_operands() -> None:
    torch = pytest.importorskip("specc_torch")
    for op, rule in torch.evaluate.rules.items():
        assert not find_signature_errors(op, rule), op.name


def _short(op: object, lengths: object, query: object, key: object) -> None: ...


def _swapped(op: object, lengths: object, scores: object, mask: object) -> None: ...


def _unnamed(op: object, lengths: object, mask: object, scores: object) -> None: ...


def test_wrong_rule_parameters_are_detected() -> None:
    assert find_signature_errors(OPS_BY_NAME["attend"], _short) == ["6 operands, 2 taken"]
    assert not find_signature_errors(OPS_BY_NAME["masked_hardmax"], _swapped)
    assert len(find_signature_errors(OPS_BY_NAME["masked_hardmax"], _unnamed)) == 2
