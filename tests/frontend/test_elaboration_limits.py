"""Size limits of elaboration: a spec at the limit elaborates, a larger one is rejected early."""

import time

import pytest
from support.parameter_sweeps import sample_sweep

from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.spec_modules import build_module, build_program
from specc.frontend.spec_to_graph import elaborate_model
from specc.ir.model_definition import ModelDefinition
from specc.library.spec_file_lookup import SpecLibrary
from specc.syntax.parse import decode_spec, parse_spec

LIBRARY = SpecLibrary()


def model(body: str, before: str = "", inputs: str = "x: float[batch, n, 4]") -> ModelDefinition:
    """Return the model of a graph whose result is its first input."""
    text = (
        f"specc 1\nmodel m\n{before}\ndims batch, n\ngraph g({inputs}) -> (y: "
        f"float[...]) {{\n{body}\nreturn x\n}}\n"
    )
    return elaborate_model(
        build_program(
            build_module(parse_spec(decode_spec(text.encode(), "m.specc")), "m.specc"), LIBRARY
        ),
        ConfigReadOptions(),
    )


def elaborate_invalid(
    body: str, before: str = "", inputs: str = "x: float[batch, n, 4]"
) -> Diagnostic:
    start = time.process_time()
    with pytest.raises(SpeccError) as failed:
        model(body, before, inputs)
    assert time.process_time() - start < 10, "refused, but late"
    return failed.value.diagnostics[0]


def test_loop_iterations() -> None:
    assert len(model("repeat i in 4096 { x = relu(x) }").graph.nodes) == 4096
    assert elaborate_invalid("repeat i in 4097 { x = relu(x) }").code == "E0216"
    assert elaborate_invalid("repeat i in 9007199254740991 { x = relu(x) }").code == "E0216"
    assert elaborate_invalid("repeat i in 0 - 1 { x = relu(x) }").code == "E0216"
    assert not model("repeat i in 0 { x = relu(x) }").graph.nodes


@pytest.mark.slow
def test_operation_count() -> None:
    loops = "repeat i in 100 { repeat j in 100 { repeat k in %d { x = relu(x) } } }"
    assert len(model(loops % 20).graph.nodes) == 200_000
    assert elaborate_invalid(loops % 21).code == "E0109"


def test_nested_block_calls() -> None:
    def chain(count: int) -> str:
        inner = [
            f"block b{n}(x: float[...]) -> float[...] {{ return b{n + 1}(x) }}"
            for n in range(count - 1)
        ]
        return "\n".join(
            [*inner, f"block b{count - 1}(x: float[...]) -> float[...] {{ return relu(x) }}"]
        )

    assert model("x = b0(x)", chain(63)).graph.nodes
    assert elaborate_invalid("x = b0(x)", chain(64)).code == "E0110"
    assert elaborate_invalid("x = b0(x)", chain(500)).code == "E0110"


def test_nested_expressions_in_nested_blocks() -> None:
    deep = "\n".join(
        f"block b{n}(x: float[...]) -> float[...] {{ return {'relu(' * 60}b{n + 1}(x){')' * 60} }}"
        for n in range(60)
    )
    assert (
        elaborate_invalid(
            "x = b0(x)", f"{deep}\nblock b60(x: float[...]) -> float[...] {{ return x }}"
        ).code
        == "E0110"
    )


def test_terms_of_a_symbolic_length() -> None:
    def joined(count: int) -> str:
        return "x = concat([" + ", ".join(f"x{n}" for n in range(count)) + "], axis=0)"

    def inputs(count: int) -> tuple[str, str]:
        names = [f"a{n}" for n in range(count)]
        return f"dims {', '.join(names)}", ", ".join(
            f"x{n}: float[{a}]" for n, a in enumerate(names)
        )

    before, given = inputs(64)
    assert model(joined(64), before, f"x: float[a0], {given}").graph
    before, given = inputs(65)
    assert elaborate_invalid(joined(65), before, f"x: float[a0], {given}").code == "E0309"


def test_integers_stay_exact() -> None:
    assert model("n1 = 9007199254740990 + 1").graph
    assert elaborate_invalid("n1 = 9007199254740991 + 1").code == "E0309"
    assert elaborate_invalid("n1 = 2 ** 53").code == "E0309"
    assert elaborate_invalid("repeat i in 100 { x = concat([x, x], axis=1) }").code == "E0309"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("y = linear(x, out=0) @ w", "E0308"),
        ("y = linear(x, out=0 - 4) @ w", "E0308"),
        ("y = linear(x, out=2251799813685248) @ w", "E0308"),
        (
            "repeat i in 2 { y = linear(x, out=1125899906842624) @ w{i} }".replace(
                "w{i}", '"w{i}"'
            ),
            "E0308",
        ),
        ("y = embedding(argmax(x, axis=-1), size=9007199254740991, dim=2) @ w", "E0308"),
    ],
)
def test_too_large_weights_are_rejected(body: str, code: str) -> None:
    assert elaborate_invalid(body).code == code


@pytest.mark.parametrize(
    ("body", "code"),
    sample_sweep(
        [
            ('a = ["x"]\nrepeat i in 60 { a = a + a }', "E0216"),
            ('a = "xy"\nrepeat i in 60 { a = "{a}{a}" }', "E0521"),
            ("a = [[1 for j in 4000] for i in 4000]", "E0216"),
            ("a = [[i * j * 1 for j in 4000] for i in 4000]", "E0223"),
            ("a = [i for i in 9007199254740991]", "E0216"),
            ("a = chunk(x, 9007199254740991)", "E0216"),
        ]
    ),
)
def test_short_specs_that_exhaust_memory_are_rejected(body: str, code: str) -> None:
    assert elaborate_invalid(body).code == code


NO_RESULT = [
    "1 / 0", "7 / 2", "5 // 0", "5 % 0",
    "10.0 ** 400", "0.0 ** (0.0 - 1.0)", "(0.0 - 8.0) ** 0.5", "log(0.0)", "exp(1000.0)",
    "int(inf)", "floor(inf)",
]  # fmt: skip


@pytest.mark.parametrize("calculation", NO_RESULT)
def test_undefined_arithmetic_is_rejected(calculation: str) -> None:
    assert elaborate_invalid(f"a = {calculation}").code == "E0310"


@pytest.mark.parametrize(
    "shape",
    [
        "[67108865]",
        "[8193, 8192]",
        "[10 ** 10, 8]",
        "[length(x, axis=0), 67108865]",
        "[10 ** 15, 10 ** 15]",
    ],
)
@pytest.mark.parametrize("word", ["zeros", "ones"])
def test_too_large_constants_are_rejected(word: str, shape: str) -> None:
    assert elaborate_invalid(f"y = {word}(shape={shape})").code == "E0224"


@pytest.mark.parametrize(
    "made",
    [
        "range(67108865)",
        "one_hot(range(8193), size=8193)",
        "insert(range(9000), axis=0) - insert(range(9000), axis=1)",
        "sinusoid(range(100000), dim=1024, layout=halves)",
        "concat([zeros(shape=[40000000]), ones(shape=[40000000])], axis=0)",
    ],
)
def test_too_large_constant_expressions_are_rejected(made: str) -> None:
    assert elaborate_invalid(f"y = {made}").code == "E0224"


def test_largest_allowed_constant() -> None:
    assert model("y = zeros(shape=[8192, 8192])").graph
    assert model("y = linear(x, out=100000000, bias=false) @ w").graph, (
        "weights and what follows inputs have no such limit"
    )


def test_same_block_as_argument_is_not_recursion() -> None:
    block = "block twice(x: float[...]) -> float[...] { return x + x }"
    assert len(model("x = twice(twice(twice(x)))", block).graph.nodes) == 3
    assert (
        elaborate_invalid(
            "x = b(x)", "block b(x: float[...], y: float[...] = b(x)) -> float[...] { return x }"
        ).code
        == "E0210"
    )
