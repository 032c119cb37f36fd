"""Both syntaxes are equivalent: text → tree → text, in each and from one to the other, for any
tree.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.parameter_sweeps import sample_sweep

from specc.diagnostics.diagnostic import Source
from specc.library.std_library import deserialize_syntax_tree, serialize_syntax_tree
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import parse_dsl, parse_expression
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.dsl.expression_printer import RESERVED_WORDS, format_expression
from specc.syntax.yaml.yaml_parser import parse_yaml
from specc.syntax.yaml.yaml_printer import format_yaml

# of the strategies, if one fails
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
EXAMPLES = sorted((Path(__file__).parents[1] / "syntax" / "examples").glob("*.specc"))
ROOT = Path(__file__).parents[2]
SHIPPED = sorted([*(ROOT / "specs").rglob("*.specc"), *(ROOT / "specs").rglob("*.yaml")])


def dsl(text: str) -> ast.File:
    return parse_dsl(Source("a.specc", text))


def yaml(text: str) -> ast.File:
    return parse_yaml(Source("a.yaml", text))


def find_tree_difference(a: Any, b: Any, path: str = "") -> str:
    """Return where two trees first differ, since their `repr` is very long."""
    if type(a) is not type(b):
        return f"{path}: {a!r} is not {b!r}"
    if dataclasses.is_dataclass(a):
        named = (
            find_tree_difference(getattr(a, f.name), getattr(b, f.name), f"{path}.{f.name}")
            for f in dataclasses.fields(a)
            if f.compare
        )
        return next((d for d in named if d), "")
    if isinstance(a, tuple) and len(a) == len(b):
        return next(
            (
                d
                for n, (x, y) in enumerate(zip(a, b, strict=True))
                if (d := find_tree_difference(x, y, f"{path}[{n}]"))
            ),
            "",
        )
    return "" if a == b else f"{path}: {a!r} is not {b!r}"


def assert_round_trip(file: ast.File) -> None:
    """Check that every path through the two syntaxes gives the same tree, and that printing is
    idempotent.
    """
    text = format_dsl(file)
    again = dsl(text)
    assert not find_tree_difference(file, again), text
    assert format_dsl(again) == text
    other = format_yaml(file)
    mirrored = yaml(other)
    assert not find_tree_difference(file, mirrored), other
    assert format_yaml(mirrored) == other
    assert not find_tree_difference(
        deserialize_syntax_tree(serialize_syntax_tree(file), Source("a", text + other)), file
    )


@pytest.mark.parametrize(
    "path", [*EXAMPLES, *sample_sweep(SHIPPED, stride=18)], ids=lambda p: p.name
)
def test_every_spec_converts_in_both_directions(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    file = dsl(text) if path.suffix == ".specc" else yaml(text)
    assert_round_trip(file)
    assert not find_tree_difference(
        deserialize_syntax_tree(serialize_syntax_tree(file), Source(path.name, text)), file
    )


# --- any tree of the grammar ----------------------------------------------------------

WORDS = [
    "x",
    "y",
    "mask",
    "from",
    "of",
    "keep",
    "list",
    "config",
    "a1",
    "_b",
    "left",
    "d_model",
    "type",
    "is",
    "do",
]
names = st.sampled_from(WORDS)
some_names = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
few_names = st.lists(names, max_size=2, unique=True).map(tuple)
texts = st.one_of(
    st.sampled_from(
        [
            "",
            "a: b",
            "# no comment",
            "it's",
            '"',
            "no",
            "1e-5",
            "{i}",
            "[x]",
            "a\nb",
            "\t",
            "-",
            "é\u2028",
            "&a",
            "a # b",
        ]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8),
)
docs = texts
words = st.one_of(names, texts.filter(bool))
remark = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=6
)
remarks = st.one_of(
    st.just(ast.NO_COMMENTS),
    st.builds(
        ast.Comments,
        st.lists(remark, max_size=2).map(tuple),
        st.one_of(st.just(""), remark),
        st.booleans(),
    ),
)
ends = st.one_of(st.just(()), st.lists(remark, max_size=2).map(tuple))
paths = st.one_of(
    st.sampled_from(["a", "a.b", "self.from.repeat", "h.0.1.w", "layers.{i}.q", "a b", "1e5"]),
    texts,
).map(ast.WeightPath)
numbers = st.sampled_from(["0", "1", "12", "1e-5", "0.5", "9007199254740991", "1E+3"]).map(
    ast.NumberLiteral
)
dotted = st.one_of(names, st.sampled_from(["a.b", "config.mask.x", "true", "none", "false"])).map(
    ast.Name
)
functions = st.sampled_from(["f", "v.encode", "choice", "len", "linear"]).map(ast.Name)


LAST_FIELDS = ("comments", "end_comments", "else_end_comments")


def build_trees(
    kind: type[Any], *values: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]
) -> Any:
    """Return a strategy for trees of a class, with fields in the order of the source: comments come
    last.
    """
    known = [f.name for f in dataclasses.fields(kind)]
    fields = [n for n in known if n not in LAST_FIELDS and not n.endswith("span")]
    fields += [n for n in LAST_FIELDS if n in known]
    return st.builds(kind, **dict(zip(fields, values, strict=False)), **named)


def options(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = build_trees(ast.NamedArg, st.sampled_from([*WORDS, "in_", "weights", "out"]), values)
    return st.lists(named, max_size=3, unique_by=lambda o: o.name).map(tuple)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    optional = st.one_of(st.none(), inner)
    subscripts = st.one_of(
        inner, build_trees(ast.Slice, optional, optional, optional), st.just(ast.EllipsisDims())
    )
    operators = st.sampled_from(["==", "!=", "<=", ">=", "<", ">", "in"])
    return st.one_of(
        build_trees(
            ast.Call,
            functions,
            st.lists(inner, max_size=3).map(tuple),
            options(inner),
            st.one_of(st.none(), paths),
        ),
        build_trees(ast.Index, inner, st.lists(subscripts, min_size=1, max_size=3).map(tuple)),
        build_trees(ast.UnaryOp, st.sampled_from(["-", "not"]), inner),
        build_trees(
            ast.BinaryOp,
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "&", "|"]),
            inner,
            inner,
        ),
        st.lists(inner, min_size=2, max_size=3).flatmap(
            lambda parts: build_trees(
                ast.Compare, st.tuples(*[operators] * (len(parts) - 1)), st.just(tuple(parts))
            )
        ),
        build_trees(ast.Conditional, inner, inner, inner),
        build_trees(ast.ListLiteral, st.lists(inner, max_size=3).map(tuple)),
        build_trees(ast.ListComprehension, inner, names, inner),
        build_trees(ast.RecordLiteral, options(inner)),
    )


expressions = st.recursive(
    st.one_of(numbers, dotted, texts.map(ast.StringLiteral)), larger, max_leaves=8
)
small = st.one_of(
    numbers,
    dotted,
    build_trees(
        ast.Call,
        functions,
        st.lists(dotted, max_size=2).map(tuple),
        options(numbers),
        st.one_of(st.none(), paths),
    ),
)
values = st.one_of(small, expressions)
maybe = st.one_of(st.none(), small)
dims = st.one_of(
    st.none(), st.lists(st.one_of(small, st.just(ast.EllipsisDims())), max_size=3).map(tuple)
)
plain = build_trees(
    ast.TypeExpr,
    st.sampled_from(["float", "int", "keep", "mask", "activation", "from"]),
    dims,
    st.booleans(),
)


def larger_type(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(
        build_trees(
            ast.ConfigField, names.filter(lambda n: n != "from"), inner, default=maybe, doc=docs
        ),
        max_size=2,
        unique_by=lambda f: f.name,
    )
    return st.one_of(
        build_trees(
            ast.TypeExpr,
            st.sampled_from(["list", "pair"]),
            optional=st.booleans(),
            element_type=inner,
        ),
        build_trees(
            ast.TypeExpr,
            st.just("choice"),
            optional=st.booleans(),
            names=st.lists(words, min_size=1, max_size=3, unique=True).map(tuple),
        ),
        build_trees(
            ast.TypeExpr, st.just("record"), optional=st.booleans(), fields=fields.map(tuple)
        ),
    )


types = st.recursive(plain, larger_type, max_leaves=4)
sided = st.one_of(
    types, build_trees(ast.TypeExpr, st.just("keep"), dims, side=st.sampled_from(["left", "right"]))
)
target = build_trees(ast.AssignmentTarget, names, st.one_of(st.none(), types))
targets = st.lists(target, min_size=1, max_size=3, unique_by=lambda t: t.name).map(tuple)
requires = build_trees(ast.RequireStatement, values, texts, remarks)
statements = st.deferred(
    lambda: st.one_of(
        build_trees(ast.Assignment, targets, values, remarks),
        build_trees(ast.ReturnStatement, st.lists(values, min_size=1, max_size=3).map(tuple), remarks),
        requires,
        build_trees(ast.RepeatLoop, names, values, st.one_of(st.none(), paths), few_names, bodies, remarks, ends),
        some_names.flatmap(
            lambda v: build_trees(
                ast.ScanLoop, st.just(v), st.tuples(*[small] * len(v)),
                small if len(v) > 1 else maybe, few_names, few_names, bodies,
                st.booleans(), maybe, maybe, remarks, ends,
            )
        ),
        build_trees(ast.WhenStatement, values, bodies, bodies, remarks, ends, ends),
    )
)  # fmt: skip
bodies = st.lists(statements, max_size=2).map(tuple)
field_names = names.filter(lambda n: n != "from")
source = st.one_of(
    texts.map(ast.StringLiteral),
    build_trees(ast.Call, functions, st.lists(small, max_size=1).map(tuple), options(numbers)),
)
entries = st.one_of(
    build_trees(
        ast.ConfigField,
        field_names,
        types,
        st.lists(source, max_size=2).map(tuple),
        st.one_of(st.none(), values),
        docs,
        remarks,
    ),
    build_trees(ast.ConfigOverride, field_names, values, remarks),
)
results = st.one_of(
    build_trees(ast.BlockParameter, st.just(""), types).map(lambda p: (p,)),
    st.lists(
        build_trees(ast.BlockParameter, names, sided),
        min_size=1,
        max_size=3,
        unique_by=lambda p: p.name,
    ).map(tuple),
)
params = st.lists(
    build_trees(ast.BlockParameter, names, sided, maybe), max_size=3, unique_by=lambda p: p.name
).map(tuple)
parameters = st.lists(
    build_trees(ast.DefinitionParameter, names, st.one_of(st.none(), types), maybe),
    max_size=3,
    unique_by=lambda p: p.name,
).map(tuple)
equations = st.lists(
    build_trees(ast.Equation, names, small), max_size=2, unique_by=lambda e: e.name
).map(tuple)
read = st.one_of(
    build_trees(ast.InputPreprocessing, names, values, remarks),
    build_trees(ast.OutputPostprocessing, names, values, remarks),
)
reads = st.lists(read, max_size=3, unique_by=lambda r: (type(r), r.name)).map(tuple)
rules = st.one_of(
    build_trees(ast.WeightsFile, texts, remarks),
    build_trees(ast.WeightTyingRule, paths, paths, maybe, remarks),
    build_trees(ast.LoadRule, paths, values, maybe, remarks),
    build_trees(ast.IgnoreRule, st.lists(paths, min_size=1, max_size=3).map(tuple), maybe, remarks),
    build_trees(ast.WeightSharingRule, paths, maybe, remarks),
)
made = st.lists(
    build_trees(
        ast.GenerateSetting, names.filter(lambda n: n not in ("of", "from")), values, remarks
    ),
    max_size=3,
    unique_by=lambda s: s.name,
).map(tuple)
rounds = build_trees(
    ast.QuantizeSetting,
    words,
    st.lists(words.map(ast.StringLiteral), max_size=3).map(tuple),
    remarks,
)
rounded = st.lists(rounds, max_size=3, unique_by=lambda r: r.name).map(tuple)
items = st.one_of(
    build_trees(
        ast.UseStatement,
        name=names,
        paths=st.lists(texts, min_size=1, max_size=3).map(tuple),
        sources=st.lists(texts, max_size=2).map(tuple),
        under=st.none() | paths,
        comments=remarks,
    ),
    build_trees(
        ast.ConfigSection,
        st.lists(entries, max_size=3, unique_by=lambda e: e.name).map(tuple),
        remarks,
        ends,
    ),
    build_trees(
        ast.DimsSection,
        st.lists(
            build_trees(ast.DimDecl, names, st.integers(0, 2)),
            min_size=1,
            max_size=3,
            unique_by=lambda d: d.name,
        ).map(tuple),
        remarks,
    ),
    requires,
    build_trees(
        ast.Block,
        st.just("block"),
        names,
        params,
        results,
        bodies,
        st.just(()),
        st.just(()),
        docs,
        remarks,
        ends,
    ),
    build_trees(
        ast.Block,
        st.just("graph"),
        names,
        params,
        results,
        bodies,
        equations,
        st.lists(words, max_size=2, unique=True).map(tuple),
        docs,
        remarks,
        ends,
    ),
    build_trees(
        ast.AttentionDef,
        st.sampled_from(["mask", "score", "bias", "normalizer"]),
        names,
        st.one_of(st.none(), parameters),
        values,
        docs,
        remarks,
    ),
    build_trees(ast.PreprocessingSection, reads, remarks, ends),
    build_trees(ast.WeightsSection, st.lists(rules, max_size=3).map(tuple), remarks, ends),
    build_trees(ast.GenerateSection, names, names, names, made, remarks, ends),
    build_trees(ast.QuantizeSection, rounded, remarks, ends),
    build_trees(ast.StreamSection, names, names, remarks),
)


def make_inputs_and_graph(entries: list[ast.InputDecl]) -> st.SearchStrategy[Any]:
    """Return a strategy for a pair of an `inputs` section and a graph with its inputs."""
    shared = tuple(ast.BlockParameter(e.name, e.type, e.default, True) for e in entries)
    local = build_trees(ast.BlockParameter, st.just("local"), sided, maybe)
    graph_params = st.one_of(st.just(shared), local.map(lambda p: (*shared, p)))
    return st.tuples(
        build_trees(ast.InputsSection, st.just(tuple(entries)), remarks, ends),
        build_trees(ast.Block, st.just("graph"), names, graph_params, results, bodies),
    )


# `left` would be the side of the type before it
input_entries = build_trees(
    ast.InputDecl, names.filter(lambda n: n != "left"), sided, maybe, remarks
)
inputs_and_graphs = st.lists(input_entries, max_size=3, unique_by=lambda e: e.name).flatmap(
    make_inputs_and_graph
)
files = build_trees(
    ast.File,
    st.just(1),
    words,
    docs,
    st.one_of(st.just(""), words),
    st.builds(
        lambda first, others: (*first, *others),
        st.one_of(st.just(()), inputs_and_graphs),
        st.lists(items, max_size=4),
    ),
    remarks,
    ends,
)


LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large]
SOME, MANY = (
    settings(max_examples=n, deadline=None, suppress_health_check=LARGE) for n in (60, 1500)
)


def parse_again(expr: Any) -> None:
    text = format_expression(expr)
    assert not find_tree_difference(parse_expression(text), expr), text


@SOME
@given(expressions)
def test_any_expression_parses_to_its_tree(expr: Any) -> None:
    parse_again(expr)


@pytest.mark.slow
@MANY
@given(expressions)
def test_very_many_expressions_parse_to_their_trees(expr: Any) -> None:
    parse_again(expr)


@SOME
@given(files)
def test_any_tree_converts_in_both_directions(file: ast.File) -> None:
    assert_round_trip(normalize_comments(file))


@pytest.mark.slow
@MANY
@given(files)
def test_very_many_trees_convert_in_both_directions(file: ast.File) -> None:
    assert_round_trip(normalize_comments(file))


def normalize_comments(file: ast.File) -> ast.File:
    """Return a tree whose comments are where the parsers put them; printers may move them."""
    return dsl(format_dsl(file))


def test_reserved_words_equal_those_of_the_grammar() -> None:
    grammar = (ROOT / "specc" / "syntax" / "dsl" / "grammar.lark").read_text(encoding="utf-8")
    line = grammar.split("!hard:")[1].split("\n")[0]
    assert {w.strip(' "') for w in line.split("|")} == RESERVED_WORDS
