// The pointwise functions on the CPU, as far as torch has no operator that can be called on plain memory: those that
// are only comparisons and products, and what the others do before and after an exponential. Each formula rounds
// where torch's does, so that the values are torch's bit for bit.
#pragma once

#include "codec/functions.h"
#include "codec/stepwise.h"

namespace actcore::ACTCORE_ISA {

template <Function function, class E, class T = compute_t<E>>
void simple_chunk(const E* x, int64_t count, T a, T b, E* out) {
  for (int64_t i = 0; i < count; ++i)
    actcore::store(out + i, actcore::simple_value<function, E>(actcore::load(x[i]), a, b));
}

// The argument of the exponential: times the inner coefficient of elu, beta, 1.702 or 1.
template <class E>
void function_before(const Stepwise& args, int64_t begin, int64_t count, void* middle) {
  using T = compute_t<E>;
  const E* x = static_cast<const E*>(args.codes.input) + begin;
  T* to = static_cast<T*>(middle);
  T factor = 1;
  if (args.function == Function::kSoftplus) factor = static_cast<T>(args.parameters[0]);
  if (args.function == Function::kElu || args.function == Function::kCelu || args.function == Function::kSelu) {
    factor = static_cast<T>(elu_coefficients(args.function, args.parameters[0]).inner);
  }
  if (args.function == Function::kQuickGelu) {
    for (int64_t i = 0; i < count; ++i) to[i] = actcore::rounded<E>(actcore::load(x[i]) * static_cast<T>(1.702));
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = actcore::load(x[i]) * factor;
}

template <class E>
void function_after(const Stepwise& args, int64_t begin, int64_t count, const void* middle) {
  using T = compute_t<E>;
  const E* x = static_cast<const E*>(args.codes.input) + begin;
  E* out = static_cast<E*>(args.output) + begin;
  const T* m = static_cast<const T*>(middle);
  const T a = static_cast<T>(args.parameters[0]), b = static_cast<T>(args.parameters[1]);
  switch (args.function) {
    case Function::kRelu: return simple_chunk<Function::kRelu>(x, count, a, b, out);
    case Function::kLeakyRelu: return simple_chunk<Function::kLeakyRelu>(x, count, a, b, out);
    case Function::kThreshold: return simple_chunk<Function::kThreshold>(x, count, a, b, out);
    case Function::kHardtanh: return simple_chunk<Function::kHardtanh>(x, count, a, b, out);
    case Function::kRelu6: return simple_chunk<Function::kRelu6>(x, count, a, b, out);
    case Function::kHardshrink: return simple_chunk<Function::kHardshrink>(x, count, a, b, out);
    case Function::kSoftshrink: return simple_chunk<Function::kSoftshrink>(x, count, a, b, out);
    case Function::kSoftsign: return simple_chunk<Function::kSoftsign>(x, count, a, b, out);
    case Function::kSquaredRelu: return simple_chunk<Function::kSquaredRelu>(x, count, a, b, out);
    case Function::kElu:
    case Function::kCelu:
    case Function::kSelu: {
      const EluCoefficients given = elu_coefficients(args.function, args.parameters[0]);
      const T negative = static_cast<T>(given.negative), positive = static_cast<T>(given.positive);
      for (int64_t i = 0; i < count; ++i) {
        const T value = actcore::load(x[i]);
        actcore::store(out + i, value > T(0) ? value * positive : m[i] * negative);
      }
      return;
    }
    case Function::kSoftplus:
      for (int64_t i = 0; i < count; ++i) {
        const T value = actcore::load(x[i]);
        actcore::store(out + i, value * a > b ? value : m[i] / a);
      }
      return;
    case Function::kTanhshrink:
      for (int64_t i = 0; i < count; ++i) actcore::store(out + i, actcore::load(x[i]) - actcore::rounded<E>(m[i]));
      return;
    case Function::kQuickGelu:
      for (int64_t i = 0; i < count; ++i) actcore::store(out + i, actcore::load(x[i]) * actcore::rounded<E>(m[i]));
      return;
    default: return;  // torch's operator wrote the output itself
  }
}

}  // namespace actcore::ACTCORE_ISA
