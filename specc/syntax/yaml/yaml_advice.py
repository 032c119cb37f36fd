"""Translate DSL snippets in diagnostics into YAML for YAML files."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import yaml

from specc.diagnostics.diagnostic import Diagnostic, Failed
from specc.diagnostics.source import Source
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.yaml.yaml_printer import print_yaml

CODE_PIECE = re.compile(r"`([^`\n]+)`")
PLACEHOLDER = "what_is_left_out"
"""Stands for `…` while an example is parsed."""
EMPTY_BODY = f"{{ {PLACEHOLDER} = {PLACEHOLDER} }}"
"""Stands for `{ … }`."""
OPTION_PIECE = re.compile(r"([a-z_]+)=([^=\s].*)")
WEIGHTS_PIECE = re.compile(r"(?:… )?@ (\S+)")
TYPED_PIECE = re.compile(r"\w+: (?:int|float|bool|text|list|choice|mask|score|bias|norm)\b")
YAML_PIECE = re.compile(r"\s*[{-]|\w+:\s")


def translate_advice_to_yaml(diagnostic: Diagnostic) -> Diagnostic:
    """Translate the advice of a diagnostic about a YAML file to YAML."""
    text = diagnostic.primary.span.text if diagnostic.primary else ""
    mapped = YAML_PIECE.match(text) is not None

    def again(said: str) -> str:
        return CODE_PIECE.sub(lambda piece: f"`{rewrite_as_yaml(piece[1], mapped=mapped)}`", said)

    return replace(
        diagnostic,
        notes=tuple(map(again, diagnostic.notes)),
        helps=tuple(map(again, diagnostic.helps)),
    )


@lru_cache(maxsize=256)
def rewrite_as_yaml(piece: str, *, mapped: bool = True) -> str:
    """Rewrite a code fragment of advice in YAML; unchanged if both syntaxes are equal. `mapped`:
    the erroneous code is a map, `{linear: {in: x}}`, and not text, so options and weight names are
    entries.
    """
    if option := OPTION_PIECE.fullmatch(piece):
        return f"{option[1]}: {option[2]}" if mapped else piece
    if mapped and (named := WEIGHTS_PIECE.fullmatch(piece)):
        name = named[1].strip('"')
        return f"weights: {name}"
    for wrapped, picked in _embed_in_specs(piece):
        try:
            file = parse_dsl(Source("advice", wrapped))
        except Failed:
            continue
        # a text alone describes a file or a block, and says nothing else
        alone = any(isinstance(i, ast.Block) and not i.body for i in file.items)
        if alone or not (file.items or file.extends):
            continue
        root = yaml.compose(print_yaml(file))
        assert root is not None  # every spec has a name
        return _print_flow(picked(root))
    return piece


NodeSelector = Callable[[yaml.Node], yaml.Node]


def _embed_in_specs(piece: str) -> Iterator[tuple[str, NodeSelector]]:
    """Yield whole specs that may contain a fragment, with a selector into their YAML."""
    text = piece.replace("{ … }", EMPTY_BODY).replace("…", PLACEHOLDER)
    head = 'specc 1\nmodel m "d"\n'  # what follows describes nothing any more
    yield f"{head}{text}\n", _select_item
    if TYPED_PIECE.match(piece):
        yield f"{head}config {{ {text} }}\n", lambda n: _select_value(n, "config")
    if piece.startswith("show "):
        yield f"{head}reading {{ {text} }}\n", lambda n: _select_value(n, "reading")
    if piece.startswith("where "):
        wanted = f"{head}graph g() -> float[] {text} {EMPTY_BODY}\n"
        yield (
            wanted,
            lambda n: _select_pair(
                _select_value(_select_first(_select_value(n, "items")), "where"), "where"
            ),
        )
    # an expression alone is none: a statement has a name, or begins with a word
    for body in (text, f"{text} {EMPTY_BODY}"):
        yield f"{head}block f() -> float[] {{ {body} }}\n", _select_statement


def _select_item(root: yaml.Node) -> yaml.Node:
    """Return the only item of a file; of `items:` the entry."""
    assert isinstance(root, yaml.MappingNode)  # as `print_yaml` writes it
    pairs = [p for p in root.value if p[0].value not in ("specc", "model", "doc")]
    if len(pairs) == 1 and pairs[0][0].value == "items":
        return yaml.SequenceNode("tag:yaml.org,2002:seq", pairs[0][1].value)
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs)


def _select_statement(root: yaml.Node) -> yaml.Node:
    return _select_first(_select_value(_select_first(_select_value(root, "items")), "do"))


def _select_value(node: yaml.Node, key: str) -> yaml.Node:
    assert isinstance(node, yaml.MappingNode)  # as `print_yaml` writes it
    found: yaml.Node = next(v for k, v in node.value if k.value == key)
    return found


def _select_first(node: yaml.Node) -> yaml.Node:
    found: yaml.Node = node.value[0]
    return found


def _select_pair(node: yaml.Node, key: str) -> yaml.Node:
    name = yaml.ScalarNode("tag:yaml.org,2002:str", key)
    return yaml.MappingNode("tag:yaml.org,2002:map", [(name, node)])


def _print_flow(node: yaml.Node) -> str:
    """Print a node on one line, without the braces of a single entry."""
    _set_flow_style(node)
    text = yaml.serialize(node, width=10_000, allow_unicode=True).strip()
    text = text.removesuffix("\n...").strip()
    if isinstance(node, yaml.SequenceNode):
        text = "- " + text[1:-1]
    elif isinstance(node, yaml.MappingNode) and len(node.value) == 1:
        text = text[1:-1]
    text = text.replace(f", {PLACEHOLDER}: {PLACEHOLDER}}}", f", {PLACEHOLDER}}}")  # settings
    for empty in (f"[{{{PLACEHOLDER}: {PLACEHOLDER}}}]", f"{{{PLACEHOLDER}: {PLACEHOLDER}}}"):
        text = text.replace(empty, "[…]" if empty[0] == "[" else "{…}")
    return text.replace(PLACEHOLDER, "…")


def _set_flow_style(node: yaml.Node) -> None:
    """Set flow style on nested lists and maps."""
    if isinstance(node, yaml.CollectionNode):
        node.flow_style = True
        for inner in node.value:
            for part in inner if isinstance(inner, tuple) else (inner,):
                _set_flow_style(part)
