"""A spec with its options to files: opening, checking, binding weights, lowering by a
backend, packaging.

In come paths and options, out go a model or a package on disk, all of it or nothing. It
is not called `compile`, because `specc.compile` is the public function.
"""
