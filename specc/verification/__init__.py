"""Verification of compiled models against the float64 reference implementation."""
