"""Source texts, diagnostics, and the formats in which diagnostics are printed."""
