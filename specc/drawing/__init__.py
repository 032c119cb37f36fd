"""Drawings in SVG, HTML and PNG, and attention maps."""
