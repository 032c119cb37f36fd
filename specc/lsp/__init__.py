"""Editor support: the language server."""
