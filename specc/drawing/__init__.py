"""Drawings as SVG, HTML and PNG: attention maps, plots."""
