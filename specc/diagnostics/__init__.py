"""Source texts, diagnostics, and the output formats of diagnostics."""
