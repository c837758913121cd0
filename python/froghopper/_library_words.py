# SPDX-License-Identifier: Apache-2.0
"""Sentences of the C library in the words of Python: its arguments for fields of fh_problem and fh_tensors, None for
NULL and FH_ALL, names of types as frameworks have them. Sentences that are not here pass as they are.
"""
import re
from collections.abc import Callable

# The library's o is one of two arguments, of which in_python does not know which.
OUT, HELD = "out (or what accumulate holds)", "accumulate[0]"
NEW_OUT = ("Use torch.empty(out.shape, dtype=out.dtype, device=out.device) in PyTorch, numpy.empty(out.shape, "
           "out.dtype) in NumPy")
COPIES = "; of what accumulate holds, a copy."


def of_one_o(text: str, held: bool) -> str:
    """What in_python has made, where it is known. held: it is what accumulate holds, whose numbers count."""
    text = text.replace(OUT, HELD if held else "out")
    if not held: return text.replace(NEW_OUT + COPIES, NEW_OUT + ".")
    return text.replace(NEW_OUT + COPIES, f"Copy it first: {HELD}.contiguous() in PyTorch, "
                                          f"numpy.ascontiguousarray({HELD}) in NumPy.")


def of_numpy_alone(text: str) -> str:
    """A sentence that says what to do in PyTorch and in NumPy: without the former."""
    text = re.sub(r"\b(use|first:|then:|it:) (?:(?!\. ).)*? in PyTorch, (.*?) in NumPy(, and so \S+ in JAX)?",
                  r"\1 \2", text, flags=re.IGNORECASE)
    return re.sub(r" in NumPy, [^,]*? in PyTorch", "", text)


def of_memory(names: str, subject: str, way: str) -> list[tuple[str, str]]:
    """Sentences of where a tensor that is written lies. names: of fields, a pattern."""
    name = rf"\b(?P<name>{names})"
    return [
        (rf"{name}\.stride_(batch|seq|head) is (-\d+); .*",
         rf"{subject} must have strides that are not negative, but that of \2 is \3. {way}"),
        (rf"{name}\.stride_(batch|seq|head) is (-?\d+), but (\d+) elements? lies? within one step of it, .*",
         rf"{subject} must have rows that do not overlap, as they are written, but its stride of \2 is \3, and \4 "
         rf"elements lie within one step. {way}"),
        (rf"{name}\.data must be at a multiple of (\d+) bytes, (.*), but is at address (\w+)\. Align it\.",
         rf"{subject} must begin at a multiple of \2 bytes, \3, but is at address \4. {way}")]


COLUMNS = r"head dims( of 8-bit (?:types|k and v|caches)| here)? are (multiples of \d+ from \d+ to \d+)\."
SENTENCES: list[tuple[str, str]] = [
    *of_memory("o", OUT, NEW_OUT + COPIES),
    *of_memory("q_out", r"\g<name>", "Use torch.empty_like(q) in PyTorch, numpy.empty(q.shape, q.dtype) in NumPy."),
    *of_memory("grad_[qkv]|grad_gate", r"\g<name>", r"Use numpy.zeros(\g<name>.shape, \g<name>.dtype)."),
    *of_memory("cache_[kv]", r"\g<name>", r"Keep a copy, to which rows go then: \g<name> = \g<name>.contiguous() in "
               r"PyTorch, \g<name> = numpy.ascontiguousarray(\g<name>) in NumPy."),
    (r"window_(left|right) is (-\d+); it counts keys\. .*",
     r"window must be (left, right), keys before and after, None or -1 for no bound, but its \1 one is \2. Use None "
     r"there."),
    (r"causal is set and window_right is (\d+); .*",
     r"window must end with 0 or None where causal is True, as a causal query attends to no later key, but ends with "
     r"\1. Use window=(left, 0), or causal=False."),
    (r"attention_chunk is (-\d+); .*",
     r"attention_chunk must be 0 or more keys, but is \1. Use attention_chunk=0 for none."),
    (r"seq_(q|kv) is (-\d+); sizes are not negative.*",
     r"max_seqlen_\1 must be 0 or more rows, but is \2. Give the longest sequence's."),
    (r"block_table\[(\d+)\]\[(\d+)\] is (-?\d+) and pages is 0.*",
     r"block_table[\1, \2] must name a page, but is \3, and the pool has no page. Give a pool with pages."),
    (r"block_table\[(\d+)\]\[(\d+)\] must name a page of the pool, of which pages are (\d+), but is (-?\d+)\."
     r"( Without seqused_kv .*? count\.)? Use (.*)\.",
     r"block_table[\1, \2] must name a page of the pool, \6, but is \4.\5 Use one of these."),
    (r"max_sms is (-\d+); .*", r"max_sms must be 0 or more SMs or threads, but is \1. Use max_sms=0 for all."),
    (r"accumulate is 1 and sink is set; .*",
     r"sink must be None with accumulate, as each call would put it into the denominator again, but is given. Leave it "
     r"out, and begin with o = 0 and lse = sink."),
    (r"accumulate is 1 and gate is set; .*",
     r"gate must be None with accumulate, as each call would apply it to all of o again, but is given. Leave it out, "
     r"and multiply o by its sigmoid after the last call."),
    (r"smooth is 1 and softcap is (\S+); .*",
     r"softcap must be 0 with mean_k and mean_v, as a tanh keeps what a softmax loses, but is \1. Use softcap=0."),
    (r"heads_(q|kv) is (\d+); a problem has at least one .*",
     r"heads_\1 must be 1 or more, but is \2. Give tensors with heads."),
    (r"heads_kv is (\d+) and heads_q is (\d+); heads_kv must divide heads_q\. Use (.*?)\.",
     r"heads_kv must divide heads_q, \2, but is \1. Use \3 for keys and values."),
    (r"sequence (\d+) has (\d+) rows? and seq_(q|kv) is (\d+); .*",
     r"max_seqlen_\3 must be at least \2, the rows of sequence \1, but is \4. Use max_seqlen_\3=\2."),
    (r"cu_seqlens_(q|kv)\[(\d+)\] is (\d+) and total_\1 is (\d+); .*",
     r"cu_seqlens_\1 must be at most \4, the rows of the tensor, but cu_seqlens_\1[\2] is \3. Give all rows, or end "
     r"earlier."),
    (r"cu_seqlens_kv\[0\] is (-\d+); no sequence .*",
     r"cu_seqlens_kv must begin with 0 or more, but begins with \1. Use the row where the first sequence begins."),
    (r"seqused_kv\[(\d+)\] is (\d+) and seq_kv is (\d+); .*",
     r"max_seqlen_kv must be at least \2, which seqused_kv[\1] is, but is \3. Use max_seqlen_kv=\2."),
    (r"cu_seqlens_(q|kv)\[0\] is (-?\d+); .*",
     r"cu_seqlens_\1 must begin with 0, but begins with \2. If it holds lengths, give their cumulative sums behind a "
     r"0; else use cu_seqlens_\1 - cu_seqlens_\1[0] with the rows from there on."),
    (r"cu_seqlens_(q|kv) falls from (-?\d+) to (-?\d+) at entry (\d+); .*",
     r"cu_seqlens_\1 must not fall, as sequences lie end to end, but falls from \2 to \3 at entry \4. Let it rise."),
    (r"seqused_(q|kv)\[(\d+)\] is (-?\d+) and (?:the sequence has 0 rows|seq_\1 is 0)[;,] .*",
     r"seqused_\1[\2] must be 0, as the sequence has no rows, but is \3. Use 0."),
    (r"seqused_(q|kv)\[(\d+)\] is (-?\d+) and the sequence has (\d+) rows?; .* (Use [\d to]+).*",
     r"seqused_\1[\2] must be from 0 to \4, the rows of the sequence, but is \3. \5."),
    (rf"dim_qk is (\d+) and dim_v is (\d+); {COLUMNS}",
     r"head dims\3 must be \4, but that of q and k is \1 and that of v is \2."),
    (rf"dim_qk is (\d+); {COLUMNS} Set dim_qk within\.",
     r"head dims\2 must be \3, but that of q and k is \1. Give other tensors."),
    (rf"dim_qk is (\d+); {COLUMNS}", r"head dims\2 must be \3, but that of q and k is \1."),
    (rf"dim_v is (\d+); {COLUMNS}", r"head dims\2 must be \3, but that of v is \1."),
    (r"all strides of (\w+) are 0, so its (.*) rows would be the same one\. .*",
     r"\1 must have more than one row in memory, but its \2 rows are the same one. Copy it first: "
     r"\1.contiguous() in PyTorch, numpy.ascontiguousarray(\1) in NumPy."),
    (r"(\w+)\.stride_(batch|seq|head) is (-\d+); .*",
     r"\1 must have strides that are not negative, but that of \2 is \3. Copy it first: numpy.ascontiguousarray(\1) in "
     r"NumPy, \1.contiguous() in PyTorch."),
    (r"(scale_\w) (of .*?) is (\S+); a scale is positive, (from .*?)\. .*",
     r"\1 must be positive, \4, but that \2 is \3. Use 1 for values that stand for themselves."),
    (r"scale_tokens is \d+ and invariant is \d+; .*",
     r"invariant must be False where scale_k and scale_v have a scale for each row, but is True. Leave it out, or give "
     r"scales of [batch, heads]."),
    (r"scale_tokens is \d+ and scale_rows is \d+; .*",
     r"scale_q must be one number, or [batch, heads], where scale_k and scale_v have a scale for each row, but has one "
     r"for each block of 128 rows. Use one of the former."),
    (r"scale_tokens is set and dtype is \w+; the Hopper kernels .*",
     r"on a GPU, q must be float16 or bfloat16 where scale_k and scale_v have a scale for each row, but has 8 bits. "
     r"Convert it, or use tensors on the CPU."),
    (r"invariant is set and dim_qk is (\d+); the Hopper kernels have it up to (\d+)\. .*",
     r"on a GPU, invariant must be False where q and k have more than \2 columns, but is True, and they have \1. Leave "
     r"it out, or use tensors on the CPU."),
    (r"invariant is set and dtype(?:_kv)? is \w+; the Hopper kernels .*",
     r"on a GPU, invariant must be False where k and v have 8 bits, but is True. Leave it out, or use tensors on the "
     r"CPU."),
    (r"rotary_dim is (\d+); the Hopper kernel rotates columns by multiples of (\d+)\. .*",
     r"on a GPU, a multiple of \2 columns must be rotated, but rotary_cos, one column for two of them, says \1. Use "
     r"tensors on the CPU."),
    (r"rotary_rows is (\d+); the Hopper kernel .*",
     r"on a GPU, rotary_cos must have fewer than 2^31 rows, but has \1. Use shorter tables."),
    (r"dtype is f32; the Hopper kernels .*",
     r"on a GPU, q, k and v must be float16 or bfloat16, but are float32. Convert them, or use tensors on the CPU."),
    (r"^o (and \w+ are|at \S+ (?:to \S+ )?and) (.*); o is written while (\w+) is still read\. Give o its own memory.*",
     r"out (or what accumulate holds) \1 \2; it is written while \3 is still read. Give it its own memory."),
    (r"(\w+)\.data must be at a multiple of (\d+) bytes, (.*), but is at address (\w+)\. Align it\.",
     r"\1 must begin at a multiple of \2 bytes, \3, but is at address \4. Copy it: \1.copy() in NumPy, \1.clone() in "
     r"PyTorch."),
    (r"(\w+)\.stride_(batch|seq|head) is (-?\d+), but (\d+) elements? lies? within one step of it, .*",
     r"\1 must have rows that do not overlap, as they are written, but its stride of \2 is \3, and \4 elements lie "
     r"within one step. Use \1.contiguous() in PyTorch, numpy.ascontiguousarray(\1) in NumPy."),
    (r"seqused is set and slots is 1; .*",
     r"seqused and seqused_kv must be None with slot_mapping, which says of every row where it goes, but one is given. "
     r"Leave it out."),
    (r"varlen is set and slots is 1; .*",
     r"cu_seqlens must be None with slot_mapping, which says of every row where it goes, but is given. Leave it out."),
    (r"slots is \d+, rotary_dim is \d+ and positions is 0; .*",
     r"positions must be given with slot_mapping and rotary_cos, as a slot does not say where a row is in its "
     r"sequence, but are None. Give them."),
    (r"seq_kv is (\d+) and sequence (\d+) gets (.*), from row 0 on.*",
     r"the cache, whose rows are \1, must have room for what is added, but sequence \2 gets \3 from row 0 on, as "
     r"seqused_kv is None. Use a longer cache, or add fewer rows."),
    (r"seqused_kv\[(\d+)\] is (-?\d+), the sequence gets (.*), and seq_kv is (\d+); .*",
     r"seqused_kv[\1] must leave room in the cache, whose rows are \4, for \3, but is \2. Use a longer cache, or add "
     r"fewer rows."),
    (r"(norm_\w) is set, but the problem has no norm, .*",
     r"\1 must be None without norm_epsilon, as nothing is normed then, but is given. Leave it out, or give "
     r"norm_epsilon."),
    (r"rotary_rows is \d+ and rotary_dim is 0; .*",
     r"rotary_cos must have columns, half as many as are rotated, but has 0. Give columns, or leave rotary_cos and "
     r"rotary_sin out."),
    (r"rotary_rows must be from 1 to 2\^40, .*, but is (\d+)\. .*",
     r"rotary_cos must have from 1 to 2^40 rows, one for each position, but has \1. Give longer tables."),
    (r"(row \d+ of sequence \d+) has position (\d+)(?:, as [^,]*)?, and rotary_rows is (\d+); .*",
     r"the position of \1 must be below \3, the rows of rotary_cos, but is \2. Use longer tables."),
    (r"positions\[(\d+)\] is (-?\d+) and rotary_rows is (\d+); .*",
     r"the position of row \1 must be 0 or more and below \3, the rows of rotary_cos, but is \2. Use longer tables."),
    (r"(scale_\w) of head (\d+) is (\S+); a scale is (positive, from .*\))\. .*",
     r"\1 must be \4, as values are divided by it, but that of head \2 is \3. Use 1 for values that stand for "
     r"themselves."),
    (r"batch (\d+) x seq_(q|kv) (\d+) x heads_q (\d+) is too large; .*",
     r"max_seqlen_\2 must leave a size that 64 bits can count, but is \3, with \1 sequences and \4 heads. Give the "
     r"longest sequence's."),
    (r"(?:total_(q|kv) (\d+)|pages (\d+) x page_size (\d+)) x heads_q (\d+) is too large; .*",
     r"the bytes of a tensor must be counted in 64 bits, but there are too many rows for \5 heads. Give fewer."),
    (r"scale_rows is (-?\d+); blocks of rows that share a scale .*",
     r"scale_rows must be 128, or 0 for all rows, but is \1. Use one of them."),
    (r'target "cpu"', "tensors on the CPU"),
    (r"whole->seq_q is (\d+) and seq_kv (\d+), but must be equal: .*",
     r"sq must be skv, as rows of q, k and v are spread alike, but sq is \1 and skv \2. For new queries on a cache "
     r"that is spread use context_parallel.decode, which needs no plan."),
    (r"whole->varlen is set, but documents .*",
     r"varlen must be left out over ranks, as documents are told by cu_seqlens, but is given. Give cu_seqlens, and the "
     r"line of one sequence of all rows."),
    (r"^ranks_per_host must be the same on all ranks, but is",
     "LOCAL_WORLD_SIZE, which says how many ranks a host has, must be the same on all ranks, but stands for"),
    (r"\bwhole->", ""), (r"\bof whole, ", ""),
    (r"invariant is 1 and op is FH_BACKWARD; .*", r"invariant must be False for gradients, but is True. Leave it out."),
]
WORDS = {
    "window_left": "window[0]", "window_right": "window[1]", "total_q": "the rows of q", "total_kv": "the rows of k",
    "dim_qk": "the head dim of q and k", "dim_v": "the head dim of v", "NULL": "None", "FH_ALL": "None",
    "FH_FORWARD": "fwd", "FH_BACKWARD": "bwd",
    "FH_F16": "float16", "FH_BF16": "bfloat16", "FH_F32": "float32", "FH_E4M3": "float8_e4m3fn",
    "FH_E5M2": "float8_e5m2", "FH_BOTTOM_RIGHT": "bottom_right", "FH_TOP_LEFT": "top_left",
    "cache_k": "k_cache", "cache_v": "v_cache", "FH_CP_RING": 'scheme="ring"',
    "FH_CP_AUTO": 'scheme="auto"', "FH_CP_ZIGZAG": 'layout="zigzag"', "FH_CP_SEND_RECV": 'transfers="send_recv"',
    "FH_CP_PEER_COPIES": 'transfers="copies"',
    "FH_CP_BY_DOCUMENT": 'layout="by_document"', "FH_CP_CONTIGUOUS": 'layout="contiguous"',
    "FH_CP_ALL_GATHER": 'scheme="all_gather"', "FH_CP_ALL_TO_ALL": 'scheme="all_to_all"',
    "FH_CP_ALL_TO_ALL_RING": 'scheme="all_to_all_ring"', "FH_CP_ALL_TO_ALL_GATHER": 'scheme="all_to_all_gather"',
}
_sentences = [(re.compile(found), put) for found, put in SENTENCES]
_words = re.compile(rf"\b({'|'.join(WORDS)})\b")
_word: Callable[[re.Match[str]], str] = lambda found: WORDS[found[0]]


def in_python(text: str) -> str:
    """What the library says, of arguments of this package."""
    for pattern, put in _sentences: text = pattern.sub(put, text)
    return _words.sub(_word, text)
