"""Editor support: language server, JSON Schema and TextMate grammar."""
