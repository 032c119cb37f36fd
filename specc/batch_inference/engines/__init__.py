"""Engines that run blocks: local processes or Ray."""
