"""Drops files from the page cache, and checks that they are gone."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

# Attempts to drop a file: a page that another process is accessing stays.
TRIES = 100
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def drop(folder: Path) -> None:
    """Drops all files below a folder."""
    os.sync()
    for path in files(folder):
        drop_one(path)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def drop_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for _ in range(TRIES):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if resident(descriptor) == 0:
                return
            time.sleep(0.01)
    finally:
        os.close(descriptor)
    raise OSError(f"{path} does not leave the page cache: the next run would not be cold")


def resident(descriptor: int) -> int:
    """Number of a file's pages that are in the page cache."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0
    address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mapping a file")
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    try:
        if LIBC.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), "looking at the page cache")
    finally:
        LIBC.munmap(address, size)
    return sum(page & 1 for page in pages.raw)
