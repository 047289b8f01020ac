"""Freed blocks go back to the system at once."""

import platform
import subprocess
import sys

import pytest

CODE = """
import numpy as np
from fedpd.base.memory import return_large_blocks

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) // 1024

def grow():
    blocks = [np.ones(2**19) for _ in range(20)]  # 4 MiB each
    last = np.ones(100)
    del blocks
    return last

grow()  # glibc now keeps such blocks
return_large_blocks()
before = anonymous()
kept = grow()
print(anonymous() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed blocks of this size")
def test_freed_blocks_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8, "of 80 MiB"
