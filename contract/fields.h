// SPDX-License-Identifier: Apache-2.0
// contract: what NVRTC lacks of <type_traits>: same, and Pick for std::conditional_t. And how many scalars a struct is
// made of, so that a list of its fields can prove that it is whole.
#pragma once

namespace froghopper {

// Becomes any number or enum, and no struct, so that braces go on into the fields of a nested struct.
struct AnyScalar {
  template <class T>
  requires(!__is_class(T)) constexpr operator T() const;
};

template <class Struct, class... Before>
constexpr int scalars_in() {
  if constexpr (requires { Struct{Before{}..., AnyScalar{}}; })
    return scalars_in<Struct, Before..., AnyScalar>();
  else
    return sizeof...(Before);
}

template <class A, class B>
constexpr bool same = false;  // NVRTC knows neither std nor __is_same
template <class A>
constexpr bool same<A, A> = true;

template <bool First, class A, class B>
struct PickOf {
  using type = A;
};
template <class A, class B>
struct PickOf<false, A, B> {
  using type = B;
};
template <bool First, class A, class B>
using Pick = typename PickOf<First, A, B>::type;

}  // namespace froghopper
