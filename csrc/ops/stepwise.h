// The stepwise family: checks, output tensors, and what the kernels are told.
#pragma once

#include <algorithm>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "codec/stepwise.h"
#include "ops/outputs.h"

namespace actcore::ops {

// Boundaries and levels have the type that elements are computed in.
inline void require_table(const char* op, const char* name, const Tensor& table, const Tensor& elements) {
  require_contiguous(op, name, table);
  const bool wide = elements.scalar_type() == ScalarType::Double;
  require(table.scalar_type() == (wide ? ScalarType::Double : ScalarType::Float), op, name, " must be ",
          wide ? "float64 for elements of float64" : "float32 for elements of at most 32 bits", "; cast with .to()");
  require(table.dim() == 1, op, name, " must have one dimension, got ", table.dim());
  require(table.device() == elements.device(), op, name, " must be on the device of the elements");
}

inline Guard guard_of(const char* op, const std::string& name) {
  require(name == "none" || name == "nan" || name == "nonfinite", op,
          "guard must be 'none', 'nan' or 'nonfinite', got '", name, "'");
  return name == "none" ? Guard::kNone : name == "nan" ? Guard::kNan : Guard::kNonfinite;
}

// Codes, and behind them the bytes of the guard.
inline int64_t guarded_bytes(int64_t numel, int bits, bool guarded) {
  return packed_bytes(numel, bits) + (guarded ? stretch_count(numel) : 0);
}

struct StepwiseCodesCall {
  StepwiseCodes args;
  Tensor codes;
};

inline StepwiseCodesCall stepwise_codes_call(const char* op, const Tensor& input, const Tensor& boundaries,
                                             int64_t bits, bool even, const std::string& guard) {
  require_bits(op, bits);
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  require_table(op, "boundaries", boundaries, input);
  require(boundaries.numel() < (int64_t{1} << bits), op,
          "boundaries must be at most 2**bits - 1 = ", (int64_t{1} << bits) - 1, ", got ", boundaries.numel(),
          "; use more bits");
  const Guard looked_for = guard_of(op, guard);
  const bool guarded = looked_for != Guard::kNone;
  const int width = static_cast<int>(bits);
  Tensor codes = make_bytes(input, guarded_bytes(input.numel(), width, guarded));
  auto* bytes = static_cast<uint8_t*>(codes.mutable_data_ptr());
  return {
      {input.const_data_ptr(), type, input.numel(), boundaries.const_data_ptr(), static_cast<int>(boundaries.numel()),
       width, even, bytes, looked_for, guarded ? bytes + packed_bytes(input.numel(), width) : nullptr},
      codes};
}

struct FunctionNames {};  // in an error's text, written only where there is one

inline std::ostream& operator<<(std::ostream& text, FunctionNames) {
  const char* separator = "";
  for (const FunctionFacts& known : kFunctions) {
    text << separator << known.name;
    separator = ", ";
  }
  return text;
}

struct StepwiseCall {
  Stepwise args;
  Tensor output;
  Tensor codes;
};

inline StepwiseCall stepwise_call(const Tensor& input, const std::string& function,
                                  const std::vector<double>& parameters, const Tensor& boundaries, int64_t bits,
                                  bool even, const std::string& guard) {
  const char* op = "stepwise";
  const auto* facts = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                   [&](const FunctionFacts& known) { return function == known.name; });
  require(facts != std::end(kFunctions), op, "function must be one of ", FunctionNames(), "; got '", function,
          "'. For a function of your own use stepwise_codes");
  require(parameters.empty() || parameters.size() == static_cast<size_t>(facts->parameters), op, "parameters of ",
          function, " must be ", facts->parameters, " numbers, or none for its defaults, got ", parameters.size());
  const StepwiseCodesCall coded = stepwise_codes_call(op, input, boundaries, bits, even, guard);
  Tensor output = make_like(input);
  StepwiseCall call = {{coded.args, facts->function, {}, output.mutable_data_ptr()}, output, coded.codes};
  for (int i = 0; i < facts->parameters; ++i) {
    call.args.parameters[i] = parameters.empty() ? facts->defaults[i] : parameters[static_cast<size_t>(i)];
  }
  return call;
}

struct StepwiseBackwardCall {
  StepwiseBackward args;
  Tensor output;
};

inline StepwiseBackwardCall stepwise_backward_call(const Tensor& gradient, const Tensor& codes, const Tensor& levels,
                                                   int64_t bits, bool guarded) {
  const char* op = "stepwise_backward";
  require_bits(op, bits);
  require_contiguous(op, "gradient", gradient);
  const ElementType type = element_type(op, "gradient", gradient.scalar_type());
  const int width = static_cast<int>(bits);
  require_bytes(op, "codes", codes, guarded_bytes(gradient.numel(), width, guarded));
  require(codes.device() == gradient.device(), op, "gradient and codes must be on one device");
  require_table(op, "levels", levels, gradient);
  require(levels.numel() >= 1 && levels.numel() <= (int64_t{1} << bits), op,
          "levels must be from 1 to 2**bits = ", int64_t{1} << bits, ", got ", levels.numel());
  Tensor output = make_like(gradient);
  const auto* bytes = static_cast<const uint8_t*>(codes.const_data_ptr());
  return {{gradient.const_data_ptr(), bytes, type, gradient.numel(), levels.const_data_ptr(),
           static_cast<int>(levels.numel()), width, guarded ? bytes + packed_bytes(gradient.numel(), width) : nullptr,
           output.mutable_data_ptr()},
          output};
}

}  // namespace actcore::ops
