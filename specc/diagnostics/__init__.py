"""Source text, diagnostics and their output formats. This package is independent of models."""
