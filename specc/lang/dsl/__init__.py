"""The DSL: `grammar.lark`, its table and driver, the builders of the tree, and the
writer back to text.

In comes a source, out goes a `specc.lang.tree` module or the syntax errors found; the
writer is the inverse.
"""
