"""Generate a notebook per article, docs/notebooks/*.ipynb, from the sections of docs/seeds.md.

The notebooks install no packages and run from top to bottom in a clone of the repository. Code and
outputs are the examples of docs/seeds.md. One test executes docs/seeds.md, and another test
executes the notebooks.

    python docs/notebooks.py
"""

import ast
import doctest
import json
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ARTICLES = {
    "recurrent-networks-and-attention": (
        "From feedforward networks to attention in recurrent networks",
        ["XOR", "Recurrent networks forget", "The bottleneck", "Alignment"],
    ),
    "attention-layers": (
        "Attention as a layer of an encoder-decoder model",
        ["The bottleneck", "A soft lookup", "Sinusoidal positions", "Alignment", "The third token"],
    ),
    "sequence-to-sequence": (
        "Sequence-to-sequence models, decomposable attention and the Transformer",
        [
            "Recurrent networks forget",
            "Sequence autoencoders",
            "Alignment",
            "Decomposable attention",
            "A soft lookup",
            "Scaled dot products",
            "The third token",
        ],
    ),
    "kinds-of-attention": (
        "Implicit and explicit, hard and soft, global and local attention",
        [
            "The bottleneck",
            "Implicit attention",
            "A soft lookup",
            "Hard and soft attention",
            "Sampled hard attention",
            "Glimpses",
            "Local attention",
            "Content and location addressing",
            "Symmetric and asymmetric scores",
            "Cost of attention",
        ],
    ),
    "transformers": (
        "Queries, keys and values; BERT, GPT-2 and Vision Transformers",
        [
            "Attention as a soft dictionary",
            "A soft lookup",
            "Scaled dot products",
            "Word embeddings",
            "Static and contextual embeddings",
            "Sinusoidal positions",
            "Masks of BERT and GPT-2",
            "The third token",
            "Cross-entropy and KL divergence",
            "Masked image modeling",
            "Segmentation and detection",
            "Cost of attention",
        ],
    ),
}
"""The title of each notebook and the prefixes of the headings of its sections, by notebook name."""
ALIGNMENT = """from IPython.display import SVG
from specc.cli.main import main

_ = specc.compile("dates", "dates", graphs="all")
_ = main(["run", "dates", "3 mai 1979", "--attention", "dates.svg"])
SVG("dates.svg")"""
"""The code of a cell that plots attention weights for the section "Alignment"."""


def split_sections(page: str) -> dict[str, str]:
    """Return the text of each section by heading. The introduction has the heading ""."""
    head, *parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    return {"": head} | dict(zip(parts[::2], parts[1::2], strict=True))


def make_output(example: doctest.Example) -> dict[str, object]:
    """Convert the expected output of an example to the output of a notebook cell."""
    text = example.want.replace("<BLANKLINE>", "").splitlines(keepends=True)
    if "print(" in example.source or not isinstance(ast.parse(example.source).body[-1], ast.Expr):
        return {"output_type": "stream", "name": "stdout", "text": text}
    data = {"text/plain": [*text[:-1], text[-1].rstrip("\n")]}
    return {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}


def make_cell(kind: str, text: str, outputs: list[dict[str, object]]) -> dict[str, object]:
    """Return a Markdown cell or a code cell with outputs."""
    cell: dict[str, object] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(True)}
    return cell | ({"execution_count": None, "outputs": outputs} if kind == "code" else {})


def convert_section(heading: str, text: str) -> list[dict[str, object]]:
    """Convert a section to notebook cells; each code cell ends with the output of an example."""
    cells, title = [], f"## {heading}\n\n" if heading else ""
    for part in re.split(r"(^```python\n.*?^```\n)", text, flags=re.MULTILINE | re.DOTALL):
        if not part.startswith("```python"):
            if prose := (title + part).strip():
                linked = re.sub(r"\]\((?!http|#)(?:\.\./)?([^)]+)\)", r"](../\1)", prose)
                cells.append(make_cell("markdown", linked.replace("../README", "../../README"), []))
            title = ""
            continue
        source = ""
        for example in doctest.DocTestParser().get_examples(part.removesuffix("```\n")):
            source += example.source
            if example.want:
                cells.append(make_cell("code", source.rstrip(), [make_output(example)]))
                source = ""
        if source:
            cells.append(make_cell("code", source.rstrip(), []))
    return cells


def build_notebook(name: str, page: str) -> str:
    """Build the notebook of an article as JSON (nbformat 4.5) from the text of docs/seeds.md."""
    title, wanted = ARTICLES[name]
    sections = split_sections(page)
    imports = sections[""].partition("```python\n")[2]
    intro = f"# {title}\n\nGenerated from [seeds.md](seeds.md) by `docs/notebooks.py`.\n\n"
    cells = convert_section("", f"{intro}```python\n{imports}")
    for start in wanted:
        [heading] = [found for found in sections if found.startswith(start)]
        cells += convert_section(heading, sections[heading])
        if start == "Alignment":
            cells.append(make_cell("code", ALIGNMENT, []))
    cells = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every notebook."""
    page = (DOCS / "seeds.md").read_text(encoding="utf-8")
    (DOCS / "notebooks").mkdir(exist_ok=True)
    for name in ARTICLES:
        path = DOCS / "notebooks" / f"{name}.ipynb"
        path.write_text(build_notebook(name, page), encoding="utf-8")


if __name__ == "__main__":
    main()
