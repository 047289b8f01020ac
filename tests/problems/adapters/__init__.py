"""Modules of each library."""
