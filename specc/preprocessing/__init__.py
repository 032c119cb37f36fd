"""Preprocessing of text, images, audio and arrays, and the display of results."""
