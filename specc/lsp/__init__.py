"""Editor support: language server."""
