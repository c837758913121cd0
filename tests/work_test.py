# SPDX-License-Identifier: Apache-2.0
"""What bench/measure/work.py counts: FLOPs and bytes of a problem."""
import pathlib
import sys
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from measure import work


def problem(**fields):
    whole = dict(op=1, dtype=2, batch=2, heads_q=3, heads_kv=3, seq_q=8, seq_kv=8, dim_qk=16, dim_v=16, causal=0,
                 align=0, window_left=-1, window_right=-1, varlen=0, accumulate=0, dtype_kv=0, dtype_o=0,
                 attention_chunk=0, gate=0, scale_tokens=0) | fields
    p = types.SimpleNamespace(**whole)
    p.is_causal = lambda: bool(p.causal) or (p.window_left, p.window_right) == (-1, 0)
    p.is_masked = lambda: bool(p.causal) or (p.window_left, p.window_right) != (-1, -1)
    p.is_backward = lambda: p.op == 2
    return p


class Work(unittest.TestCase):
    def test_square_causal_is_half(self):
        self.assertEqual(work.visible_pairs(problem(), 8, 8), 64)
        self.assertEqual(work.visible_pairs(problem(causal=1), 8, 8), 32)
        self.assertEqual(work.flops(problem(causal=1)) * 2, work.flops(problem()))
        self.assertEqual(work.flops(problem()), 4 * 16 * 2 * 3 * 64)

    def test_more_keys_than_rows(self):
        self.assertEqual(work.visible_pairs(problem(causal=1), 2, 5), 3.5 + 4.5)
        self.assertEqual(work.visible_pairs(problem(causal=1, align=1), 2, 5), 0.5 + 1.5)

    def test_window_counts_what_it_shows(self):
        self.assertEqual(work.visible_pairs(problem(window_left=1, window_right=1), 4, 4), 2 + 3 + 3 + 2)

    def test_bytes(self):
        self.assertEqual(work.bytes_moved(problem(heads_kv=1)), 2 * 32 * 16 * (3 + 1) + 4 * 16 * 3)
        scales = 2 * 4 * 16  # of each row of k and v
        self.assertEqual(work.bytes_moved(problem(heads_kv=1, scale_tokens=1)),
                         work.bytes_moved(problem(heads_kv=1)) + scales)

    def test_sequences_count_their_own_rows(self):
        packed = dict(varlen=1, total_q=10, total_kv=10, heads_q=1, heads_kv=1)
        self.assertEqual(work.flops(problem(**packed), [8, 2]), 4 * 16 * (64 + 4))
        self.assertEqual(work.flops(problem(**packed, causal=1), [8, 2]), 2 * 16 * (64 + 4))
        self.assertEqual(work.bytes_moved(problem(**packed)), 2 * 32 * (10 + 10) + 4 * 10)

    def test_backward_is_two_and_a_half_times_forward(self):
        self.assertEqual(work.flops(problem(op=2, causal=1)), 2.5 * work.flops(problem(causal=1)))

    def test_backward_moves_gradients_too(self):
        one = dict(batch=1, heads_q=1, heads_kv=1, seq_q=4, seq_kv=5, dim_qk=16, dim_v=24)
        read = 2 * (4 * 16 + 5 * 16 + 5 * 24 + 2 * 4 * 24) + 4 * 4
        written = 4 * 16 + 5 * 16 + 5 * 24
        self.assertEqual(work.bytes_moved(problem(op=2, **one)), read + 2 * written)
        self.assertEqual(work.bytes_moved(problem(op=2, accumulate=1, **one)), read + 8 * written)


if __name__ == "__main__":
    unittest.main()
