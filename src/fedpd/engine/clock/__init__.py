"""Simulated time: which messages arrive in which server step, and when."""
