// Stochastic rounding to levels: checks, the output tensor, and what the kernels are told.
#pragma once

#include <optional>
#include <string>

#include "codec/levels.h"
#include "ops/noise.h"
#include "ops/stepwise.h"

namespace actcore::ops {

struct LevelCodesCall {
  LevelCodes args;
  Tensor codes;
};

inline LevelCodesCall level_codes_call(const Tensor& derivative, const Tensor& input, const Tensor& levels,
                                       int64_t bits, int64_t seed, int64_t stream, const std::optional<Tensor>& draw,
                                       const std::string& guard) {
  const char* op = "level_codes";
  require_bits(op, bits);
  require_contiguous(op, "derivative", derivative);
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "derivative", derivative.scalar_type());
  require(input.scalar_type() == derivative.scalar_type(), op, "input must have the dtype of derivative");
  require(input.numel() == derivative.numel(), op, "input must have as many elements as derivative, ",
          derivative.numel(), ", got ", input.numel());
  require(input.device() == derivative.device(), op, "input must be on the device of derivative");
  require_table(op, "levels", levels, derivative);
  require(levels.numel() >= 2 && levels.numel() <= (int64_t{1} << bits), op,
          "levels must be from 2 to 2**bits = ", int64_t{1} << bits, ", got ", levels.numel());
  const int64_t* added = draw_of(op, input, draw);
  const Guard looked_for = guard_of(op, guard);
  const bool guarded = looked_for != Guard::kNone;
  const int width = static_cast<int>(bits);
  Tensor codes = make_bytes(input, guarded_bytes(input.numel(), width, guarded));
  auto* bytes = static_cast<uint8_t*>(codes.mutable_data_ptr());
  return {{derivative.const_data_ptr(), input.const_data_ptr(), type, input.numel(), levels.const_data_ptr(),
           static_cast<int>(levels.numel()), width, static_cast<uint64_t>(seed), static_cast<uint64_t>(stream), added,
           bytes, looked_for, guarded ? bytes + packed_bytes(input.numel(), width) : nullptr},
          codes};
}

}  // namespace actcore::ops
