"""Source texts, diagnostics and their output formats. This package does not depend on the
compiler.
"""
