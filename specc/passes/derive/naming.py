"""What values that leave a graph are called: after the attention or the loop that uses
them, else after their maker.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.derived import Role
from specc.ir.graph import Graph, Node, Value

LOOPS = (ops.Scan, ops.Rnn, ops.Gru, ops.Lstm)


@dataclass
class Names:
    """Hands out names, each once."""

    graph: Graph
    users: Mapping[Value, tuple[str, Role, int]]
    loops: Mapping[Node, int]
    taken: set[str]
    others: int = 0

    @classmethod
    def of(cls, graph: Graph) -> "Names":
        """For one graph; attentions and loops are counted in its order."""
        users: dict[Value, tuple[str, Role, int]] = {}
        loops: dict[Node, int] = {}
        attentions = 0
        for node, _ in graph.nodes:
            if isinstance(node.op, ops.Attend):
                scope = _scope(graph, node) or f"attention.{attentions}"
                roles: dict[Role, Value] = {
                    "key": node.op.key(node),
                    "value": node.op.values(node),
                }
                for role, value in roles.items():
                    users.setdefault(value, (f"{scope}.{role}", role, attentions))
                attentions += 1
            elif isinstance(node.op, LOOPS):
                loops[node] = len(loops)
        return cls(graph, users, loops, {*graph.inputs, *graph.outputs})

    def of_kept(self, value: Value) -> tuple[Role, int, str]:
        """Role, layer and name of rows that are kept."""
        if value in self.users:
            name, role, layer = self.users[value]
            return role, layer, self._once(name)
        self.others += 1
        return "rows", self.others - 1, self.of_value(value)

    def of_value(self, value: Value) -> str:
        """The name of a value: an input's own, its user's, or its maker's."""
        own = next((n for n, v in self.graph.inputs.items() if v is value), "")
        if own:
            return own
        if value in self.users:
            return self._once(self.users[value][0])
        node = value.node
        assert node is not None
        scope = _scope(self.graph, node)
        return self._once(f"{scope}.{node.op.name}" if scope else node.op.name)

    def of_carry(self, node: Node, result: Value) -> str:
        """The name of what a loop carries."""
        scope = _scope(self.graph, node) or f"{node.op.name}.{self.loop(node)}"
        word = "state"
        if isinstance(node.op, ops.Lstm) and result.index == node.op.cell_result:
            word = "cell"
        return self._once(f"{scope}.{word}")

    def loop(self, node: Node) -> int:
        """The number of a loop in the order of the graph."""
        return self.loops.get(node, 0)

    def _once(self, name: str) -> str:
        made, n = name, 1
        while made in self.taken:
            n += 1
            made = f"{name}_{n}"
        self.taken.add(made)
        return made


def _scope(graph: Graph, node: Node) -> str:
    made = graph.made.get(node)
    return made.scopes[0] if made and made.scopes else ""
