"""Writes grammar.json, the LALR table of grammar.lark: `python -m specc.lang.table`.

Only this module needs lark. The compiler reads the table with `specc.lang.lalr.load`, so that neither
lark's import nor the building of the table is paid for at every start. A test compares the two files.
"""

import json
from pathlib import Path
from typing import Any

from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

HERE = Path(__file__).parent
STARTS = [
    "file", "expr", "type", "sided_type", "types", "source", "dim_name", "definition_head",
    "repeat_head", "scan_head", "name", "names", "title", "targets", "dotted", "path",
]  # fmt: skip
"""What can be parsed alone: a file, and everything that is one scalar in YAML."""


def grammar() -> Lark:
    """The grammar, refused if it has a conflict."""
    text = (HERE / "grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", strict=True, maybe_placeholders=True, start=STARTS)


def children(rule: dict[str, Any], names: set[str]) -> list[int | None]:
    """Which symbols of a rule become children: `n` as it is, `~n` spliced in, None for an absent option."""
    keep_all = rule["options"]["keep_all_tokens"]
    empty = rule["options"]["empty_indices"]
    chosen: list[int | None] = []
    symbols = rule["expansion"]
    splits = "".join("0" if e else "1" for e in empty).split("1") if empty else [""] * (len(symbols) + 1)
    for n, symbol in enumerate(symbols):
        chosen += [None] * len(splits[n])
        terminal = symbol["name"] in names
        if not terminal and symbol["name"].startswith("_"):
            chosen.append(~n)
        elif keep_all or not (terminal and symbol["filter_out"]):
            chosen.append(n)
    return [*chosen, *[None] * len(splits[len(symbols)])]


def rule_entry(rule: dict[str, Any], names: set[str]) -> list[Any]:
    """`[origin, callback, length, children, may be its only child]` of one rule."""
    origin = rule["origin"]["name"]
    alone = rule["options"]["expand1"] and not rule["alias"]
    return [origin, rule["alias"] or origin, len(rule["expansion"]), children(rule, names), bool(alone)]


def ordered(states: dict[int, dict[str, Any]], starts: list[int]) -> list[int]:
    """States in the order of their discovery, which does not depend on hash seeds as lark's numbers do."""
    order = list(dict.fromkeys(starts))
    seen = set(order)
    for state in order:
        for name in sorted(states[state]):
            target = states[state][name]
            if isinstance(target, int) and target not in seen:
                seen.add(target)
                order.append(target)
    return order


def table() -> dict[str, Any]:
    """The table as JSON holds it.

    `states[n]` is `~rule` where that is reduced by whatever comes next, else the row `[symbol, action, …]`
    where an action is a state to go to or `~rule`.
    """
    lark = grammar()
    data, memo = lark.memo_serialize([TerminalDef, Rule])
    parser = data["parser"]["parser"]
    terminals = {t.name: t.pattern for t in lark.terminals}
    names = set(terminals) | {"$END"}
    found: dict[int, dict[str, Any]] = {}
    rules: dict[str, list[Any]] = {}
    for state, actions in parser["states"].items():
        row = found.setdefault(state, {})
        for token, (kind, argument) in actions.items():
            if kind == 1:
                rule = memo[argument["@"]]
                argument = " ".join([json.dumps(rule["origin"]), *(json.dumps(s) for s in rule["expansion"])])
                rules[argument] = rule_entry(rule, names)
            row[parser["tokens"][token]] = argument
    rule_at = {key: n for n, key in enumerate(sorted(rules))}
    symbols = sorted(parser["tokens"].values())
    order = ordered(found, [parser["start_states"][s] for s in STARTS])
    state_at = {state: n for n, state in enumerate(order)}
    states: list[Any] = []
    for state in order:
        actions = {
            symbols.index(name): state_at[a] if isinstance(a, int) else ~rule_at[a]
            for name, a in sorted(found[state].items())
        }
        same = set(actions.values())
        only = same.pop() if len(same) == 1 else 0
        states.append(only if only < 0 else [n for pair in actions.items() for n in pair])
    return {
        "words": {p.value: name for name, p in sorted(terminals.items()) if p.type == "str"},
        "symbols": symbols,
        "rules": [rules[key] for key in sorted(rules)],
        "states": states,
        "starts": {s: state_at[parser["start_states"][s]] for s in STARTS},
        "ends": {s: state_at[parser["end_states"][s]] for s in STARTS},
    }


def text() -> str:
    """The contents of grammar.json: one state or rule a line, so that changes can be read."""
    entries = []
    for key, value in table().items():
        if isinstance(value, list) and key != "symbols":
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            entries.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            entries.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


if __name__ == "__main__":
    (HERE / "grammar.json").write_text(text(), encoding="utf-8")
