"""The spec language: its syntax tree, and the parsers and printers of its DSL and YAML syntaxes."""
