# SPDX-License-Identifier: Apache-2.0
"""What a problem is counted as: the same rules as bench/work.hpp, for problems without varlen and seqused.

FLOPs are 2 (dim_qk + dim_v) a visible pair of query and key. On the causal diagonal a pair counts half, so a square
causal problem counts exactly half of the full one, as everybody's tables do; a window counts the pairs it shows.
Bytes are those of q, k, v, o and lse, each moved once.
"""
BYTES = {1: 2, 2: 2, 3: 4}  # fh_dtype -> bytes an element


def visible_pairs(p):
    """Of one sequence and head."""
    if not p.is_masked(): return p.seq_q * p.seq_kv
    right = 0 if p.causal else p.window_right
    offset = p.seq_kv - p.seq_q if p.align == 0 else 0
    pairs = 0
    for level in range(offset, offset + p.seq_q):
        begin = max(0, level - p.window_left) if p.window_left >= 0 else 0
        end = min(p.seq_kv, level + right + 1) if right >= 0 else p.seq_kv
        pairs += max(0, end - begin) - (0.5 if p.is_causal() and 0 <= level < p.seq_kv else 0)
    return pairs


def flops(p):
    return 2.0 * (p.dim_qk + p.dim_v) * p.batch * p.heads_q * visible_pairs(p)


def bytes_moved(p):
    rows_q, rows_kv = p.batch * p.seq_q, p.batch * p.seq_kv
    columns = p.dim_qk + p.dim_v
    return BYTES[p.dtype] * columns * (rows_q * p.heads_q + rows_kv * p.heads_kv) + 4 * rows_q * p.heads_q
