// The group-affine operators on the CPU: kernels shared among torch's threads.
#include <atomic>
#include <tuple>

#include "ops/cpu/share.h"
#include "ops/group_affine.h"

namespace actcore::ops {
namespace {

template <class Key>
std::tuple<Tensor, Tensor> group_affine_compress(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic,
                                                 const Key& seed, const Key& stream) {
  auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream);
  call.args.key = read_key(call.args.key);
  expect_all_written(call.codes, call.codes.numel());
  share_groups(call.groups, group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().group_affine_compress(call.args, begin, end); });
  return {call.codes, call.bounds};
}

Tensor has_wide_group(const Tensor& input, int64_t group_size) {
  const auto call = wide_group_call(input, group_size);
  std::atomic<bool> wide = false;
  share_groups(call.groups, group_size, [&](int64_t begin, int64_t end) {
    if (!wide && cpu::kernels().has_wide_group(call.args, begin, end)) wide = true;
  });
  *static_cast<int32_t*>(call.wide.mutable_data_ptr()) = wide;
  return call.wide;
}

Tensor group_affine_decompress(const Tensor& codes, const Tensor& bounds, int64_t numel, int64_t bits,
                               int64_t group_size) {
  const auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size);
  expect_all_written(call.output, numel * static_cast<int64_t>(call.output.element_size()));
  share_groups(call.groups, group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().group_affine_decompress(call.args, begin, end); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("group_affine_compress", TORCH_BOX(&group_affine_compress<int64_t>));
  m.impl("group_affine_compress.tensor", TORCH_BOX(&group_affine_compress<Tensor>));
  m.impl("has_wide_group", TORCH_BOX(&has_wide_group));
  m.impl("group_affine_decompress", TORCH_BOX(&group_affine_decompress));
}
