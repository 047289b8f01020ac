"""Experiment files and run folders."""
