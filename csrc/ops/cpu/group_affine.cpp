// The group-affine operators on the CPU: kernels shared among torch's threads.
#include <atomic>
#include <cmath>
#include <tuple>
#include <utility>

#include "ops/cpu/share.h"
#include "ops/group_affine.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> compressed(GroupAffineCompressCall call) {
  call.args.key = read_key(call.args.key);
  expect_all_written(call.codes, call.codes.numel());
  share_groups(call.groups, call.args.group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().group_affine_compress(call.args, begin, end); });
  return {call.codes, call.bounds};
}

template <class Key>
std::tuple<Tensor, Tensor> group_affine_compress(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic,
                                                 const Key& seed, const Key& stream) {
  return compressed(group_affine_compress_call(input, bits, group_size, stochastic, seed, stream));
}

std::tuple<Tensor, Tensor> group_affine_clamped_compress(const Tensor& input, int64_t bits, int64_t group_size,
                                                         bool stochastic, int64_t seed, int64_t stream, double least,
                                                         double most) {
  const char* op = "group_affine_clamped_compress";
  require(std::isfinite(least) && std::isfinite(most) && least <= most, op,
          "least and most must be finite, and least not above most, got ", least, " and ", most);
  auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream, op);
  call.args.clamps = true, call.args.least = least, call.args.most = most;
  return compressed(std::move(call));
}

std::tuple<Tensor, Tensor> group_affine_standardized_compress(const Tensor& input, const Tensor& mean,
                                                              const Tensor& factor, int64_t channels, int64_t inner,
                                                              int64_t bits, int64_t group_size, bool stochastic,
                                                              int64_t seed, int64_t stream) {
  const char* op = "group_affine_standardized_compress";
  auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream, op);
  const ChannelTables tables = channel_tables(op, input, mean, factor, channels, inner, input.numel(), group_size);
  call.args.key = read_key(call.args.key);
  expect_all_written(call.codes, call.codes.numel());
  share_groups(call.groups, group_size, [&](int64_t begin, int64_t end) {
    cpu::kernels().standardized_compress(call.args, tables, begin, end);
  });
  return {call.codes, call.bounds};
}

Tensor group_affine_standardized_decompress(const Tensor& codes, const Tensor& bounds, const Tensor& mean,
                                            const Tensor& factor, int64_t numel, int64_t channels, int64_t inner,
                                            int64_t bits, int64_t group_size) {
  const char* op = "group_affine_standardized_decompress";
  const auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size, op);
  const ChannelTables tables = channel_tables(op, bounds, mean, factor, channels, inner, numel, group_size);
  expect_all_written(call.output, numel * static_cast<int64_t>(call.output.element_size()));
  share_groups(call.groups, group_size, [&](int64_t begin, int64_t end) {
    cpu::kernels().standardized_decompress(call.args, tables, begin, end);
  });
  return call.output;
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
  m.impl("group_affine_clamped_compress", TORCH_BOX(&group_affine_clamped_compress));
  m.impl("group_affine_standardized_compress", TORCH_BOX(&group_affine_standardized_compress));
  m.impl("group_affine_standardized_decompress", TORCH_BOX(&group_affine_standardized_decompress));
  m.impl("has_wide_group", TORCH_BOX(&has_wide_group));
  m.impl("group_affine_decompress", TORCH_BOX(&group_affine_decompress));
}
