// Division by a number that the host knows. A GPU has no instruction for division: this is three of 32 bits, or some ten
// where numbers have 64, for which the compiler would call a function.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/intrinsics.cuh"

namespace actcore::cuda {

template <class Int>
class Divisor;

// Numerators and divisors below 2^31 (Granlund and Montgomery, 1994): n / d is (n + floor(n * m / 2^32)) >> s, where
// 2^s is the least power of two that is not below d, and m = floor(2^32 * (2^s - d) / d) + 1.
template <>
class Divisor<uint32_t> {
 public:
  explicit Divisor(int64_t by) : by_(static_cast<uint32_t>(by)), shift_(0) {
    while ((uint64_t{1} << shift_) < by_) ++shift_;
    factor_ = static_cast<uint32_t>((((uint64_t{1} << shift_) - by_) << 32) / by_ + 1);
  }
  __device__ uint32_t quotient(uint32_t n) const {
    return (n + static_cast<uint32_t>(uint64_t{n} * factor_ >> 32)) >> shift_;
  }
  __device__ uint32_t remainder(uint32_t n, uint32_t quotient) const { return n - quotient * by_; }

 private:
  uint32_t by_;
  uint32_t factor_;
  int shift_;
};

// The same below 2^62: with m = floor(2^(63 + s) / d) + 1, which 64 bits hold, n / d is floor(2 * n * m / 2^64) >> s.
template <>
class Divisor<int64_t> {
 public:
  explicit Divisor(int64_t by) : by_(by), shift_(0) {
    while ((int64_t{1} << shift_) < by_) ++shift_;
    factor_ =
        static_cast<uint64_t>((static_cast<unsigned __int128>(1) << (63 + shift_)) / static_cast<uint64_t>(by_)) + 1;
  }
  __device__ int64_t quotient(int64_t n) const {
    return static_cast<int64_t>(multiply_high(2 * static_cast<uint64_t>(n), factor_) >> shift_);
  }
  __device__ int64_t remainder(int64_t n, int64_t quotient) const { return n - quotient * by_; }
  __device__ int64_t by() const { return by_; }

 private:
  int64_t by_;
  uint64_t factor_;
  int shift_;
};

}  // namespace actcore::cuda
