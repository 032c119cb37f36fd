"""Merge the `quantize { ... }` section with the quantization options."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.quantize_option_checks import (
    MAY_BE_IDLE,
    check_known_options,
    check_patterns_match,
    fail_wrong_value,
    parse_choice,
    parse_integer,
    requested_options,
)
from specc.driver.spec_weight_rules import resolve_spec_file
from specc.frontend.context import SpecModule
from specc.frontend.spec_modules import Program
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.quantization_format import MAX_GROUP_SIZE, MIN_GROUP_SIZE
from specc.syntax import ast
from specc.transforms import pass_pipeline
from specc.transforms.quantization_plan import (
    DEFAULT_GROUP_SIZE,
    QUANTIZATION_KINDS,
    QuantizationKind,
    QuantizationRequest,
    find_unmatched_patterns,
    list_quantizable_names,
)

KIND_OF: Mapping[str, QuantizationKind] = {kind: kind for kind in QUANTIZATION_KINDS}
"""The kinds of rounding by their names."""
NONE = "none"
"""Nothing is rounded."""
HEADS = ("int8", "int4", NONE)
Head: TypeAlias = QuantizationKind | Literal["none", ""]
INPUTS = ("samples", "calibrate")
"""Words about what numbers of 4 bits are rounded by."""
CACHE = "cache"
"""The word about keys and values."""
WORDS = ("default", "keep", *QUANTIZATION_KINDS, "block", "head", "all", *INPUTS, CACHE, "fold")
"""What `quantize` in a spec may say."""
BLOCKS = f"a power of two from {MIN_GROUP_SIZE} to {MAX_GROUP_SIZE}"
"""The sizes of blocks, for people."""
MOST_SAMPLES = 100_000
"""Texts that a model may be asked to write."""
TRUTHS = ("true", "false")
"""Whether something is done."""
CACHES = ("int8", NONE)
"""In what keys and values may be kept; `none`: as they are computed."""
FOURS = ("--samples", "--calibrate")
"""Options that say what `INPUTS` say."""
OPTIONS = {
    "default": "--quantize",
    "keep": "--keep",
    "block": "--block",
    "head": "--quantize-head",
    "all": "--quantize-all",
    CACHE: "--cache",
    "fold": "--fold-norms",
}
"""The options that say the same."""


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What the options say of rounding; what is empty or None is not said.

    `samples` is how many texts of the model's own are written to round by, `calibrate` a
    file of inputs to do it by instead. `cache` says in what keys and values are kept.
    """

    kind: str = ""
    keep: tuple[str, ...] = ()
    block: int | None = None
    head: str = ""
    every: bool | None = None
    samples: int | None = None
    calibrate: str = ""
    cache: str = ""
    fold: bool | None = None

    @property
    def said(self) -> dict[str, bool]:
        """Which options beside `--quantize` are given."""
        return {
            "--keep": bool(self.keep),
            "--block": self.block is not None,
            "--quantize-head": bool(self.head),
            "--quantize-all": bool(self.every),
            "--samples": self.samples is not None,
            "--calibrate": bool(self.calibrate),
            "--fold-norms": bool(self.fold),
        }


@dataclass(frozen=True)
class CalibrationSource:
    """What numbers of 4 bits are rounded by: so many `samples` of the model's own texts,
    or the inputs in the file `calibrate`. Where neither is said, by what is usual.

    `option` is the one that said so, empty where the spec did, at `span`.
    """

    samples: int | None = None
    calibrate: str = ""
    option: str = ""
    span: Span | None = None


@dataclass(frozen=True)
class CacheOption:
    """In what keys and values are kept; empty: as they are computed. `span` is where the
    spec says so, None where an option does.
    """

    kind: str = ""
    span: Span | None = None


@dataclass(frozen=True, kw_only=True)
class QuantizeRequest:
    """The wish, None where no weight is rounded; where the spec says each of its patterns,
    what the options took the place of, what weights are rounded by, in what keys and
    values are kept, and whether gains of norms are moved into the maps behind them.
    `said` are words that may change nothing, and what they are called where they are said.
    """

    wish: QuantizationRequest | None = None
    said: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Span] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    by: CalibrationSource = CalibrationSource()
    cache: CacheOption = CacheOption()
    fold: bool = False


def merge_quantize_options(program: Program, asked: QuantizeOptions) -> QuantizeRequest:
    """What the spec and the options come to. E0201, E0858, E0950 and those of a file for
    what a spec says wrongly, E0753 for options that mean nothing here.
    """
    words = _words(program)
    wish, places = _of_spec(words)
    by = _by(program, asked)
    cache = _cache(words, asked)
    remarks = tuple(_replaced(words, asked))
    wish = None if asked.kind == NONE else _overridden(wish, asked)
    options = {w: OPTIONS[w] for w in MAY_BE_IDLE if asked.said[OPTIONS[w]]}
    if wish is None:
        _check_needed(asked, cache)
    else:
        check_known_options(wish, options)
    told = parse_choice(words, "fold", TRUTHS) == "true"
    fold = wish is not None and (told if asked.fold is None else asked.fold)
    return QuantizeRequest(
        wish=wish,
        said=requested_options(words, options),
        places=places,
        remarks=remarks,
        by=by,
        cache=cache,
        fold=fold,
    )


def check_quantize_request(
    program: Program, graph: Graph, others: Callable[[], Iterable[Graph]]
) -> None:
    """Fails as `merge_quantize_options` does, and with E0850 for patterns of the spec that name
    nothing
    in this graph and in none of the others.
    """
    told = merge_quantize_options(program, QuantizeOptions())
    if told.wish is None:
        return
    names = list_quantizable_names(pass_pipeline.simplify_graph(graph, fused=False))
    missing = find_unmatched_patterns(told.wish.patterns, names)
    check_patterns_match(missing, names, told.places, others)


# --- the spec -------------------------------------------------------------------------


def _words(program: Program) -> dict[str, ast.QuantizeEntry]:
    """The entries of `quantize` by their words, the nearest file's last. E0201."""
    found: dict[str, ast.QuantizeEntry] = {}
    for item, _ in reversed(list(program.items(ast.Quantize))):
        for entry in item.entries:
            if entry.name not in WORDS:
                known = f"there are {', '.join(WORDS)}"
                raise_error(
                    "E0201",
                    f"`quantize` has no word `{escape_text(entry.name)}`",
                    entry.span,
                    "unknown word",
                    helps=suggest_similar_name(entry.name, WORDS, known),
                )
            # behind those of the spec that is extended: of patterns the last counts
            found.pop(entry.name, None)
            found[entry.name] = entry
    return found


def _of_spec(
    words: Mapping[str, ast.QuantizeEntry],
) -> tuple[QuantizationRequest | None, dict[str, Span]]:
    """The wish of a spec, and where its patterns stand."""
    kind = parse_choice(words, "default", (*QUANTIZATION_KINDS, NONE))
    head = parse_choice(words, "head", HEADS)
    every = parse_choice(words, "all", TRUTHS)
    kept = words["keep"].values if "keep" in words else ()
    # in the order of the words: of several patterns that fit a weight the last counts
    own = [
        (pattern, KIND_OF[name])
        for name, entry in words.items()
        if name in KIND_OF
        for pattern in entry.values
    ]
    patterns = (*kept, *(pattern for pattern, _ in own))
    places = {p.value: p.span for p in patterns if p.span is not None}
    wish = QuantizationRequest(
        kind=KIND_OF.get(kind),
        keep=tuple(p.value for p in kept),
        own=tuple((pattern.value, name) for pattern, name in own),
        block=_block(words),
        head=_head(head),
        every=every == "true",
    )
    # `keep` alone rounds nothing
    return (wish if wish.kind or wish.own else None), places


def _cache(words: Mapping[str, ast.QuantizeEntry], asked: QuantizeOptions) -> CacheOption:
    """In what keys and values are kept: as the option says, else the spec, all of which
    `--quantize none` stands in place of. E0858.
    """
    said = parse_choice(words, CACHE, CACHES)
    if asked.kind == NONE:
        said = ""
    kind = asked.cache or said
    span = words[CACHE].span if said and not asked.cache else None
    return CacheOption() if kind == NONE else CacheOption(kind, span)


def _by(program: Program, asked: QuantizeOptions) -> CalibrationSource:
    """What numbers of 4 bits are rounded by: as the options say, else the nearest spec
    that says it. E0753 and E0950 where both ways are said.
    """
    if asked.said["--samples"] and asked.said["--calibrate"]:
        raise_error(
            "E0753",
            "weights are rounded by the model's own texts or by a file, not by both",
            helps=["leave out --samples or --calibrate"],
        )
    for item, module in program.items(ast.Quantize):
        said = {e.name: e for e in item.entries if e.name in INPUTS}
        if len(said) > 1:
            raise_error(
                "E0950",
                "`quantize` says both `samples` and `calibrate`",
                said["calibrate"].span,
                "beside `samples`",
                notes=["weights are rounded by the model's own texts or by a file"],
                helps=["leave out one of the two"],
            )
        for name, entry in said.items():
            # read even where an option stands in its place: a wrong word is told of
            found = _samples(entry) if name == "samples" else _file(entry, module)
            return found if not _says_inputs(asked) else _by_options(asked)
    return _by_options(asked)


def _says_inputs(asked: QuantizeOptions) -> bool:
    """Whether the options say what weights are rounded by."""
    return any(asked.said[option] for option in FOURS)


def _by_options(asked: QuantizeOptions) -> CalibrationSource:
    """What the options say of it."""
    option = next((o for o in FOURS if asked.said[o]), "")
    return CalibrationSource(asked.samples, asked.calibrate, option)


def _samples(entry: ast.QuantizeEntry) -> CalibrationSource:
    """So many texts of the model's own. E0858."""
    count = parse_integer(entry)
    if count is None or count > MOST_SAMPLES:
        fail_wrong_value(entry, f"`samples` is a number of texts, at most {MOST_SAMPLES}", ("64",))
    return CalibrationSource(samples=count, span=entry.span)


def _file(entry: ast.QuantizeEntry, module: SpecModule) -> CalibrationSource:
    """The inputs in a file beside the spec. E0858, E0802 and E0803."""
    if len(entry.values) != 1 or not entry.values[0].value:
        fail_wrong_value(entry, "`calibrate` is the name of a file of inputs", ('"texts.jsonl"',))
    path = resolve_spec_file(module, entry.values[0], "the inputs", FOURS[1])
    return CalibrationSource(calibrate=str(path), span=entry.span)


def _block(words: Mapping[str, ast.QuantizeEntry]) -> int:
    """How many numbers share a scale. E0858 for what is no number, E0853."""
    entry = words.get("block")
    if entry is None:
        return DEFAULT_GROUP_SIZE
    number = parse_integer(entry)
    if number is None:
        fail_wrong_value(entry, f"`block` is {BLOCKS}", ())
    check_group_size(number, entry.span)
    return number


def check_group_size(size: int, span: Span | None = None) -> None:
    """E0853 for a block that kernels do not know, at the word that says it."""
    # a power of two has one bit
    if MIN_GROUP_SIZE <= size <= MAX_GROUP_SIZE and size.bit_count() == 1:
        return
    raise_error(
        "E0853",
        f"weights cannot be rounded in blocks of {size}",
        span,
        "this size",
        helps=[f"a block is {BLOCKS}"],
    )


def _head(text: str) -> Head:
    """What becomes of the maps that make results; empty where nothing is said."""
    return KIND_OF.get(text, "none" if text == NONE else "")


# --- the options ----------------------------------------------------------------------


def _overridden(
    wish: QuantizationRequest | None, asked: QuantizeOptions
) -> QuantizationRequest | None:
    """The wish with what the options say in place of it."""
    if wish is None and not asked.kind:
        return None
    wish = wish or QuantizationRequest(kind=None)
    return replace(
        wish,
        kind=KIND_OF[asked.kind] if asked.kind else wish.kind,
        keep=asked.keep or wish.keep,
        block=wish.block if asked.block is None else asked.block,
        head=_head(asked.head) if asked.head else wish.head,
        every=wish.every if asked.every is None else asked.every,
    )


def _replaced(words: Mapping[str, ast.QuantizeEntry], asked: QuantizeOptions) -> Iterator[str]:
    """What options take the place of, a line each."""
    if asked.kind == NONE:
        if words.keys() - {CACHE}:
            yield ("`--quantize none`: no weight is rounded, though the spec says `quantize`")
        if CACHE in words:
            option = "--cache" if asked.cache else "--quantize none"
            yield _in_place(option, words[CACHE])
        return
    given = {
        "default": bool(asked.kind),
        "keep": bool(asked.keep),
        "block": asked.block is not None,
        "head": bool(asked.head),
        "all": asked.every is not None,
        **dict.fromkeys(INPUTS, _says_inputs(asked)),
        CACHE: bool(asked.cache),
        "fold": asked.fold is not None,
    }
    option = next((o for o in FOURS if asked.said[o]), "")
    for name, said in given.items():
        if said and name in words:
            yield _in_place(OPTIONS.get(name, option), words[name])


def _in_place(option: str, entry: ast.QuantizeEntry) -> str:
    """That an option counts and a word does not."""
    values = ", ".join(v.value for v in entry.values)
    return (
        f"`{option}` stands in place of `{entry.name}` in the spec, "
        f"which says {escape_text(values) or 'nothing'}"
    )


def _check_needed(asked: QuantizeOptions, cache: CacheOption) -> None:
    """E0753."""
    # scales of keys and values are measured on inputs as well
    useful = FOURS if cache.kind else ()
    said = [name for name, given in asked.said.items() if given and name not in useful]
    for option in said:
        raise_error(
            "E0753",
            f"`{option}` is about rounded weights, and none are asked for",
            helps=[f"add `--quantize {'int4' if option in FOURS else 'int8'}`"],
        )
