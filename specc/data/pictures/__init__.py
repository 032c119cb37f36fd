"""Pictures: where a model looked, and drawings of any kind, as SVG, HTML and PNG.

In come attention weights with the names of their rows (`maps`), out go the characters or
bytes of a file. `drawing` holds what is to be drawn, `svg` and `raster` write it, `sheet`
lays out attention as a drawing, `page` is the frame of every HTML page. PNG needs
Pillow, the others nothing. Pictures that a model gives as its result are written by
`png` alone.
"""
