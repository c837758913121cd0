// SPDX-License-Identifier: Apache-2.0
// problem: the rows of the table of options that only an append problem has. option_table.cpp puts them before
// the last one of the others.
#pragma once
#include <array>

#include "src/problem/options.hpp"

namespace froghopper {

inline constexpr const char* no_new_rows =
    "it is of rows that are written to a cache. Set op to FH_APPEND, or this to 0.";
inline constexpr const char* rotary_support = "rotary embedding, interleaved, positions, tables in fp32";

inline constexpr std::array append_options{
    Option{.name = "slots",
           .field = Place{&fh_problem::slots, &Problem::slots},
           .ops = of_append,
           .word = "slots",
           .elsewhere = no_new_rows,
           .support = "slots (slot_mapping)",
           .sentence = "slot_mapping says where rows go, whatever their sequence"},
    Option{.name = "rotary_dim",
           .field = Place{&fh_problem::rotary_dim, &Problem::rotary_dim},
           .ops = of_append,
           .word = "rotary",
           .least = 0,
           .below = "it counts columns of q and k. Use 0 for none.",
           .elsewhere = no_new_rows,
           .range = "an even number up to dim_qk; on a GPU a multiple of 16",
           .support = "rotary embedding of a multiple of 16 columns",
           .sentence = "columns of q and k that are rotated, the first ones; 0 is none"},
    Option{.name = "rotary_rows",
           .field = Place{&fh_problem::rotary_rows, &Problem::rotary_rows},
           .ops = of_append,
           .word = "rows",
           .least = 0,
           .below = "it counts the positions that rotary_cos and rotary_sin know. Use 0 where nothing is rotated.",
           .elsewhere = no_new_rows,
           .range = "1 to 2^40; 0 without rotary_dim",
           .sentence = "positions that rotary_cos and rotary_sin know, from 0 on"},
    Option{.name = "rotary_interleaved",
           .field = Place{&fh_problem::rotary_interleaved, &Problem::rotary_interleaved},
           .ops = of_append,
           .word = "interleaved",
           .elsewhere = no_new_rows,
           .support = rotary_support,
           .sentence = "columns 2i and 2i + 1 are a pair, instead of i and i + rotary_dim / 2"},
    Option{.name = "dtype_rotary",
           .field = Place{&fh_problem::dtype_rotary, &Problem::dtype_rotary},
           .ops = of_append,
           .word = "tables=",
           .shown = [](const Problem& p) { return p.rotary_dim > 0 && p.dtype_rotary != p.dtype; },
           .usual = "dtype",
           .range = "FH_USUAL, FH_F32",
           .support = rotary_support,
           .sentence = "the type of rotary_cos and rotary_sin"},
    Option{.name = "positions",
           .field = Place{&fh_problem::positions, &Problem::positions},
           .ops = of_append,
           .word = "positions",
           .elsewhere = no_new_rows,
           .support = rotary_support,
           .sentence = "positions says where rows are in their sequences; else that follows from where they go"},
    Option{.name = "norm",
           .field = Place{&fh_problem::norm, &Problem::norm},
           .ops = of_append,
           .word = "norm",
           .elsewhere = no_new_rows,
           .support = "RMS norm of q and k (norm)",
           .sentence = "rows of q and k are divided by the root of their mean square before they are rotated"},
    Option{.name = "norm_epsilon",
           .field = Place{&fh_problem::norm_epsilon, &Problem::norm_epsilon},
           .ops = of_append,
           .word = "eps",
           .elsewhere = no_new_rows,
           .range = "0 or more; 0 without norm",
           .sentence = "is added to that mean square"},
    Option{.name = "dtype_norm",
           .field = Place{&fh_problem::dtype_norm, &Problem::dtype_norm},
           .ops = of_append,
           .word = "weights=",
           .shown = [](const Problem& p) { return p.norm && p.dtype_norm != p.dtype; },
           .usual = "dtype",
           .range = "FH_USUAL, FH_F32",
           .sentence = "the type of norm_q and norm_k"},
    Option{.name = "scale_tokens",
           .field = Place{&fh_problem::scale_tokens, &Problem::scale_tokens},
           .ops = of_forward | of_append,
           .of_8_bits = true,
           .word = "tokenscales",
           .elsewhere = "what is quantised has scales of sequences, or with scale_rows of 128 rows. Set this to 0.",
           .not_computed = of_quantise,
           .support = "a scale for each row and head (scale_tokens)",
           .sentence =
               "each row of an 8-bit cache has scales of its own, which append writes; not with smooth or invariant"},
};

}  // namespace froghopper
