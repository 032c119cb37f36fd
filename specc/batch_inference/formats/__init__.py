"""Data set formats."""
