"""Drawings in SVG, HTML and PNG: attention maps and plots."""
