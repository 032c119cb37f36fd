"""The YAML syntax of specs: YAML nodes with spans, parser and printer."""
