"""How the C library deals with memory that a step has freed."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

# Parameters of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
#: Variables by which a user has chosen for themselves: glibc's own, and other allocators put in its place.
_CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
_OTHERS = ("malloc", "mimalloc")


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Let glibc keep what is freed, for the next step, instead of handing it back to the operating system.

    Large blocks are mapped anew each time by default, and the kernel fills every page of them with zeros: a training
    step of a UNet on the CPU then spends a third of its time on page faults. The process stays as large as it once
    was, and somewhat larger, since the blocks no longer fit each other as exactly.

    Args:
        environ: Environment variables, in which a user may have chosen another allocator or other thresholds.

    Returns:
        Whether it does so now; False where the user has chosen, or the C library is another.
    """
    preloaded = any(name in environ.get("LD_PRELOAD", "") for name in _OTHERS)
    chosen = preloaded or "glibc.malloc" in environ.get("GLIBC_TUNABLES", "") or any(n in environ for n in _CHOICES)
    if chosen or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    # The threshold above which blocks are mapped cannot be set above 32 MiB, which activations are larger than.
    return bool(libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, -1))


def give_back_freed_memory() -> bool:
    """Hand what is freed by now to the operating system, once, also where it is kept otherwise.

    Blocks that are laid out anew do not fit into the gaps that others have left, and the process grows.

    Returns:
        Whether something was handed back.
    """
    return platform.libc_ver()[0] == "glibc" and bool(ctypes.CDLL(None).malloc_trim(0))
