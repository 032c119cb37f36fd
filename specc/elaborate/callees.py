"""What a call calls: a name of this file, of a used one, of std, or a word."""

from specc.elaborate.context import Context, Env
from specc.elaborate.foreign import LIBRARIES, elsewhere, of_library
from specc.elaborate.lookup import function, lookup, of_used
from specc.elaborate.values import Function, Tensor, describe
from specc.elaborate.vocabulary.registry import WORDS
from specc.lang import tree
from specc.text.diagnostic import fail
from specc.text.suggest import suggest


def callee(context: Context, name: tree.Name, env: Env) -> Function:
    """What a call calls. E0204 with the nearest name when there is no such thing."""
    # a record's field or an alias: neither is looked for among blocks
    if "." in name.path:
        return _in_used(context, name, env)
    held = env.names.get(name.path, env.config.get(name.path))
    if isinstance(held, Function):
        return held
    # a variable may hide a block for values, but not where something is called
    target = function(context, name.path, env, name.span)
    if target is not None:
        return target
    if held is not None:
        title = f"`{name.path}` is {describe(held)}, not something to call"
        fail("E0205", title, name.span)
    known = [*env.module.names(), *context.library.standard_names(), *WORDS]
    mend = elsewhere(name.path, known)
    none = "`specc list` shows what there is"
    fail(
        "E0204",
        f"there is no block or operation called `{name.path}`",
        name.span,
        "unknown operation",
        helps=[mend] if mend else suggest(name.path, known, none),
    )


def _in_used(context: Context, name: tree.Name, env: Env) -> Function:
    """`v.encoder`: a function in a record, or an item of a file that `use` names."""
    alias = name.path.partition(".")[0]
    value = lookup(context, tree.Name(alias, span=name.span), env, quiet=True)
    if isinstance(value, Function):
        return value
    if (used := of_used(context, name, env)) is not None:
        return used
    known = [*env.module.names(), *context.library.standard_names(), *WORDS]
    if isinstance(value, Tensor):
        method = name.path.partition(".")[2]
        title = f"`{alias}` is {describe(value)}, and has no `{method}`"
        mend = of_library(name.path, known)
        stands = "an operation stands in front of what it works on"
        fail("E0204", title, name.span, stands, helps=[mend] if mend else ())
    mend = of_library(name.path, known) if alias in LIBRARIES else ""
    if mend:
        title = f"`{name.path}` is of another language"
        fail("E0204", title, name.span, "unknown operation", helps=[mend])
    write = f'write `use "file.specc" as {alias}` above'
    helps = suggest(alias, env.module.uses, write)
    fail("E0204", f"no used file is called `{alias}`", name.span, helps=helps)
