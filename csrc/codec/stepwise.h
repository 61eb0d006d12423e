// Pointwise functions whose backward needs a few bits an element: the index of the interval that x lies in. Backward
// multiplies by that interval's level, a step function in place of the derivative (Novikov et al., "Few-bit backward:
// quantized gradients of activation functions for memory footprint reduction", ICML 2023).
#pragma once

#include <cmath>
#include <cstdint>

#include "codec/arguments.h"
#include "codec/bits.h"
#include "codec/group_affine.h"
#include "codec/guard.h"

namespace actcore {

enum class Function {
  kRelu,
  kLeakyRelu,
  kThreshold,
  kHardsigmoid,
  kHardtanh,
  kRelu6,
  kHardshrink,
  kSoftshrink,
  kCelu,
  kElu,
  kGelu,
  kGeluTanh,
  kHardswish,
  kLogsigmoid,
  kMish,
  kSelu,
  kSigmoid,
  kSilu,
  kSoftplus,
  kSoftsign,
  kTanh,
  kTanhshrink,
  kQuickGelu,
  kSquaredRelu,
};

// A function's name, and the defaults of its parameters: as many of them as it has.
constexpr int kMaxParameters = 2;

struct FunctionFacts {
  const char* name;
  Function function;
  int parameters;
  double defaults[kMaxParameters];
};

constexpr FunctionFacts kFunctions[] = {
    {"relu", Function::kRelu, 0, {}},
    {"leaky_relu", Function::kLeakyRelu, 1, {0.01}},  // slope below 0
    {"threshold", Function::kThreshold, 2, {0, 0}},   // threshold, value below it
    {"hardsigmoid", Function::kHardsigmoid, 0, {}},
    {"hardtanh", Function::kHardtanh, 2, {-1, 1}},  // lowest and highest value
    {"relu6", Function::kRelu6, 0, {}},
    {"hardshrink", Function::kHardshrink, 1, {0.5}},  // half the width that becomes 0
    {"softshrink", Function::kSoftshrink, 1, {0.5}},  // the same
    {"celu", Function::kCelu, 1, {1}},                // alpha
    {"elu", Function::kElu, 1, {1}},                  // alpha
    {"gelu", Function::kGelu, 0, {}},
    {"gelu_tanh", Function::kGeluTanh, 0, {}},
    {"hardswish", Function::kHardswish, 0, {}},
    {"logsigmoid", Function::kLogsigmoid, 0, {}},
    {"mish", Function::kMish, 0, {}},
    {"selu", Function::kSelu, 0, {}},
    {"sigmoid", Function::kSigmoid, 0, {}},
    {"silu", Function::kSilu, 0, {}},
    {"softplus", Function::kSoftplus, 2, {1, 20}},  // beta, threshold
    {"softsign", Function::kSoftsign, 0, {}},
    {"tanh", Function::kTanh, 0, {}},
    {"tanhshrink", Function::kTanhshrink, 0, {}},
    {"quick_gelu", Function::kQuickGelu, 0, {}},  // x * sigmoid(1.702 x)
    {"squared_relu", Function::kSquaredRelu, 0, {}},
};

// The coefficients of elu(x) = x > 0 ? x * positive : expm1(x * inner) * negative, which celu and selu are too.
struct EluCoefficients {
  double negative;
  double positive;
  double inner;
};

ACTCORE_FN EluCoefficients elu_coefficients(Function function, double alpha) {
  if (function == Function::kSelu) {
    constexpr double kAlpha = 1.6732632423543772848170429916717, kScale = 1.0507009873554804934193349852946;
    return {kAlpha * kScale, kScale, 1};
  }
  return {alpha, 1, function == Function::kCelu ? 1 / alpha : 1};
}

// Elements are taken in memory order. Boundaries and levels have the type that elements are computed in.
struct StepwiseCodes {
  const void* input;
  ElementType type;
  int64_t numel;
  const void* boundaries;
  int boundary_count;  // below 2^bits
  int bits;
  bool even;       // the boundaries are of the magnitude of x
  uint8_t* codes;  // packed_bytes(numel, bits)
  Guard guard;
  uint8_t* guards;  // stretch_count(numel), or null without a guard
};

struct Stepwise {
  StepwiseCodes codes;
  Function function;
  double parameters[kMaxParameters];
  void* output;
};

struct StepwiseBackward {
  const void* gradient;
  const uint8_t* codes;
  ElementType type;
  int64_t numel;
  const void* levels;
  int level_count;  // at most 2^bits
  int bits;
  const uint8_t* guards;  // stretch_count(numel), or null without a guard
  void* output;           // gradient * level[code]; NaN for a code that has no level, and for a guarded stretch
};

ACTCORE_FN float magnitude(float x) { return fabsf(x); }
ACTCORE_FN double magnitude(double x) { return fabs(x); }

// The index of x's interval: how many boundaries are not above x. NaN is above all of them, as in torch's ReLU, whose
// gradient passes there.
template <class T>
ACTCORE_FN int interval_of(T x, const T* boundaries, int count) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (x < boundaries[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace actcore
