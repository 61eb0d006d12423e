// What the processor does in one instruction and C++ says in many, or leaves open. Beside each instruction stands the same
// function in C++, for compilers of the host.
//
// All but the permutation need sm_80. Minima and maxima are NaN where an argument is; which NaN is left open.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "codec/float16.h"

namespace actcore::cuda {

// Bytes of `low` (0 to 3) and `high` (4 to 7), chosen by the four low digits of `selector`, the first for the lowest byte.
__device__ inline uint32_t choose_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, selector);
#else
  const uint64_t both = low | static_cast<uint64_t>(high) << 32;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 7u;
    chosen |= static_cast<uint32_t>(both >> (8 * from) & 0xFFu) << (8 * i);
  }
  return chosen;
#endif
}

// The upper half of a product.
__device__ inline uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

__device__ inline float min_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
#else
  return a < b || a != a ? a : b;
#endif
}

__device__ inline float max_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float greatest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greatest) : "f"(a), "f"(b));
  return greatest;
#else
  return a > b || a != a ? a : b;
#endif
}

// There is no such instruction.
__device__ inline double min_or_nan(double a, double b) { return a < b || a != a ? a : b; }
__device__ inline double max_or_nan(double a, double b) { return a > b || a != a ? a : b; }

// Two elements of 16 bits in a word, the first in its low half.
template <class E>
struct Pair;

#if defined(__CUDA_ARCH__)
#define ACTCORE_PAIR_BOUND(BOUND, E, INSTRUCTION)                    \
  __device__ static uint32_t BOUND(uint32_t a, uint32_t b) {         \
    uint32_t result;                                                 \
    asm(INSTRUCTION " %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b)); \
    return result;                                                   \
  }
#define ACTCORE_PACK_ASM(INSTRUCTION, FIRST, SECOND)                        \
  uint32_t result;                                                          \
  asm(INSTRUCTION " %0, %1, %2;" : "=r"(result) : "f"(SECOND), "f"(FIRST)); \
  return result
#else
// The halves of `a` and `b` through `of_floats`, which gives one of its arguments.
template <class E, class Choose>
uint32_t halves(uint32_t a, uint32_t b, const Choose& of_floats) {
  const float first = of_floats(Pair<E>::first(a), Pair<E>::first(b));
  const float second = of_floats(Pair<E>::second(a), Pair<E>::second(b));
  return Pair<E>::pack(first, second);
}
#define ACTCORE_PAIR_BOUND(BOUND, E, INSTRUCTION)                                  \
  __device__ static uint32_t BOUND(uint32_t a, uint32_t b) {                       \
    return halves<E>(a, b, [](float x, float y) { return BOUND##_or_nan(x, y); }); \
  }
#endif

template <>
struct Pair<BFloat16> {
  __device__ static float first(uint32_t pair) { return float_of(pair << 16); }
  __device__ static float second(uint32_t pair) { return float_of(pair & 0xFFFF0000u); }

  // Rounded to nearest, ties to even.
  __device__ static uint32_t pack(float first, float second) {
#if defined(__CUDA_ARCH__)
    ACTCORE_PACK_ASM("cvt.rn.bf16x2.f32", first, second);
#else
    return to_bfloat16(first).bits | static_cast<uint32_t>(to_bfloat16(second).bits) << 16;
#endif
  }
  ACTCORE_PAIR_BOUND(min, BFloat16, "min.NaN.bf16x2")
  ACTCORE_PAIR_BOUND(max, BFloat16, "max.NaN.bf16x2")
};

template <>
struct Pair<Half> {
  __device__ static float first(uint32_t pair) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(pair));
    return value;
#else
    return to_float(Half{static_cast<uint16_t>(pair)});
#endif
  }
  __device__ static float second(uint32_t pair) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(value) : "r"(pair));
    return value;
#else
    return to_float(Half{static_cast<uint16_t>(pair >> 16)});
#endif
  }

  __device__ static uint32_t pack(float first, float second) {
#if defined(__CUDA_ARCH__)
    ACTCORE_PACK_ASM("cvt.rn.f16x2.f32", first, second);
#else
    return to_half(first).bits | static_cast<uint32_t>(to_half(second).bits) << 16;
#endif
  }
  ACTCORE_PAIR_BOUND(min, Half, "min.NaN.f16x2")
  ACTCORE_PAIR_BOUND(max, Half, "max.NaN.f16x2")
};

#undef ACTCORE_PAIR_BOUND
#undef ACTCORE_PACK_ASM

}  // namespace actcore::cuda
