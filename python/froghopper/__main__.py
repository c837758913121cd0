# SPDX-License-Identifier: Apache-2.0
"""The command of the installed package; `python3 -m froghopper` is the same.

    froghopper info                       the library in use, the frameworks that are installed, what would run here
    froghopper explain LINE [TARGET]      how a problem would be computed, or why not: "auto", "cpu", "hopper", "h200"
"""
import importlib.metadata
import sys

import froghopper
from froghopper._library import library

SAMPLE = "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal"
FRAMEWORKS = ("numpy", "torch", "transformers", "jax")


def installed(name: str) -> str:
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return "not installed"


def info() -> None:
    print(f"froghopper    {froghopper.__version__}")
    print(f"library       {library().path}")
    for name in FRAMEWORKS: print(f"{name:<13} {installed(name)}")
    print(f"\nFor example:\n{froghopper.explain(SAMPLE)}")


def main() -> int:
    """0 done, 2 the words make no sense or the library refuses them."""
    command, words = (sys.argv[1:] or ["help"])[0], sys.argv[2:]
    try:
        if command == "info" and not words: info()
        elif command == "explain" and len(words) in (1, 2): print(froghopper.explain(*words))
        else:
            print(__doc__.strip(), file=sys.stdout if command in ("help", "-h", "--help") else sys.stderr)
            return 0 if command in ("help", "-h", "--help") else 2
    except froghopper.Error as error:
        print(f"froghopper: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
