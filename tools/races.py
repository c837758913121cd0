# SPDX-License-Identifier: Apache-2.0
"""R37: what compute-sanitizer's racecheck says of kernels with line numbers (FROGHOPPER_LINE_INFO=1), less what it
cannot see and docs/7-debugging.md explains: a hand-over by an mbarrier, one arrival of a thread or for a warp.

usage: python3 tools/races.py LOG      of --tool racecheck --racecheck-report analysis; exit code 1 if there is a race
"""
import collections
import pathlib
import re
import sys

# Who writes what is handed over, and who else may then touch it; None: any reader.
KNOWN = {
    "fwd::Dispatcher::publish": None,  # a work item
    "bwd::Dispatcher::publish": None,
    "bwd::QLoader::load": None,  # the number of an iteration, its slope
    "fwd::Fp8Loader::load": None,  # scales of a tile
    "fwd::StoredLoader::run": None,  # the same
    "fwd::StoredLoaderOf::run": None,
    "fwd::Dequantiser::run_with_tile_scales": None,
    "fwd::TokenScales::put": None,  # scales of its rows
    "bwd::InRegisterOrder::put": "bwd::InRegisterOrder::take",  # weights of an iteration
}
# Who reads what they write. NVRTC gives some stores of a single lane no line; then a group of hazards is known by one
# of its readers, which all read the same bytes.
READERS = {
    "bwd::DqSum::remember": "bwd::QLoader::load",
    "tile::round_scaled_to": "fwd::TokenScales::put",
    "tile::scale_columns": "fwd::TokenScales::put",
}
ACCESS = re.compile(r"\b(Read|Write) access at (.+)\+0x[0-9a-f]+ in (\S+)")
NO_LINE = re.compile(r"\bWrite access at \w+\+0x[0-9a-f]+$")


def function_of(signature):
    """froghopper::bwd::QLoader<...>::load(const ...) -> bwd::QLoader::load"""
    name, depth = "", 0
    for letter in signature:
        if letter == "(" and depth == 0 and name:
            break
        depth += (letter in "<(") - (letter in ">)")
        if depth == 0 and letter not in ">)":
            name += letter
    return name.split()[-1].removeprefix("froghopper::")


def is_known(one, other):
    """Each: (Read or Write, function). Of a hand-over one side writes, and the other one reads."""
    for (kind, writer), (other_kind, reader) in ((one, other), (other, one)):
        if kind == "Write" and other_kind == "Read" and writer in KNOWN:
            return KNOWN[writer] in (None, reader)
    return False


def races(log):
    """Of every pair of places that race: what they are, and how often."""
    known, new = collections.Counter(), collections.Counter()
    for group in re.split(r"^=+ *$", log, flags=re.MULTILINE):
        head, *others = group[max(group.find("Race reported between"), 0):].splitlines() or [""]
        if "Race reported between" not in head: continue
        seconds = [found for line in others if (found := ACCESS.search(line))]
        if first := ACCESS.search(head):
            for second in seconds:
                ends = [(end[1], function_of(end[2])) for end in (first, second)]
                text = " and ".join(f"{kind} in {name} ({end[3]})"
                                    for (kind, name), end in zip(ends, (first, second)))
                (known if is_known(*ends) else new)[text] += 1
            continue
        readers = [function_of(end[2]) for end in seconds if end[1] == "Read"]
        writer = next((READERS[name] for name in readers if name in READERS), None)
        is_hand_over = writer and NO_LINE.search(head.strip()) and len(readers) == len(seconds)
        (known if is_hand_over else new)[f"{head.strip()} and reads of {', '.join(sorted(set(readers)))}"] += 1
    return known, new


def main():
    log = pathlib.Path(sys.argv[1]).read_text(errors="replace")
    known, new = races(log)
    begun, ended = log.count("= COMPUTE-SANITIZER"), log.count("RACECHECK SUMMARY:")  # of maybe several runs
    for text, times in new.most_common():
        print(f"race: {text}, {times} times")
    print(f"{len(known)} known hand-overs, {len(new)} races" if begun == ended > 0 else
          f"racecheck began {begun} times and ended {ended} times")
    return 0 if begun == ended > 0 and not new else 1


if __name__ == "__main__":
    sys.exit(main())
