// torch's own operators on plain memory, through the dispatcher of the stable ABI.
#pragma once

#include <array>

#include "ops/checks.h"

namespace actcore::ops {

// A tensor that borrows memory. It asks for no gradient, whatever it is a part of.
inline Tensor borrow(const void* memory, int64_t numel, ScalarType type) {
  const int64_t stride = 1;
  AtenTensorHandle handle = nullptr;
  ACTCORE_CHECK_TORCH(
      aoti_torch_create_tensor_from_blob(const_cast<void*>(memory), 1, &numel, &stride, 0,
                                         torch::stable::detail::to<int32_t>(torch::stable::detail::from(type)),
                                         aoti_torch_device_type_cpu(), -1, &handle));
  return Tensor(handle);
}

// Calls an operator that returns `results` tensors, which are those that it was given to write.
template <int results = 1, class... Arguments>
void call_torch(const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, sizeof...(Arguments)> stack{torch::stable::detail::from(arguments)...};
  ACTCORE_CHECK_TORCH(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  for (int i = 0; i < results; ++i) torch::stable::detail::to<Tensor>(stack[static_cast<size_t>(i)]);
}

}  // namespace actcore::ops
