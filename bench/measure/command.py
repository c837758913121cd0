# SPDX-License-Identifier: Apache-2.0
"""What the command lines of bench/ share: their options, what they need, and what a record says of its origin.

Nothing here needs PyTorch until need_torch is called, so that --help works everywhere.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
RIVALS = ("cudnn", "fa2", "fa3", "fa3kv", "fa4", "torch", "efficient", "math")


def parser(description):
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_library(p):
    p.add_argument("--library", default=str(BENCH.parent / "build/libfroghopper.so"), metavar="LIB.so",
                   help="which build is measured (default build/libfroghopper.so)")


def add_device(p, default="cuda"):
    p.add_argument("--device", choices=("cuda", "cpu"), default=default, help=f"default {default}")


def add_rivals(p, default, said=None):
    """said: of the default, where it is no one list."""
    p.add_argument("--rivals", default=default,
                   help=f"of {', '.join(RIVALS)}; '' for none (default {said or default})")
    p.add_argument("--fa3bwd", default="", metavar="LIB.so",
                   help="FlashAttention-3's backward, which no wheel has: see bench/measure/gradients.py")


def add_json(p, what):
    p.add_argument("--json", metavar="FILE.jsonl", help=f"append one line {what}")
    p.add_argument("--commit", default=os.environ.get("FROGHOPPER_COMMIT", ""),
                   help="what the lines name as this build's commit (default: that of this checkout)")


def need_torch(device="cpu"):
    """Ends the program, with a way out, where PyTorch or the GPU is missing."""
    name = pathlib.Path(sys.argv[0]).name
    try: import torch
    except ImportError as missing:
        sys.exit(f"{name}: PyTorch is needed and cannot be imported ({missing}). Use a python that has PyTorch.")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"{name}: PyTorch {torch.__version__} finds no CUDA GPU. Run it on a machine with a Hopper GPU; where "
                 "--help names --device cpu, that measures the CPU.")


def find_froghopper():
    """Puts this checkout's package last, so that an installed froghopper is measured where there is one."""
    checkout = BENCH.parent
    sys.path.append(str(checkout / "python"))
    import froghopper
    library = checkout / "build/libfroghopper.so"
    if pathlib.Path(froghopper.__file__).is_relative_to(checkout) and library.exists():
        os.environ.setdefault("FROGHOPPER_LIBRARY", str(library))


def end_on_errors(run, a):
    """run(a), where an error of the library, such as one that cannot be loaded, is the last line and not a trace."""
    from froghopper import Error  # the module that has run knows where
    try: return run(a)
    except Error as problem: sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {problem}")


def read_suite(path):
    lines = [line.split("#")[0].strip() for line in pathlib.Path(path).read_text().splitlines()]
    return [line for line in lines if line]


# Of a record.

def now():
    return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def commit_here():
    """Of the checkout this file is in; none where git or the history is missing."""
    answer = subprocess.run(["git", "-C", str(BENCH), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return answer.stdout.strip() or "unknown"


def processor(cpuinfo="/proc/cpuinfo"):
    names = re.findall(r"^model name\s*: (.*)$", pathlib.Path(cpuinfo).read_text(), re.M)
    return names[0] if names else platform.machine()


def device_name(device):
    """The GPU's name, or the processor's with PyTorch's number of threads."""
    import torch
    return torch.cuda.get_device_name() if device == "cuda" else f"{processor()}, {torch.get_num_threads()} threads"


def append(path, *records):
    """One line each, to the end of the file; nothing where no file is named."""
    if not path: return
    with open(path, "a") as file: file.writelines(json.dumps(record) + "\n" for record in records)
