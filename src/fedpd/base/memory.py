"""Lets the C library return large blocks of memory to the system as soon as they are free."""

import ctypes
import os

LARGE_BLOCK = 2**20  # bytes
M_MMAP_THRESHOLD = -3  # of mallopt in glibc


def return_large_blocks() -> None:
    """Make this process return blocks of 1 MiB and more when it frees them; do nothing if the C library cannot.

    By default glibc keeps freed blocks of up to 32 MiB, in pieces that larger arrays cannot use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
