"""Generate grammar.json, the LALR parse table, from grammar.lark (`make tables`)."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias, TypedDict

from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

from specc.syntax.dsl import lalr

GRAMMAR_DIRECTORY = Path(lalr.__file__).parent
REDUCE_ACTION = 1
"""The number by which lark encodes a reduce action. A shift action is encoded as 0."""


class LarkSymbol(TypedDict):
    """A symbol as lark serializes it. `filter_out` is true for tokens that are not part of the
    tree.
    """

    name: str
    filter_out: bool


class LarkOptions(TypedDict):
    """The options of a rule, e.g. `!rule`, `?rule` and `[…]` in lark's grammar syntax."""

    keep_all_tokens: bool
    expand1: bool
    empty_indices: list[bool]


class LarkRule(TypedDict):
    """One expansion of a grammar rule as lark serializes it."""

    origin: LarkSymbol
    alias: str | None
    expansion: list[LarkSymbol]
    options: LarkOptions


class LarkParser(TypedDict):
    """The parse table of lark."""

    tokens: dict[int, str]
    states: dict[int, dict[int, tuple[int, "int | dict[str, int]"]]]
    start_states: dict[str, int]
    end_states: dict[str, int]


RuleEntry: TypeAlias = tuple[str, str, int, list[int | None], bool]
StateRow: TypeAlias = dict[str, int | str]
TableJson: TypeAlias = dict[str, object]
START_SYMBOLS = [
    "file", "expr", "type", "sided_type", "types", "source", "dim_name",
    "definition_head", "repeat_head", "scan_head", "targets", "dotted",
]  # fmt: skip
"""The start symbols: a file, and every construct that is a single scalar in YAML."""


@cache
def load_grammar() -> Lark:
    """Load the grammar and build its parse table, which takes several seconds. Raise on
    conflicts.
    """
    text = (GRAMMAR_DIRECTORY / "grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", strict=True, maybe_placeholders=True, start=START_SYMBOLS)


def compute_child_slots(rule: LarkRule, terminals: set[str]) -> list[int | None]:
    """Return the symbols of a rule that become children: `n` for an unchanged symbol, `~n` for a
    symbol whose children are spliced in, and None for an absent option.
    """
    keep_all = rule["options"]["keep_all_tokens"]
    chosen: list[int | None] = []
    symbols = rule["expansion"]
    absent = count_absent_options(rule["options"]["empty_indices"], len(symbols))
    for n, symbol in enumerate(symbols):
        chosen += [None] * absent[n]
        terminal = symbol["name"] in terminals
        if not terminal and symbol["name"].startswith("_"):
            chosen.append(~n)  # lark's expansion of a repetition
        elif keep_all or not (terminal and symbol["filter_out"]):
            chosen.append(n)
    return [*chosen, *[None] * absent[len(symbols)]]


def count_absent_options(empty: list[bool], size: int) -> list[int]:
    """Count the absent options before each of `size` symbols, and after the last symbol.

    lark marks every symbol of the source rule as absent or present in this expansion. For `name
    ["=" expr] [STRING]`, the expansion `name STRING` has the marks `[no, yes, no]`.
    """
    if not empty:
        return [0] * (size + 1)
    counts = [0]
    for is_absent in empty:
        if is_absent:
            counts[-1] += 1
        else:
            counts.append(0)
    return counts


def build_rule_entry(rule: LarkRule, terminals: set[str]) -> RuleEntry:
    """Return `[origin, callback, length, children, can be its only child]` of one rule."""
    origin = rule["origin"]["name"]
    alone = rule["options"]["expand1"] and not rule["alias"]
    return (
        origin,
        rule["alias"] or origin,
        len(rule["expansion"]),
        compute_child_slots(rule, terminals),
        bool(alone),
    )


def order_states(states: dict[int, StateRow], starts: list[int]) -> list[int]:
    """Sort states by order of discovery, because the numbering of lark depends on hash seeds."""
    order = list(dict.fromkeys(starts))
    seen = set(order)
    for state in order:
        for name in sorted(states[state]):
            target = states[state][name]
            if isinstance(target, int) and target not in seen:
                seen.add(target)
                order.append(target)
    return order


def build_lalr_table() -> TableJson:
    """Build the parse table in its JSON form. `states[n]` is `~rule` if the state always reduces by
    one rule, otherwise the row `[symbol, action, …]`, where an action is the next state or `~rule`.
    """
    lark = load_grammar()
    data, memo = lark.memo_serialize([TerminalDef, Rule])
    parser = data["parser"]["parser"]
    terminals = {t.name: t.pattern for t in lark.terminals}
    rows, rules = collect_state_actions(parser, memo, {*terminals, "$END"})
    rule_at = {key: n for n, key in enumerate(sorted(rules))}
    symbols = sorted(parser["tokens"].values())
    order = order_states(rows, [parser["start_states"][s] for s in START_SYMBOLS])
    state_at = {state: n for n, state in enumerate(order)}

    def get_action_number(action: int | str) -> int:
        return state_at[action] if isinstance(action, int) else ~rule_at[action]

    fixed = {p.value: name for name, p in terminals.items() if p.type == "str"}
    return {
        "words": dict(sorted(fixed.items(), key=lambda item: item[1])),
        "symbols": symbols,
        "rules": [rules[key] for key in sorted(rules)],
        "states": [
            pack_state_row(
                {symbols.index(n): get_action_number(a) for n, a in sorted(rows[s].items())}
            )
            for s in order
        ],
        "starts": {s: state_at[parser["start_states"][s]] for s in START_SYMBOLS},
        "ends": {s: state_at[parser["end_states"][s]] for s in START_SYMBOLS},
    }


def collect_state_actions(
    parser: LarkParser, memo: Mapping[int, LarkRule], terminals: set[str]
) -> tuple[dict[int, StateRow], dict[str, RuleEntry]]:
    """Collect the actions of lark's states by symbol, and the rules by key. An action is the next
    state, or the key of the rule to reduce by.

    Rules have string keys, because lark numbers rules and symbols differently in each run.
    """
    rows: dict[int, StateRow] = {}
    rules: dict[str, RuleEntry] = {}
    for state, row in parser["states"].items():
        named = rows.setdefault(state, {})
        for token, (kind, argument) in row.items():
            if isinstance(argument, int):
                action: int | str = argument
            else:
                assert kind == REDUCE_ACTION
                rule = memo[argument["@"]]
                action = " ".join(map(json.dumps, [rule["origin"], *rule["expansion"]]))
                rules[action] = build_rule_entry(rule, terminals)
            named[parser["tokens"][token]] = action
    return rows, rules


def pack_state_row(row: dict[int, int]) -> int | list[int]:
    """Pack the row of a state for JSON. A row that always reduces by the same rule is packed as
    that rule; the next shift action detects errors.
    """
    only = set(row.values())
    if len(only) == 1 and (rule := only.pop()) < 0:
        return rule
    return [n for pair in row.items() for n in pair]


def render_grammar_json() -> str:
    """Render grammar.json with one state or rule per line, for readable diffs."""
    entries = []
    for key, value in build_lalr_table().items():
        if isinstance(value, list) and key != "symbols":
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            entries.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            entries.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


if __name__ == "__main__":
    (GRAMMAR_DIRECTORY / "grammar.json").write_text(render_grammar_json(), encoding="utf-8")
