"""All benchmarks, one after the other, and the page that shows what they found.

    python -m benchmarks [NAME ...]   # default: all; others keep what the page shows of them

Each prints its tables when it is run alone: ``python -m benchmarks.steps``. Nothing else should run beside them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import machine
from benchmarks.page import put_into

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
#: What `docs/benchmarks.md` shows, in its order.
NAMES = ("steps", "networks", "ranks", "pictures", "volumes", "checkpoint", "start", "growth", "memory", "validation")


def main() -> int:
    """Run them, and write each one's tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    asked = parser.parse_args().names or NAMES
    strange = sorted(set(asked) - set(NAMES))
    if strange:
        parser.error(f"no benchmark is called {', '.join(strange)}; there are {', '.join(NAMES)}")
    failed = []
    for name in asked:
        print(f"{name} …", flush=True)
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
        )
        print(f"{done.stdout}\n{name}: {time.monotonic() - start:.0f} s", flush=True)
        if done.returncode:
            failed.append(name)
            continue
        of_machine = ", ".join(f"{key} {value}" for key, value in machine().items() if key != "threads")
        content = (
            f"{done.stdout.strip()}\n\n*{of_machine}; `python -m benchmarks.{name}`, {time.strftime('%Y-%m-%d')}.*"
        )
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), content, name), encoding="utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
