"""The spec language: its syntax tree, and parsers and printers for its DSL and YAML syntaxes."""
