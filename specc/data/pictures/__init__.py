"""Pictures drawn by hand until they are SVG: a canvas, a bitmap font, colors, and a PNG
writer.

In come attention weights and titles, out go the bytes of a PNG.
"""
