// The pointwise functions on CUDA, in the form in which torch's CUDA kernels compute them.
#pragma once

#include <cuda_runtime.h>

#include "codec/functions.h"

namespace actcore::cuda {

__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float expm1_of(float x) { return expm1f(x); }
__device__ inline double expm1_of(double x) { return expm1(x); }
__device__ inline float log1p_of(float x) { return log1pf(x); }
__device__ inline double log1p_of(double x) { return log1p(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float erf_of(float x) { return erff(x); }
__device__ inline double erf_of(double x) { return erf(x); }

template <class T>
__device__ T sigmoid_of(T x) {
  return T(1) / (T(1) + exp_of(-x));
}

// `a` and `b` are the parameters.
template <Function function, class E, class T>
__device__ T value_of(T x, T a, T b) {
  if constexpr (function == Function::kGelu) return x * T(0.5) * (T(1) + erf_of(x * T(0.70710678118654752440)));
  if constexpr (function == Function::kGeluTanh) {
    const T inner = T(0.79788456080286535588) * (x + T(0.044715) * (x * x * x));
    return T(0.5) * x * (T(1) + tanh_of(inner));
  }
  if constexpr (function == Function::kSilu) return x / (T(1) + exp_of(-x));
  if constexpr (function == Function::kSigmoid) return sigmoid_of(x);
  if constexpr (function == Function::kMish) return x * tanh_of(log1p_of(exp_of(x)));
  if constexpr (function == Function::kTanh) return tanh_of(x);
  if constexpr (function == Function::kTanhshrink) return x - rounded<E>(tanh_of(x));
  if constexpr (function == Function::kHardsigmoid) return clamp(x + T(3), T(0), T(6)) * T(1.0 / 6);
  if constexpr (function == Function::kHardswish) return x * clamp(x + T(3), T(0), T(6)) * T(1.0 / 6);
  if constexpr (function == Function::kLogsigmoid) {
    return (x < T(0) ? x : T(0)) - log1p_of(exp_of(x < T(0) ? x : -x));
  }
  if constexpr (function == Function::kSoftplus) return x * a > b ? x : log1p_of(exp_of(x * a)) / a;
  if constexpr (function == Function::kQuickGelu) return x * rounded<E>(sigmoid_of(rounded<E>(x * T(1.702))));
  if constexpr (function == Function::kElu || function == Function::kCelu || function == Function::kSelu) {
    const EluCoefficients given = elu_coefficients(function, static_cast<double>(a));
    return x > T(0) ? x * T(given.positive) : expm1_of(x * T(given.inner)) * T(given.negative);
  }
  return simple_value<function, E>(x, a, b);
}

}  // namespace actcore::cuda
