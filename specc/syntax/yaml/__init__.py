"""The YAML syntax: nodes with spans, parser and printer."""
