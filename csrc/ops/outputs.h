// The tensors that operators make: contiguous, without history, on the device of what they are made from.
//
// Memory is asked of the allocator. torch::stable::new_empty and its like look an operator up by name, which takes longer
// than quantising a small tensor.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "ops/checks.h"

namespace actcore::ops {

using Ints = std::vector<int64_t>;

inline Ints sizes_of(const Tensor& tensor) {
  Ints sizes;
  for (int64_t d = 0; d < tensor.dim(); ++d) sizes.push_back(tensor.size(d));
  return sizes;
}

inline Tensor make_empty(const Tensor& like, const Ints& sizes, ScalarType type) {
  Ints strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  int32_t device_type = 0;
  int32_t device_index = 0;
  ACTCORE_CHECK_TORCH(aoti_torch_get_device_type(like.get(), &device_type));
  ACTCORE_CHECK_TORCH(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle = nullptr;
  const AOTITorchError status = aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(type)), device_type, device_index, &handle);
#ifndef STABLE_TORCH_ERROR_CODE_CHECK
  // These headers cannot ask for torch's own words, which go to stderr. The sizes are checked and the device is that of
  // a tensor, so what is missing is memory; and those who search for the largest batch look for torch's words of it.
  if (status != TORCH_SUCCESS) {
    int64_t numel = 1;
    for (const int64_t size : sizes) numel *= size;
    const char* where = device_type == aoti_torch_device_type_cpu() ? "CPU" : "CUDA";
    throw std::runtime_error(std::string("actcore: ") + where +
                             " out of memory. torch could not allocate a tensor of " + std::to_string(numel) +
                             " elements; torch's message is on stderr");
  }
#endif
  ACTCORE_CHECK_TORCH(status);
  return Tensor(handle);
}

inline Tensor make_empty(const Tensor& like, const Ints& sizes) { return make_empty(like, sizes, like.scalar_type()); }

inline Tensor make_like(const Tensor& tensor) { return make_empty(tensor, sizes_of(tensor)); }

inline Tensor make_bytes(const Tensor& like, int64_t count) { return make_empty(like, {count}, ScalarType::Byte); }

// Where kernels report what they met and could not store: one int32, 0 until then. On CUDA the launch makes it 0.
inline Tensor make_misfit(const Tensor& like) {
  Tensor misfit = make_empty(like, {1}, ScalarType::Int);
  if (like.device().is_cpu()) *static_cast<int32_t*>(misfit.mutable_data_ptr()) = 0;
  return misfit;
}

}  // namespace actcore::ops
