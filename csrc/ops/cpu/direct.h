// Lists operators of the CPU for ``actcore_cpu_kernels``.
#pragma once

#include <tuple>

#include "ops/checks.h"
#include "ops/direct.h"

namespace actcore::ops {

template <class T>
constexpr char letter_of = 0;
template <>
inline constexpr char letter_of<Tensor> = 't';
template <>
inline constexpr char letter_of<int64_t> = 'i';
template <>
inline constexpr char letter_of<bool> = 'b';
template <>
inline constexpr char letter_of<double> = 'd';
template <>
inline constexpr char letter_of<ScalarType> = 's';

template <class Function>
struct Signature;
template <class Result, class... Arguments>
struct Signature<Result (*)(Arguments...)> {
  static_assert((letter_of<std::remove_cvref_t<Arguments>> && ...), "an argument of a kind that has no letter");
  static constexpr char letters[] = {letter_of<std::remove_cvref_t<Arguments>>..., '\0'};
  static constexpr uint64_t results = 1;
};
template <class... Results, class... Arguments>
struct Signature<std::tuple<Results...> (*)(Arguments...)> : Signature<Tensor (*)(Arguments...)> {
  static constexpr uint64_t results = sizeof...(Results);
};

template <class... Arguments>
struct Signature<void (*)(Arguments...)> : Signature<Tensor (*)(Arguments...)> {
  static constexpr uint64_t results = 0;
};

// Made while the library is loaded, by one thread.
inline const Direct* directs = nullptr;

template <class Function>
struct Listed {
  Listed(const char* name, Direct::Call call)
      : direct{name, call, Signature<Function>::letters, Signature<Function>::results, directs} {
    directs = &direct;
  }
  const Direct direct;
};

}  // namespace actcore::ops

// Lists a function that is the CPU's implementation of an operator.
#define ACTCORE_DIRECT(name, function) \
  static const actcore::ops::Listed<decltype(function)> direct_##name(#name, TORCH_BOX(function))
