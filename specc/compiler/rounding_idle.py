"""Options and words about rounding that change nothing. What no kind that is asked for
knows is refused, if an option says it; what no weight of this model is changed by is told.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from specc.ir.precision import Plan
from specc.lang import tree
from specc.passes.quantize.plan import Kind, Wish
from specc.text.diagnostic import fail

BLOCK_WORD, ALL_WORD, HEAD_WORD = "block", "all", "head"
MAY_BE_IDLE = (BLOCK_WORD, ALL_WORD, HEAD_WORD)
"""Words that mean nothing to some kinds, or to some models."""
KNOWN_TO: Mapping[str, tuple[Kind, ...]] = {
    BLOCK_WORD: ("int4", "int8-weights"),
    ALL_WORD: ("int4",),
}
"""The kinds that a word means something to."""
ABOUT = {
    BLOCK_WORD: "weights that are rounded in blocks",
    ALL_WORD: "what `int4` leaves at 8 bits",
}
"""What it is about."""
NOT_HERE = {
    BLOCK_WORD: "no weight is rounded in blocks",
    ALL_WORD: "no weight has 8 bits because it is small, a table, or makes results",
    HEAD_WORD: "no weight that could be rounded makes the results",
}
"""Why it changes nothing in a model."""


def said_words(
    words: Mapping[str, tree.Rounds], options: Mapping[str, str]
) -> dict[str, str]:
    """The words that the spec or an option says, and what they are called for people."""
    spec = {w: f"`{w}` in the spec" for w in MAY_BE_IDLE if w in words}
    # what is usual says nothing
    if ALL_WORD in spec and words[ALL_WORD].values[0].value == "false":
        del spec[ALL_WORD]
    return spec | {word: f"`{option}`" for word, option in options.items()}


def check_known(wish: Wish, options: Mapping[str, str]) -> None:
    """E0753 for the first of the `options`, by the words that they stand for, that means
    nothing to any kind that is asked for.
    """
    for word, kinds in KNOWN_TO.items():
        # exceptions are made of what nothing else is said about
        asked = (wish.kind,) if word == ALL_WORD else wish.kinds
        if word not in options or set(kinds) & set(asked):
            continue
        has = ", ".join(f"`{kind}`" for kind in dict.fromkeys(asked) if kind)
        fail(
            "E0753",
            f"`{options[word]}` is about {ABOUT[word]}, and {has or 'nothing'} has none",
            helps=[
                f"leave out `{options[word]}`",
                f"or round with {' or '.join(f'`--quantize {kind}`' for kind in kinds)}",
            ],
        )


def idle(
    wish: Wish, said: Mapping[str, str], plan: Plan, again: Callable[[Wish], Plan]
) -> Iterator[str]:
    """A line for each word that is `said`, and called so, without which the plan is the
    same; `again` makes that of another wish.
    """
    for word, called in said.items():
        if word == BLOCK_WORD:
            changes = any(form.block for form in plan.values())
        elif word == ALL_WORD:
            changes = again(replace(wish, every=not wish.every)) != plan
        else:
            other: Kind | None = None if wish.head != "none" else "int8"
            changes = again(replace(wish, head=other or "none")) != plan
        if not changes:
            yield f"{called} changes nothing: {NOT_HERE[word]}"
