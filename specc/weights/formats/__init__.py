"""Tensor file formats."""
