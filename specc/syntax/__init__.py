"""The spec language: syntax tree, and parsers and printers of the DSL and of YAML."""
