// The key of the noise as an operator gets it: two integers, either of which may be a tensor of one integer.
#pragma once

#include <optional>

#include "ops/checks.h"

namespace actcore::ops {

inline NoiseKey noise_key(const char*, const Tensor&, int64_t seed, int64_t stream) {
  return {static_cast<uint64_t>(seed), static_cast<uint64_t>(stream), nullptr, nullptr};
}

inline const int64_t* key_part(const char* op, const char* name, const Tensor& input, const Tensor& part) {
  require(part.scalar_type() == ScalarType::Long, op, name, " must be int64");
  require(part.numel() == 1, op, name, " must have one element, got ", part.numel());
  require(part.device() == input.device(), op, name, " must be on the input's device");
  return static_cast<const int64_t*>(part.const_data_ptr());
}

inline NoiseKey noise_key(const char* op, const Tensor& input, const Tensor& seed, const Tensor& stream) {
  return {0, 0, key_part(op, "seed", input, seed), key_part(op, "stream", input, stream)};
}

inline NoiseKey noise_key(const char* op, const Tensor& input, int64_t seed, const Tensor& stream) {
  return {static_cast<uint64_t>(seed), 0, nullptr, key_part(op, "stream", input, stream)};
}

// What is added to a seed, where an operator was given it: one integer in the input's memory.
inline const int64_t* draw_of(const char* op, const Tensor& input, const std::optional<Tensor>& draw) {
  if (!draw.has_value()) return nullptr;
  require(draw->scalar_type() == ScalarType::Long && draw->numel() == 1, op, "draw must be one int64, got ",
          draw->numel(), " elements; make it with torch.randint(..., (1,), device=input.device)");
  require(draw->device() == input.device(), op, "draw and input must be on one device");
  return static_cast<const int64_t*>(draw->const_data_ptr());
}

}  // namespace actcore::ops
