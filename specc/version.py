"""The version of specc."""

__version__ = "0.1.0"
