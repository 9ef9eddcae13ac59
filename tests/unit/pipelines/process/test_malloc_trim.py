"""Freed memory returns to the system, even below memory that is in use."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import ctypes, os, sys
from pipelines.process.malloc_trim import limit_arenas, trim

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
limit_arenas()
blocks = []
for _ in range(2_000):
    block = libc.malloc(100_000)  # below malloc's threshold for mmap
    ctypes.memset(block, 1, 100_000)
    blocks.append(block)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))
before = resident_mib()
trim()
print(before, resident_mib())
"""


def test_free_memory_returns_to_the_system() -> None:
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60).stdout
    before_mib, after_mib = map(int, said.split())
    assert before_mib - after_mib > 150
