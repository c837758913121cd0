// SPDX-License-Identifier: Apache-2.0
// Claims: every refusal of a description has its own message, given here by its text, and says whether the description
// contradicts itself or makes sense and is not computed; every bad line has one too, with the place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

#include "src/problem/problem.hpp"
#include "tests/support/small_problem.hpp"

namespace froghopper {
namespace {

constexpr int64_t huge = std::numeric_limits<int64_t>::max();

using test::small_problem;

// A C caller can put any number into an enum.
template <class Enum>
void set_raw(Enum& field, int32_t value) {
  static_assert(sizeof field == sizeof value);
  std::memcpy(&field, &value, sizeof value);
}

struct BadProblem {
  std::function<void(fh_problem&)> spoil;
  const char* message;
  fh_status status = FH_INVALID_PROBLEM;  // FH_UNSUPPORTED: it makes sense, but nothing here computes it
};

const BadProblem bad_problems[] = {
    {[](fh_problem& p) { p.size = 0; },
     "fh_problem.size is 0; it must hold sizeof(fh_problem). Start from fh_problem_init()."},
    {[](fh_problem& p) { set_raw(p.dtype, 0); },
     "dtype is 0, which names no type. Use FH_F16, FH_BF16, FH_F32, FH_E4M3 or FH_E5M2."},
    {[](fh_problem& p) { set_raw(p.align, 2); },
     "align is 2, which names no corner. Use FH_BOTTOM_RIGHT or FH_TOP_LEFT."},
    {[](fh_problem& p) { p.batch = -1; }, "batch is -1; sizes are not negative. Use 0 for none."},
    {[](fh_problem& p) { p.seq_q = -2; }, "seq_q is -2; sizes are not negative. Use 0 for none."},
    {[](fh_problem& p) { p.seq_kv = -3; }, "seq_kv is -3; sizes are not negative. Use 0 for none."},
    {[](fh_problem& p) { p.varlen = 1, p.total_q = -4; }, "total_q is -4; sizes are not negative. Use 0 for none."},
    {[](fh_problem& p) { p.varlen = 1, p.total_kv = -5; }, "total_kv is -5; sizes are not negative. Use 0 for none."},
    {[](fh_problem& p) { p.max_sms = -1; }, "max_sms is -1; it is a number of SMs or threads. Use 0 for all."},
    {[](fh_problem& p) { p.heads_q = 0; }, "heads_q is 0; a problem has at least one query head. Set heads_q."},
    {[](fh_problem& p) { p.heads_kv = 0; },
     "heads_kv is 0; a problem has at least one key head. Use heads_q, 8, where every query head has its own."},
    {[](fh_problem& p) { p.heads_kv = 3; },
     "heads_kv is 3 and heads_q is 8; heads_kv must divide heads_q. Use 1, 2, 4 or 8."},
    {[](fh_problem& p) { p.heads_q = 100, p.heads_kv = 200, p.seq_q = 8, p.seq_kv = 2; },
     "heads_kv is 200 and heads_q is 100; heads_kv must divide heads_q. Use 1, 2, 4, 5, 10, 20, 25, 50 or 100. If "
     "heads "
     "are before rows, exchange heads_q with seq_q and heads_kv with seq_kv; strides say how tensors lie."},
    {[](fh_problem& p) { p.dim_qk = 0; },
     "dim_qk is 0; head dims are multiples of 8 from 8 to 512. Set dim_qk within."},
    {[](fh_problem& p) { p.dim_qk = 81; },
     "dim_qk is 81; head dims are multiples of 8 from 8 to 512. Pad q and k with zero columns to 88 and set scale to "
     "1/sqrt(81); the result does not change.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dim_qk = 81, p.scale = 0.2f; },  // which does not depend on the columns
     "dim_qk is 81; head dims are multiples of 8 from 8 to 512. Pad q and k with zero columns to 88; the result does "
     "not change.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dim_qk = 60, p.dim_v = 81, p.scale = -0.0f; },
     "dim_qk is 60 and dim_v is 81; head dims are multiples of 8 from 8 to 512. Pad q and k with zero columns to 64, "
     "v to 88; o has 88 then, and the last ones are zero.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dim_qk = 576, p.dim_v = 512; },
     "dim_qk is 576; head dims are multiples of 8 from 8 to 512. Latent rows (MLA) are not read as k and v: expand "
     "them to those of each head, such as 192 and 128 columns.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_APPEND, p.dim_qk = 576, p.dim_v = 512; },
     "dim_qk is 576; head dims here are multiples of 8 from 8 to 512. Rows of MLA are written as two views of them: "
     "512 columns as v, the other 64 as k.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_APPEND, p.dtype_kv = FH_E4M3, p.dim_qk = 72; },
     "dim_qk is 72; head dims of 8-bit caches are multiples of 16 from 16 to 512. Pad q and k with zero columns to "
     "80, "
     "in the cache too.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_APPEND, p.dim_v = 60; },
     "dim_v is 60; head dims here are multiples of 8 from 8 to 512. Pad v with zero columns to 64, in the cache too.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_APPEND, p.dim_qk = 60, p.norm = 1; },
     "dim_qk is 60; head dims here are multiples of 8 from 8 to 512. Set dim_qk within.", FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_APPEND, p.dtype = FH_F32, p.norm = 1, p.dtype_norm = FH_BF16; },
     "dtype_norm must be f32, but is bf16. Set dtype_norm to FH_USUAL or FH_F32.", FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dim_qk = 60, p.dim_v = 81; },
     "dim_qk is 60 and dim_v is 81; head dims are multiples of 8 from 8 to 512. Pad q and k with zero columns to 64, "
     "v to 88, and set scale to 1/sqrt(60); o has 88 then, and the last ones are zero.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dim_v = -8; },
     "dim_v is -8; head dims are multiples of 8 from 8 to 512. Use 0 for the same as dim_qk."},
    {[](fh_problem& p) { p.dim_v = 520; },
     "dim_v is 520; head dims are multiples of 8 from 8 to 512. Compute o in slices of v's columns, each with the "
     "same q and k.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dim_v = 60; },
     "dim_v is 60; head dims are multiples of 8 from 8 to 512. Pad v with zero columns to 64; o has 64 then, the "
     "last ones zero.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.total_q = 10; },
     "total_q is 10 without varlen; only packed sequences have a total. Set varlen or leave it 0."},
    {[](fh_problem& p) { p.total_kv = 11; },
     "total_kv is 11 without varlen; only packed sequences have a total. Set varlen or leave it 0."},
    {[](fh_problem& p) { p.window_left = -2; },
     "window_left is -2; it counts keys. Use FH_ALL (-1) for all of them."},
    {[](fh_problem& p) { p.attention_chunk = -1; }, "attention_chunk is -1; it counts keys. Use 0 for none."},
    {[](fh_problem& p) { p.window_right = -7; },
     "window_right is -7; it counts keys. Use FH_ALL (-1) for all of them."},
    {[](fh_problem& p) { p.causal = 1, p.window_right = 4; },
     "causal is set and window_right is 4; a causal query attends to no key after it. Set window_right to 0, or "
     "causal to 0."},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.accumulate = 2; },
     "accumulate is 2 and op is FH_QUANTISE; gradients are added to what is there, and o and lse merged with it. Set "
     "op to FH_FORWARD or FH_BACKWARD, or accumulate to 0."},
    {[](fh_problem& p) { p.op = FH_BACKWARD, p.invariant = 3; },
     "invariant is 3 and op is FH_BACKWARD; only the forward pass has it. Set op to FH_FORWARD, or invariant to 0.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { set_raw(p.dtype_kv, 6); },
     "dtype_kv is 6, which names no type. Use FH_USUAL for that of q, FH_E4M3 or FH_E5M2."},
    {[](fh_problem& p) { set_raw(p.dtype_o, -1); },
     "dtype_o is -1, which names no type. Use FH_USUAL, FH_F16, FH_BF16 or FH_F32."},
    {[](fh_problem& p) { p.op = FH_BACKWARD, set_raw(p.dtype, 9); },
     "dtype is 9, which names no type. Use FH_F16, FH_BF16 or FH_F32."},
    {[](fh_problem& p) { p.op = FH_BACKWARD, set_raw(p.dtype_kv, 9); },
     "dtype_kv is 9, which names no type. Use FH_USUAL for that of q."},
    {[](fh_problem& p) { p.op = FH_QUANTISE, set_raw(p.dtype_kv, 9); },
     "dtype_kv is 9, which names no type. Use FH_E4M3 or FH_E5M2."},
    {[](fh_problem& p) { p.op = FH_APPEND, set_raw(p.dtype_norm, 9); },
     "dtype_norm is 9, which names no type. Use FH_USUAL for dtype, or FH_F32."},
    {[](fh_problem& p) { p.op = FH_APPEND, p.heads_q = 1, p.heads_kv = 2; },
     "heads_kv is 2 and heads_q is 1; heads_kv must divide heads_q. Use 1, or heads_q as heads_kv where there is no "
     "q."},
    {[](fh_problem& p) { p.dtype_kv = FH_F16; },
     "dtype_kv is f16 and dtype is bf16; k and v are of q's type, or of an 8-bit type with q in f16 or bf16. Set "
     "dtype_kv to FH_USUAL, or convert.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype = FH_E4M3, p.dtype_kv = FH_E5M2; },
     "dtype_kv is e5m2 and dtype is e4m3; k and v are of q's type, or of an 8-bit type with q in f16 or bf16. Set "
     "dtype_kv to FH_USUAL, or convert.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype = FH_F32, p.dtype_kv = FH_E4M3; },
     "dtype_kv is e4m3 and dtype is f32; k and v are of q's type, or of an 8-bit type with q in f16 or bf16. Set "
     "dtype_kv to FH_USUAL, or convert.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype = p.dtype_o = FH_E4M3; },
     "dtype_o is e4m3; o has no scale. Use FH_F16, FH_BF16 or FH_F32, and quantise o afterwards.", FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype_o = FH_F32; },
     "dtype_o is f32 and dtype is bf16; o is of another type only where k and v are 8-bit, or with accumulate. Set "
     "dtype_o to FH_USUAL; to merge calls, set accumulate in the first one too, with o = 0 and lse = -inf.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_BACKWARD, p.dtype_o = FH_F32; },
     "dtype_o is f32 and dtype is bf16; o is of another type only where k and v are 8-bit, or with accumulate. Set "
     "dtype_o to FH_USUAL; round o to the type of q, also where calls were merged in f32.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_APPEND, p.dtype_rotary = FH_F32; },
     "dtype_rotary is f32 and rotary_dim is 0; nothing is rotated. Set rotary_dim, or dtype_rotary to FH_USUAL."},
    // R10
    {[](fh_problem& p) { p.op = FH_BACKWARD, p.dtype = FH_E4M3; },
     "dtype is e4m3 and op is FH_BACKWARD; gradients are computed of f16, bf16 and f32. Convert q, k and v.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_BACKWARD, p.dtype_kv = FH_E4M3; },
     "dtype_kv is e4m3 and op is FH_BACKWARD; gradients are computed of f16, bf16 and f32. Set dtype_kv to FH_USUAL, "
     "and convert k and v to bf16.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype_kv = FH_E4M3, p.dim_qk = 72; },
     "dim_qk is 72; head dims of 8-bit k and v are multiples of 16 from 16 to 512. Pad q and k with zero columns to "
     "80 and set scale to 1/sqrt(72); the result does not change.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype_kv = FH_E5M2, p.dim_v = 528; },
     "dim_v is 528; head dims of 8-bit k and v are multiples of 16 from 16 to 512. Compute o in slices of v's "
     "columns, each with the same q and k.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype = FH_E4M3, p.dim_qk = 272; },
     "dim_qk is 272; head dims of 8-bit types are multiples of 16 from 16 to 256. Convert q to f16 or bf16: where "
     "only k and v have 8 bits there may be up to 512.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.dim_qk = 272; },
     "dim_qk is 272; head dims of 8-bit types are multiples of 16 from 16 to 256. An append writes k and v of up to "
     "512 columns in 8 bits; q keeps its 16 bits then.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.dim_qk = 72; },
     "dim_qk is 72; head dims of 8-bit types are multiples of 16 from 16 to 256. Pad q and k with zero columns to "
     "80; "
     "the attention to them has the scale 1/sqrt(72) then.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.dim_qk = p.dim_v = 72; },
     "dim_qk is 72 and dim_v is 72; head dims of 8-bit types are multiples of 16 from 16 to 256. Pad q and k with "
     "zero "
     "columns to 80, v to 80; the attention to them has the scale 1/sqrt(72) then.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.dim_v = 72; },
     "dim_v is 72; head dims of 8-bit types are multiples of 16 from 16 to 256. Pad v with zero columns to 80.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype = FH_E4M3, p.dim_v = 8; },
     "dim_v is 8; head dims of 8-bit types are multiples of 16 from 16 to 256. Pad v with zero columns to 16; o has "
     "16 then, the last ones zero.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.scale_rows = 128; },
     "scale_rows is 128 and k and v are bf16; only 8-bit types have scales. Set it to 0."},
    {[](fh_problem& p) { p.scale_v_columns = 1; },
     "scale_v_columns is 1 and v is bf16; only 8-bit types have scales. Set it to 0."},
    {[](fh_problem& p) { p.scale_tokens = 1; },
     "scale_tokens is 1 and k and v are bf16; only 8-bit types have scales. Set it to 0."},
    {[](fh_problem& p) { p.dtype_kv = FH_E4M3, p.scale_tokens = 1, p.scale_rows = 128; },
     "scale_tokens is 1 and scale_rows is 128; a row has its own scale or shares one. Set one of them to 0."},
    {[](fh_problem& p) { p.dtype_kv = FH_E4M3, p.scale_tokens = p.scale_v_columns = 1; },
     "scale_tokens is 1 and scale_v_columns is 1; v has a scale for each row or for each column. Set one of them to "
     "0."},
    {[](fh_problem& p) { p.dtype_kv = FH_E4M3, p.scale_tokens = p.smooth = 1; },
     "scale_tokens is 1 and smooth is 1; a scale for each row of k and v is not computed with smooth. Set one of "
     "them "
     "to 0.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype_kv = FH_E4M3, p.scale_tokens = p.invariant = 1; },
     "scale_tokens is 1 and invariant is 1; a scale for each row of k and v is not computed with invariant. Set one "
     "of "
     "them to 0.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.scale_tokens = 1; },
     "scale_tokens is 1 and op is FH_QUANTISE; what is quantised has scales of sequences, or with scale_rows of 128 "
     "rows. Set this to 0.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype = FH_E5M2, p.scale_rows = 64; },
     "scale_rows is 64; blocks of rows that share a scale have 128 rows. Use 128, or 0 for all rows.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.scale = -1; },
     "scale must be from 0 to 1.7014118e+38, but is -1. Use 0 for 1/sqrt(dim_qk), -0.0 for a scale of zero, or "
     "multiply q.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.scale = NAN; },
     "scale must be from 0 to 1.7014118e+38, but is nan. Use 0 for 1/sqrt(dim_qk), -0.0 for a scale of zero, or "
     "multiply q."},
    {[](fh_problem& p) { p.scale = 3e38f; },
     "scale must be from 0 to 1.7014118e+38, but is 3e+38. Use 0 for 1/sqrt(dim_qk), -0.0 for a scale of zero, or "
     "multiply q.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.scale = -0.0f; },
     "scale is set and op is FH_QUANTISE; it belongs to the attention of what is quantised. Set scale to 0 here."},
    {[](fh_problem& p) { p.softcap = INFINITY; },
     "softcap must be positive and finite, or 0 for none, but is inf. Use 0 or a positive number."},
    {[](fh_problem& p) { p.batch = huge; },
     "batch 9223372036854775807 x seq_q 100 x heads_q 8 is too large; the bytes of a tensor are counted in 64 bits. "
     "Set the sizes right."},
    {[](fh_problem& p) { p.seq_kv = huge / 1024; },
     "batch 2 x seq_kv 9007199254740991 x heads_q 8 is too large; the bytes of a tensor are counted in 64 bits. Set "
     "the sizes right."},
    {[](fh_problem& p) { p.varlen = 1, p.total_q = huge / 1024; },
     "total_q 9007199254740991 x heads_q 8 is too large; the bytes of a tensor are counted in 64 bits. Set the sizes "
     "right."},
    {[](fh_problem& p) { p.varlen = 1, p.total_kv = huge / 1024; },
     "total_kv 9007199254740991 x heads_q 8 is too large; the bytes of a tensor are counted in 64 bits. Set the "
     "sizes right."},
    {[](fh_problem& p) { p.dim_qk = 520; },
     "dim_qk is 520; head dims are multiples of 8 from 8 to 512. Set dim_qk within.", FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dim_qk = huge; },
     "dim_qk is 9223372036854775807; head dims are multiples of 8 from 8 to 512. Set dim_qk within.", FH_UNSUPPORTED},
    {[](fh_problem& p) { p.dtype = FH_E5M2, p.scale_rows = -1; },
     "scale_rows is -1; blocks of rows that share a scale have 128 rows. Use 128, or 0 for all rows."},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.invariant = 1; },
     "invariant is 1 and op is FH_QUANTISE; only the forward pass has it. Set op to FH_FORWARD, or invariant to 0."},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.scale_v_columns = 1; },
     "scale_v_columns is 1 and op is FH_QUANTISE; what is written has scales of rows, not of columns. "
     "Set it to 0.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.accumulate = 1, p.dtype_o = FH_BF16; },
     "dtype_o is bf16 and accumulate is 1; o is merged with what it holds in f32. Set dtype_o to FH_USUAL.",
     FH_UNSUPPORTED},
    {[](fh_problem& p) { p.gate = 1, p.accumulate = 2; },
     "accumulate is 2 and gate is set; each call would multiply all of o by the gate again, or add all of grad_gate "
     "again. Set gate to 0, and multiply o by the sigmoid after the last call."},
    {[](fh_problem& p) { p.op = FH_BACKWARD, p.gate = 1, p.accumulate = 1; },
     "accumulate is 1 and gate is set; each call would multiply all of o by the gate again, or add all of grad_gate "
     "again. Set gate to 0, and multiply o by the sigmoid after the last call, grad_o before the first one."},
    {[](fh_problem& p) { p.op = FH_QUANTISE, p.dtype_kv = FH_E4M3, p.gate = 1; },
     "gate is set and op is FH_QUANTISE; it belongs to the attention of what is quantised. Set gate to 0 here."},
    // A contradiction comes first.
    {[](fh_problem& p) { p.dim_qk = 81, p.softcap = -1; },
     "softcap must be positive and finite, or 0 for none, but is -1. Use 0 or a positive number."},
};

TEST(refusals, every_refusal_has_its_own_message) {
  std::set<std::string> messages;
  for (const BadProblem& bad : bad_problems) {
    fh_problem user = small_problem();
    bad.spoil(user);
    const auto p = Problem::from(user);
    ASSERT_FALSE(p) << "accepted, but expected: " << bad.message;
    EXPECT_EQ(p.failure().text, bad.message);
    EXPECT_EQ(p.failure().status, bad.status) << bad.message;
    EXPECT_TRUE(messages.insert(bad.message).second) << "twice: " << bad.message;
  }
}

struct BadLine {
  const char* line;
  const char* message;
};

constexpr char grammar[] =
    "A line is: fwd|bwd|quantise DTYPE [kv=DTYPE] [o=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN tkvN] "
    "[seqused] [causal|windowL,R] [chunk=N] [topleft] [scaleX] [softcapX] [sink] [alibi] [scalesN] [vcolumns] "
    "[tokenscales] [smooth] [rotate [seedN]] [det] [acc] [invariant] [maxlogit] [gate] [phase=PHASE] [pageN pagesN] "
    "[smsN]; or "
    "append DTYPE, of these [kv=DTYPE], sizes, varlen, seqused, det, tokenscales, pages and smsN, and [slots] "
    "[rotaryN rowsN [interleaved] [tables=DTYPE]] [positions] [norm [epsX] [weights=DTYPE]].";

const BadLine bad_lines[] = {
    {"", "\"\" is no problem. "},
    {"bkw bf16 b1", "\"bkw\" at offset 0: a line begins with its operation. Use fwd, bwd, quantise or append."},
    {"fwd fp8 b1",
     "\"fp8\" at offset 4: the second word is the type, which here is e4m3 or e5m2. Use f16, bf16, f32, e4m3 or "
     "e5m2."},
    {"fwd int8 b1",
     "\"int8\" at offset 4: the second word is the type. There is no int8. Use f16, bf16, f32, e4m3 or e5m2."},
    {"fwd nf4 b1", "\"nf4\" at offset 4: the second word is the type. Use f16, bf16, f32, e4m3 or e5m2."},
    {"fwd b1 hq1",
     "\"b1\" at offset 4: the second word is the type, which is missing. Use f16, bf16, f32, e4m3 or e5m2."},
    {"bf16 b1 hq1",
     "\"bf16\" at offset 0: a line begins with its operation, before the type. Use fwd, bwd, quantise or append."},
    {"fwd bf16 kv=fp8 b1",
     "\"kv=fp8\" at offset 9: a type is expected: kv=DTYPE, with bf16, e4m3 or e5m2. Write kv=e4m3 or kv=e5m2."},
    {"fwd bf16 kv=e4m3fn b1",
     "\"kv=e4m3fn\" at offset 9: a type is expected: kv=DTYPE, with bf16, e4m3 or e5m2. Write kv=e4m3."},
    {"quantise bf16 kv=fp8 b1",
     "\"kv=fp8\" at offset 14: a type is expected: kv=DTYPE, with e4m3 or e5m2. Write kv=e4m3 or kv=e5m2."},
    {"append f32 kv=fp8_e4m3 b1",
     "\"kv=fp8_e4m3\" at offset 11: a type is expected: kv=DTYPE, with f32, e4m3 or e5m2. Write kv=e4m3."},
    {"bwd f16 kv=fp8 b1", "\"kv=fp8\" at offset 8: a type is expected: kv=DTYPE, with f16."},
    {"fwd bf16 o=fp8 b1", "\"o=fp8\" at offset 9: a type is expected: o=DTYPE, with f16, bf16 or f32."},
    {"append bf16 tables=float b1",
     "\"tables=float\" at offset 12: a type is expected: tables=DTYPE, with bf16 or f32. Write tables=f32."},
    {"quantise fp8 b1", "\"fp8\" at offset 9: the second word is the type. Use f16, bf16 or f32."},
    {"fwd e4m3 of32 b1", "\"of32\" at offset 9: this word is unknown. "},
    {"fwd e4m3 b1 o", "\"o\" at offset 12: a type is expected: o=DTYPE, with f16, bf16 or f32."},
    {"fwd bf16 b1 hq1 b2", "\"b2\" at offset 16: b is there already, at offset 9. Leave one of them."},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 casual",
     "\"casual\" at offset 34: this word is unknown. Did you mean causal? docs/options.md has all words."},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 causal1",
     "\"causal1\" at offset 34: this word is unknown. Did you mean causal? docs/options.md has all words."},
    {"fwd bf16 b1 hq", "\"hq\" at offset 12: a whole number is expected after the letters: hqN."},
    {"fwd bf16 b1 hq4k", "\"hq4k\" at offset 12: a whole number is expected after the letters: hqN."},
    {"fwd bf16 b1, hq4", "\"b1,\" at offset 9: a whole number is expected after the letters: bN. Write b1."},
    {"fwd bf16 b=1", "\"b=1\" at offset 9: a whole number is expected after the letters: bN. Write b1."},
    {"fwd bf16 b1 softcap=3e1",
     "\"softcap=3e1\" at offset 12: a number is expected after the letters: softcapX. Write softcap3e1."},
    {"fwd bf16 b1 chunk64", "\"chunk64\" at offset 12: a number of keys is expected: chunk=N. Write chunk=64."},
    {"fwd bf16 b1 window=4,0",
     "\"window=4,0\" at offset 12: two numbers are expected: windowLEFT,RIGHT in keys, -1 for all on that side. "
     "Write window4,0."},
    {"fwd bf16 b99999999999999999999",
     "\"b99999999999999999999\" at offset 9: this number is out of range. Use a "
     "smaller one."},
    {"fwd bf16 b1 scale1e99",
     "\"scale1e99\" at offset 12: this number is out of range. Use 0, or one from 1.4e-45 to 3.4e38."},
    {"fwd bf16 b1 scale1e-50",
     "\"scale1e-50\" at offset 12: this number is out of range. Use 0, or one from 1.4e-45 to 3.4e38."},
    {"fwd bf16 b1 softcap1e-50",
     "\"softcap1e-50\" at offset 12: this number is out of range. Use 0, or one from 1.4e-45 to 3.4e38."},
    {"fwd bf16 b1 window5",
     "\"window5\" at offset 12: two numbers are expected: windowLEFT,RIGHT in keys, -1 for all "
     "on that side."},
    {"fwd bf16 b1 hq1 hkv1 sq1 d64", "skvN is missing. Add skv and its number."},
    {"fwd bf16 b1 hq1 d64", "hkvN, sqN and skvN are missing. Add each with its number."},
    {"append bf16 b1 hq1 hkv1 slots", "sqN and dN are missing. Add each with its number."},  // with a pool skv is 0
    {"append bf16 b1 hq1 hkv1 sq1 d64 slots",
     "slots is there without the rows of the cache. Add pageN and pagesN of the pool, or skvN where the cache is not "
     "in pages."},
    {"append bf16 b1 hq1 hkv1 sq1 d64 slots page16",
     "pageN and pagesN go together, rows of a page and pages of the pool. Add the one that is missing."},
    {"append bf16 b1 hq1 hkv1 sq1 d64 page16 pages4", "skvN is missing. Add skv and its number."},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 varlen tq3",
     "varlen is there without tqN or tkvN. Add the rows of the packed q "
     "and of the packed k and v."},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 causal window3,3",
     "causal and window are both there. causal is window-1,0: leave one of them."},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 window-3,3",
     "window_left is -3; it counts keys. Use FH_ALL (-1) for all of them."},  // the struct's own rules hold too
};

TEST(refusals, every_bad_line_has_its_own_message_with_the_offset) {
  for (const BadLine& bad : bad_lines) {
    const auto p = Problem::parse(bad.line);
    ASSERT_FALSE(p) << bad.line;
    std::string expected = bad.message;
    if (expected.back() == ' ') expected += grammar;
    EXPECT_EQ(p.failure().text, expected) << bad.line;
    EXPECT_EQ(p.failure().status, FH_INVALID_PROBLEM);
  }
}

}  // namespace
}  // namespace froghopper
