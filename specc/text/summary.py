"""What a docstring says first."""


def summary(doc: str | None) -> str:
    """The first paragraph of a docstring on one line; nothing where there is none."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())
