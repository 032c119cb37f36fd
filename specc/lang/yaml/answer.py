"""Advice in the syntax of the file that it is for.

Messages are made where nothing is known of syntaxes, and say what to write in the words
of `.specc`. For a YAML file every piece of advice that is an item, a statement, a config
value or an option is written again as YAML has it; expressions are the same in both.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import yaml

from specc.lang import tree
from specc.lang.dsl.parse import parse_dsl
from specc.lang.yaml.write import write_yaml
from specc.text.diagnostic import Diagnostic, Failed
from specc.text.source import Source

PIECE = re.compile(r"`([^`\n]+)`")
DOTS = "what_is_left_out"
"""Stands for `…` while a piece is read."""
EMPTY = f"{{ {DOTS} = {DOTS} }}"
"""Stands for `{ … }`."""
OPTION = re.compile(r"([a-z_]+)=([^=\s].*)")
NAMED = re.compile(r"(?:… )?@ (\S+)")
TYPED = re.compile(r"\w+: (?:int|float|bool|text|list|choice|mask|score|bias|norm)\b")
IN_A_MAP = re.compile(r"\s*[{-]|\w+:\s")


def answered(diagnostic: Diagnostic) -> Diagnostic:
    """A message about a YAML file with its advice in YAML."""
    text = diagnostic.primary.span.text if diagnostic.primary else ""
    mapped = IN_A_MAP.match(text) is not None

    def again(said: str) -> str:
        return PIECE.sub(lambda piece: f"`{in_yaml(piece[1], mapped=mapped)}`", said)

    return replace(
        diagnostic,
        notes=tuple(map(again, diagnostic.notes)),
        helps=tuple(map(again, diagnostic.helps)),
    )


@lru_cache(maxsize=256)
def in_yaml(piece: str, *, mapped: bool = True) -> str:
    """A piece of advice as YAML has it; as it is where both syntaxes write the same.

    `mapped` says that what is at fault is written as a map, `{linear: {in: x}}`, and not
    as text: options and names of weights are entries there.
    """
    if option := OPTION.fullmatch(piece):
        return f"{option[1]}: {option[2]}" if mapped else piece
    if mapped and (named := NAMED.fullmatch(piece)):
        name = named[1].strip('"')
        return f"weights: {name}"
    for wrapped, picked in _readings(piece):
        try:
            file = parse_dsl(Source("advice", wrapped))
        except Failed:
            continue
        # a text alone describes a file or a block, and says nothing else
        alone = any(isinstance(i, tree.Block) and not i.body for i in file.items)
        if alone or not (file.items or file.extends):
            continue
        root = yaml.compose(write_yaml(file))
        assert root is not None  # every spec has a name
        return _written(picked(root))
    return piece


Picked = Callable[[yaml.Node], yaml.Node]


def _readings(piece: str) -> Iterator[tuple[str, Picked]]:
    """Whole specs that a piece would be a part of, with the way to it in their YAML."""
    text = piece.replace("{ … }", EMPTY).replace("…", DOTS)
    head = 'specc 1\nmodel m "d"\n'  # what follows describes nothing any more
    yield f"{head}{text}\n", _item
    if TYPED.match(piece):
        yield f"{head}config {{ {text} }}\n", lambda n: _at(n, "config")
    if piece.startswith("show "):
        yield f"{head}reading {{ {text} }}\n", lambda n: _at(n, "reading")
    if piece.startswith("where "):
        wanted = f"{head}graph g() -> float[] {text} {EMPTY}\n"
        yield wanted, lambda n: _pair(_at(_first(_at(n, "items")), "where"), "where")
    # an expression alone is none: a statement has a name, or begins with a word
    for body in (text, f"{text} {EMPTY}"):
        yield f"{head}block f() -> float[] {{ {body} }}\n", _statement


def _item(root: yaml.Node) -> yaml.Node:
    """The one item of a file; of `items:` the entry."""
    assert isinstance(root, yaml.MappingNode)  # as `write_yaml` writes it
    pairs = [p for p in root.value if p[0].value not in ("specc", "model", "doc")]
    if len(pairs) == 1 and pairs[0][0].value == "items":
        return yaml.SequenceNode("tag:yaml.org,2002:seq", pairs[0][1].value)
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs)


def _statement(root: yaml.Node) -> yaml.Node:
    return _first(_at(_first(_at(root, "items")), "do"))


def _at(node: yaml.Node, key: str) -> yaml.Node:
    assert isinstance(node, yaml.MappingNode)  # as `write_yaml` writes it
    found: yaml.Node = next(v for k, v in node.value if k.value == key)
    return found


def _first(node: yaml.Node) -> yaml.Node:
    found: yaml.Node = node.value[0]
    return found


def _pair(node: yaml.Node, key: str) -> yaml.Node:
    name = yaml.ScalarNode("tag:yaml.org,2002:str", key)
    return yaml.MappingNode("tag:yaml.org,2002:map", [(name, node)])


def _written(node: yaml.Node) -> str:
    """A node in one line, without the braces of a single entry."""
    _flatten(node)
    text = yaml.serialize(node, width=10_000, allow_unicode=True).strip()
    text = text.removesuffix("\n...").strip()
    if isinstance(node, yaml.SequenceNode):
        text = "- " + text[1:-1]
    elif isinstance(node, yaml.MappingNode) and len(node.value) == 1:
        text = text[1:-1]
    text = text.replace(f", {DOTS}: {DOTS}}}", f", {DOTS}}}")  # settings
    for empty in (f"[{{{DOTS}: {DOTS}}}]", f"{{{DOTS}: {DOTS}}}"):
        text = text.replace(empty, "[…]" if empty[0] == "[" else "{…}")
    return text.replace(DOTS, "…")


def _flatten(node: yaml.Node) -> None:
    """Lists and maps of one line."""
    if isinstance(node, yaml.CollectionNode):
        node.flow_style = True
        for inner in node.value:
            for part in inner if isinstance(inner, tuple) else (inner,):
                _flatten(part)
