"""Where specs are: the shipped ones, the standard library, the user's own below their
folder, and configurations.

In come names and paths, out go modules as trees and config values with their places.
"""
