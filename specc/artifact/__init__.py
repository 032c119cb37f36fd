"""What lies on disk after a compile: the manifest in a model, the index of a package,
what a writer must know.

In comes what the compiler knows, out go JSON texts; read back, nothing that they say is
believed unchecked.
"""
