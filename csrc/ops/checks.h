// What every operator checks before a kernel gets plain pointers. The same for every device.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <sstream>
#include <stdexcept>

#include "codec/arguments.h"
#include "codec/bits.h"
#include "codec/float16.h"

// Raises where a call of torch's C interface failed. The headers of newer torch add torch's own words for it, such as
// those of an allocator that has no memory left; those of torch 2.10 and 2.11 name the call alone.
#ifdef STABLE_TORCH_ERROR_CODE_CHECK
#define ACTCORE_CHECK_TORCH(call) STABLE_TORCH_ERROR_CODE_CHECK(call)
#else
#define ACTCORE_CHECK_TORCH(call) TORCH_ERROR_CODE_CHECK(call)
#endif

namespace actcore::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Errors read "operator: argument must ..., got ...".
template <class... Parts>
void require(bool holds, const char* op, const Parts&... message) {
  if (holds) return;
  std::ostringstream text;
  text << "actcore::" << op << ": ";
  (text << ... << message);
  throw std::runtime_error(text.str());
}

inline void require_bits(const char* op, int64_t bits) {
  require(bits >= 1 && bits <= kMaxBits, op, "bits must be from 1 to 8, got ", bits);
}

inline void require_group_size(const char* op, int64_t group_size) {
  require(group_size >= 32 && group_size % 32 == 0, op, "group_size must be a positive multiple of 32, got ",
          group_size);
}

inline void require_contiguous(const char* op, const char* name, const Tensor& tensor) {
  require(tensor.is_contiguous(), op, name, " must be contiguous; call .contiguous() first");
}

inline void require_bytes(const char* op, const char* name, const Tensor& tensor, int64_t expected) {
  require_contiguous(op, name, tensor);
  require(tensor.scalar_type() == ScalarType::Byte, op, name, " must be uint8");
  require(tensor.numel() == expected, op, name, " must hold ", expected, " bytes, got ", tensor.numel(),
          "; the stored form is damaged or belongs to another tensor");
}

inline bool is_floating(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}

inline ElementType element_type(const char* op, const char* name, ScalarType type) {
  require(is_floating(type), op, name, " must be float32, float64, float16 or bfloat16");
  switch (type) {
    case ScalarType::Double: return ElementType::kFloat64;
    case ScalarType::Half: return ElementType::kFloat16;
    case ScalarType::BFloat16: return ElementType::kBFloat16;
    default: return ElementType::kFloat32;
  }
}

}  // namespace actcore::ops
