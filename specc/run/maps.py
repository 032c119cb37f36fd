"""The weights of a model's attentions, as a mapping that says in a line what it holds."""

from specc.ir.array import Array
from specc.text.brief import brief, card


class Maps(dict[str, Array]):
    """[batch, heads, query, key] by the scope of the attention, in the model's order."""

    def __repr__(self) -> str:
        first = ", ".join(f"{scope} {list(x.shape)}" for scope, x in self.items())
        return brief(f"attention of {len(self)} scopes: {first}")

    def _repr_html_(self) -> str:
        """Scopes and shapes, for a notebook."""
        shapes = [(scope, str(list(x.shape))) for scope, x in self.items()]
        return card("attention: batch, heads, query, key", shapes)
