"""Source text, diagnostics and their output formats. Independent of models."""
