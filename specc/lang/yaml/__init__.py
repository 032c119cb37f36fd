"""The YAML form: the same tree from the events of a YAML stream, every node with its
place, and the writer back.

In comes a source, out goes a `specc.lang.tree` module or the errors found; no YAML
object is ever constructed.
"""
