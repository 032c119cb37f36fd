"""What a spec's `reading` can say, a line each: how inputs are read, how results are shown."""

READINGS = {
    "text": (
        'text(characters("x.vocab")), text(words("x.vocab")), text(bytes()), '
        'text(tokenizer("tokenizer.json"))',
        "Ids from a text, by what stands inside; of a result, ids as text.",
    ),
    "characters": (
        'text(characters("x.vocab"), start=, end=, unknown=)',
        "One id a character: its line in the file, or its place in a list.",
    ),
    "words": (
        'text(words("x.vocab"), start=, end=, unknown=, lower=false)',
        "One id a word: its line in the file, or its place in a list. With `lower` words "
        "are looked for in small letters. `words()` takes the file beside the weights.",
    ),
    "bytes": (
        "text(bytes(), start=, end=, offset=0)",
        "One id a byte of the text's UTF-8.",
    ),
    "tokenizer": (
        'text(tokenizer("tokenizer.json"), start=, end=, special=true, spread=)',
        "What the file of the package `tokenizers` says. `tokenizer()` takes the one "
        "beside the weights. `spread=[id, n]`: where a text has that id once it stands n "
        "times, as that of a picture of n rows.",
    ),
}
"""By its word: how it is written, and what it does. docs/language.md has all of it."""
