# SPDX-License-Identifier: Apache-2.0
"""libfroghopper-cp.so, which lies beside the library: plans of attention over the rows of several ranks. It knows no
framework; _torch_cp_transport.py moves the bytes.
"""
import ctypes
import difflib
import functools
import os
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from froghopper import _c
from froghopper import _c_parallel as c
from froghopper._errors import Error, InvalidProblem, InvalidType, LibraryNotFound, error_of
from froghopper._library import library
from froghopper._values import number, one_of, shown, text, type_of, whole_number, wrong_kind
from froghopper._words import takes_words_of_others

NAME = "libfroghopper-cp.so"
SCHEMES = {"auto": c.CpScheme.CP_AUTO, "ring": c.CpScheme.CP_RING, "all_gather": c.CpScheme.CP_ALL_GATHER,
           "all_to_all": c.CpScheme.CP_ALL_TO_ALL, "all_to_all_ring": c.CpScheme.CP_ALL_TO_ALL_RING,
           "all_to_all_gather": c.CpScheme.CP_ALL_TO_ALL_GATHER}
# Words of other libraries -> schemes.
SCHEMES_ELSEWHERE = {"ulysses": "all_to_all", "a2a": "all_to_all", "alltoall": "all_to_all", "p2p": "ring",
                     "allgather": "all_gather", "usp": "all_to_all_ring", "a2a+p2p": "all_to_all_ring"}
GRIDS = ("all_to_all_ring", "all_to_all_gather")  # the schemes of two levels
LAYOUTS = {"zigzag": c.CpLayout.CP_ZIGZAG, "contiguous": c.CpLayout.CP_CONTIGUOUS,
           "by_document": c.CpLayout.CP_BY_DOCUMENT}
LINE = "fwd bf16 b1 hq64 hkv8 sq65536 skv65536 d128 causal"  # a problem
AGREED = -1  # check_interval: the ranks have compared what they compute before a run


@functools.lru_cache(maxsize=None)
def calls() -> Any:
    """The functions of cp.h, their types set. LibraryNotFound where the library is not there."""
    path = pathlib.Path(library().path).resolve().parent / NAME
    try: found = ctypes.CDLL(str(path))  # finds the library that is loaded already by its name
    except OSError as error:
        raise LibraryNotFound(f"{path} cannot be loaded: {error}. It is what attends across ranks; install the wheel, "
                              "or build the target froghopper-cp of the source tree.") from error
    for name, (result, arguments) in c.FUNCTIONS.items():
        if function := getattr(found, name, None): function.restype, function.argtypes = result, arguments
    return found


def check_status(status: int) -> None:
    """Raises what went wrong in the call of this thread that returned status."""
    if status: raise error_of(status, calls().fh_cp_last_error().decode())


def scheme_for(word: Any) -> str:
    """The one that is meant by a word that is none, else "auto"."""
    return SCHEMES_ELSEWHERE.get(word.lower(), "auto") if isinstance(word, str) else "auto"


def check_by_document(layout: str, cu_seqlens: Any) -> None:
    """This layout divides documents, so that they must be known."""
    if layout == "by_document" and cu_seqlens is None:
        raise InvalidProblem("cu_seqlens must say where documents are with layout=\"by_document\", but is None. Give "
                             "[0, end of each document], or layout=\"zigzag\".")


def described(whole: _c.Problem, ranks: int, rank: int, scheme: str, layout: str, ranks_per_host: int,
              peer_copies: bool, cu_seqlens: Any = None, heads_ranks: int = 0) -> c.CpProblem:
    """whole: the attention over the rows of all ranks, which must live as long as the problem is read, as must
    cu_seqlens, an array of ctypes. ranks_per_host: for the model of time, 0 for all. peer_copies: ranks write to the
    workspaces of their peers. heads_ranks: ranks that exchange heads in a scheme of two levels, 0 for the fastest."""
    return c.CpProblem(size=ctypes.sizeof(c.CpProblem), whole=ctypes.addressof(whole), ranks=ranks, rank=rank,
                       scheme=SCHEMES[scheme], layout=LAYOUTS[layout], ranks_per_host=ranks_per_host,
                       heads_ranks=heads_ranks, check_interval=0 if chosen_by_plan(scheme, heads_ranks) else AGREED,
                       transfers=c.CpTransfers.CP_PEER_COPIES if peer_copies else c.CpTransfers.CP_SEND_RECV,
                       documents=0 if cu_seqlens is None else len(cu_seqlens) - 1,
                       cu_seqlens=None if cu_seqlens is None else ctypes.addressof(cu_seqlens))


def chosen_by_plan(scheme: str, heads_ranks: int) -> bool:
    """Whether ranks whose models of time differ could choose differently, so that a run compares their plans."""
    return scheme == "auto" or (scheme in GRIDS and not heads_ranks)


def environment() -> dict[str, str]:
    """The environment variables that plans depend on, and a checksum of what the file holds that one of them names."""
    file = os.environ.get("FROGHOPPER_CP_TOPOLOGY", "")
    return {"FROGHOPPER_CP_CHUNKS": os.environ.get("FROGHOPPER_CP_CHUNKS") or "not set",
            "the file of FROGHOPPER_CP_TOPOLOGY": checksum(file) if file else "not given"}


@functools.lru_cache(maxsize=64)
def checksum(file: str) -> str:
    """As it was at first, as a plan keeps its figures."""
    try: return f"of the checksum {zlib.crc32(pathlib.Path(file).read_bytes()):08x}"
    except OSError as error: return f"not readable ({error.strerror})"


def takes_a_line(function: Callable[..., str]) -> Callable[..., str]:
    """Tensors are what attention is given; they are answered with the line that they make."""
    @functools.wraps(function)
    def call(*given: Any, **words: Any) -> str:
        first = given[0] if given else words.get("problem", words.get("q"))
        if not hasattr(first, "shape"): return function(*given, **words)
        line = line_of(first, given[1] if len(given) > 1 else words.get("k"), words.get("causal") is True)
        raise InvalidType(f"explain of froghopper.torch.context_parallel takes a problem in one line, over the rows of "
                          f"all ranks, and the number of ranks, but is given {type_of(first)} first. Write both, as in "
                          f"explain(\"{line}\", 2).")
    return call


TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def line_of(q: Any, k: Any, causal: bool) -> str:
    """The problem of two ranks that have as many rows each."""
    dtype = TYPES.get(str(q.dtype).rpartition(".")[2])
    if dtype is None or len(q.shape) != 4 or len(getattr(k, "shape", ())) != 4: return LINE
    batch, rows, heads, dim = q.shape
    mask = " causal" * causal
    return f"fwd {dtype} b{batch} hq{heads} hkv{k.shape[2]} sq{2 * rows} skv{2 * rows} d{dim}{mask}"


@takes_a_line
@takes_words_of_others("torch.context_parallel")
def explain(problem: str, ranks: int, target: str = "cpu", *, rank: int = 0, scheme: str = "auto",
            layout: str = "zigzag", ranks_per_host: int = 0, transfers: str = "send_recv",
            cu_seqlens: Sequence[int] | None = None, heads_ranks: int = 0,
            topology: Mapping[str, float] | str | os.PathLike[str] | None = None) -> str:
    """What one rank would do, in words: the scheme and why, then its steps, bytes and predicted times; or why nothing
    computes it. Moves nothing, and needs neither a group nor a GPU.

    problem         the attention over the rows of all ranks, as a line: "bwd bf16 b1 hq64 hkv8 sq1048576 skv1048576
                    d128 causal"
    ranks, rank     how many there are; whose steps are shown
    target          as of froghopper.explain: "cpu", or a GPU that need not be here, "h100"
    scheme, layout, heads_ranks   as of attention
    ranks_per_host  ranks that NVLink joins; 0 for all
    transfers       "send_recv", as NCCL's, or "copies" between the GPUs of one host
    cu_seqlens      where documents begin in the one row of the problem, and the end, as of attention

    topology        what probe has found on the machine, or the file that it has written. None: the file that
                    FROGHOPPER_CP_TOPOLOGY names, or the library's own figures

    What is wrong with these is told too, not raised.
    """
    try:
        whole = library().problem(text("problem", problem, LINE))
        check_by_document(layout, cu_seqlens)
        plan = Plan(whole, whole_number("ranks", ranks), whole_number("rank", rank), one_of("scheme", scheme, SCHEMES),
                    one_of("layout", layout, LAYOUTS), text("target", target, "cpu"),
                    whole_number("ranks_per_host", ranks_per_host),
                    one_of("transfers", transfers, {"send_recv": False, "copies": True}) == "copies",
                    None if cu_seqlens is None else rows_of(cu_seqlens), whole_number("heads_ranks", heads_ranks),
                    None if topology is None else topology_of(topology))
        return plan.text()
    except Error as error: return f"not computed {error}"


FIELDS = [each[0] for each in c.CpTopology._fields_ if each[0] != "size"]


def lines_of(fields: Mapping[Any, Any]) -> str:
    """As a file has them. The library speaks of lines, and a dict has none."""
    for name, value in fields.items():
        if name not in FIELDS:
            near = difflib.get_close_matches(name.lower(), FIELDS, 1) if isinstance(name, str) else []
            raise InvalidProblem(f"topology must have the fields that probe returns, {', '.join(FIELDS)}, but has "
                                 f"{shown(name)}. {f'Did you mean {near[0]}?' if near else 'Leave it out.'}")
        number(f"topology[{name!r}]", value)
    return "\n".join(f"{name} {float(value)!r}" for name, value in fields.items())


def topology_of(given: Any) -> c.CpTopology:
    """given: fields and numbers, or the name of a file of them."""
    if isinstance(given, Mapping): lines = lines_of(given)
    elif isinstance(given, str | os.PathLike):
        try: lines = pathlib.Path(given).read_text()
        except (OSError, ValueError) as error:
            raise InvalidProblem(f"topology must be a file that can be read, but {error}. Use what probe has "
                                 "written.") from error
        if not any(line.partition("#")[0].strip() for line in lines.splitlines()):
            raise InvalidProblem(f"topology must be a file of figures, but {os.fspath(given)} has none. Use what probe "
                                 "has written, or None.")
    else: wrong_kind("topology", given, "what probe returns, or a file", "the file that probe has written")
    found = c.CpTopology(size=ctypes.sizeof(c.CpTopology))
    check_status(calls().fh_cp_topology_parse(lines.encode(), ctypes.byref(found)))
    return found


def rows_of(cu_seqlens: Any) -> list[int]:
    """The numbers of a list, or of what may be read as one."""
    if not hasattr(cu_seqlens, "__len__") or not hasattr(cu_seqlens, "__getitem__") or isinstance(cu_seqlens, str):
        wrong_kind("cu_seqlens", cu_seqlens, "a list of rows", "[0, ..., rows]")
    return [whole_number(f"cu_seqlens[{i}]", x) for i, x in enumerate(cu_seqlens)]


class Plan:
    """What one rank does for a problem. workspace_bytes, bytes_in: that a run needs, and receives. scheme: by name.
    table_count: of numbers that a run on a GPU needs a copy of there."""

    def __init__(self, whole: _c.Problem, ranks: int, rank: int, scheme: str, layout: str, target: str,
                 ranks_per_host: int, peer_copies: bool, cu_seqlens: Sequence[int] | None = None,
                 heads_ranks: int = 0, topology: c.CpTopology | None = None):
        """The arguments of described. Raises what the library refuses."""
        self._pointer = ctypes.c_void_p()
        held = None if cu_seqlens is None else (ctypes.c_int64 * max(1, len(cu_seqlens)))(*cu_seqlens)
        problem = described(whole, ranks, rank, scheme, layout, ranks_per_host, peer_copies, held, heads_ranks)
        if topology is not None: problem.topology = ctypes.addressof(topology)
        check_status(calls().fh_cp_plan_create(ctypes.byref(problem), target.encode(), ctypes.byref(self._pointer)))
        self.workspace_bytes = int(calls().fh_cp_plan_workspace_bytes(self._pointer))
        self.bytes_in = int(calls().fh_cp_plan_bytes_in(self._pointer))
        self.on_gpu = bool(calls().fh_cp_plan_on_gpu(self._pointer))
        count = ctypes.c_int64()
        self._tables = calls().fh_cp_plan_tables(self._pointer, ctypes.byref(count))
        self.table_count = count.value

    def __del__(self) -> None:
        if pointer := getattr(self, "_pointer", None): calls().fh_cp_plan_destroy(pointer)

    def tables(self) -> list[int]: return list((ctypes.c_int32 * self.table_count).from_address(self._tables))

    def text(self) -> str: return str(calls().fh_cp_plan_text(self._pointer).decode())

    def run(self, transport: c.CpTransport | None, memory: c.CpMemory | None, tensors: dict[str, int], call: int,
            workspace: int, stream: int) -> int:
        """The status. tensors: addresses by the names of fh_cp_tensors, 0 for none. call: which one it is of these
        ranks."""
        given = c.CpTensors(size=ctypes.sizeof(c.CpTensors), call=call, **tensors)
        status: int = calls().fh_cp_plan_run(
            self._pointer, None if transport is None else ctypes.byref(transport),
            None if memory is None else ctypes.byref(memory), ctypes.byref(given), workspace, self.workspace_bytes,
            stream)
        return status
