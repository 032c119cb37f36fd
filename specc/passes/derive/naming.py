"""What values that leave a graph are called: after the attention or the loop that uses
them, else after their maker.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.derived import Role
from specc.ir.graph import Graph, Made, Node, Value

LOOPS = (ops.Scan, ops.Rnn, ops.Gru, ops.Lstm)


@dataclass(kw_only=True)
class Names:
    """Hands out names, each once; `entering` are those of what enters a loop's body."""

    graph: Graph
    made: Mapping[Node, Made]
    entering: Mapping[Value, str]
    users: Mapping[Value, tuple[str, Role, int]]
    loops: Mapping[Node, int]
    taken: set[str]
    others: int = 0

    @classmethod
    def of(cls, graph: Graph, inside: Mapping[Node, Graph]) -> "Names":
        """For one graph and the bodies of its loops, `inside`; attentions and loops are
        counted in its order.
        """
        users: dict[Value, tuple[str, Role, int]] = {}
        loops: dict[Node, int] = {}
        attentions = 0
        made = {n: m for g in (graph, *inside.values()) for n, m in g.made.items()}
        nodes = [n for g in (graph, *inside.values()) for n, _ in g.nodes]
        for node in nodes:
            if isinstance(node.op, ops.Attend):
                scope = _scope(made, node) or f"attention.{attentions}"
                roles: dict[Role, Value] = {
                    "key": node.op.key(node),
                    "value": node.op.values(node),
                }
                for role, value in roles.items():
                    users.setdefault(value, (f"{scope}.{role}", role, attentions))
                attentions += 1
            elif isinstance(node.op, LOOPS):
                loops[node] = len(loops)
        entering = {
            value: f"scan.{loops[node]}.{name.replace(' ', '_')}"
            for node, body in inside.items()
            for name, value in body.inputs.items()
        }
        return cls(
            graph=graph,
            made=made,
            entering=entering,
            users=users,
            loops=loops,
            taken={*graph.inputs, *graph.outputs},
        )

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
        if value in self.entering:
            return self._once(self.entering[value])
        node = value.node
        assert node is not None
        scope = _scope(self.made, node)
        return self._once(f"{scope}.{node.op.name}" if scope else node.op.name)

    def of_carry(self, node: Node, result: Value) -> str:
        """The name of what a loop carries."""
        scope = _scope(self.made, node) or f"{node.op.name}.{self.loop(node)}"
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


def _scope(made: Mapping[Node, Made], node: Node) -> str:
    known = made.get(node)
    return known.scopes[0] if known and known.scopes else ""
