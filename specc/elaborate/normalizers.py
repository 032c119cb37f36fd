"""What turns scores into weights: a word such as `softmax`, or a definition such as
`normalizer shares(s) = exp(s) / sum(exp(s), axis=-1)`.

A definition's first parameter is the scores, hidden ones minus infinity; it is given
them where they are known. Where a normalizer is due, names are looked for among
normalizers first: `topk` is one there, and elsewhere an operation.
"""

from specc.elaborate.context import Context, Env
from specc.elaborate.definitions import hold_definition
from specc.elaborate.kinds import NORMALIZERS
from specc.elaborate.lookup import FIXED
from specc.elaborate.typing import applied
from specc.elaborate.values import DefinitionFunction, Evaluated, Picked
from specc.lang import tree


def of_type(
    context: Context, type: tree.TypeName, expr: tree.Expr, env: Env
) -> Evaluated:
    """The value of an expression where one of a declared type is due."""
    if type.name == "normalizer":
        return normalizer(context, expr, env)
    evaluator = context.evaluator
    evaluate = evaluator.held if applied(type) else evaluator.evaluate
    return evaluate(context, expr, env)


def normalizer(context: Context, expr: tree.Expr, env: Env) -> Evaluated:
    """The value of an expression where a normalizer is due."""
    match expr:
        case tree.Choice():
            taken = context.evaluator.evaluate(context, expr.condition, env)
            return normalizer(context, expr.then if taken else expr.otherwise, env)
        case tree.Name(path=path) if path in NORMALIZERS and path not in env.names:
            # a bare word, also where a config value is called so
            return Picked(path, NORMALIZERS)
        case tree.Name(path=path) if not _bound(path, env):
            if (found := _defined(context, expr, env)) is not None:
                return found
        case tree.Call(function=name) if not _bound(name.path, env):
            if (found := _defined(context, name, env)) is not None:
                return hold_definition(context, found, expr, env)
    return context.evaluator.evaluate(context, expr, env)


def _bound(path: str, env: Env) -> bool:
    """Whether a name stands for a value here, or for a part of one."""
    head, *rest = path.split(".")
    bound = head in env.rows or head in env.names or head in env.config
    return bound or bool(rest) or head in FIXED


def _defined(context: Context, name: tree.Name, env: Env) -> DefinitionFunction | None:
    """The normalizer of this name: a spec's own, then that of std."""
    found = env.module.found(name.path) or context.library.standard(name.path)
    if found is None:
        return None
    item, module = found
    if isinstance(item, tree.Block) or item.kind != "normalizer":
        return None
    return DefinitionFunction(
        name=name.path, definition=item, module=module, env=env, span=name.span
    )
