"""Preprocessing of text, images, audio and arrays, and postprocessing of outputs."""
