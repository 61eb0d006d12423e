// The group-affine operators on the CPU: kernels shared among torch's threads.
#include <atomic>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "ops/cpu/direct.h"
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

// What is taken from each element, and by what the rest is multiplied or divided: Float[2, entries].
struct Tables {
  Tensor both;
  ChannelTables tables;
};

template <class T>
Tables tables_of(const StandardizedShape& shape, const Tensor& statistics, bool back) {
  const int64_t entries = shape.entries();
  Tensor both = make_empty(statistics, {2, entries});
  const T* from = static_cast<const T*>(statistics.const_data_ptr());
  T *mean = static_cast<T*>(both.mutable_data_ptr()), *factor = mean + entries;
  // By which a deviation is divided at least: its square is a number still, and differences that the variance has lost
  // do not become large ones.
  const T least = static_cast<T>(std::sqrt(static_cast<double>(std::numeric_limits<T>::min())));
  for (int64_t s = 0; s < shape.count; ++s) {
    const T scale = from[shape.count + s];
    const T by = back ? scale : T(1) / (scale < least ? least : scale);
    for (int64_t i = s * shape.each; i < (s + 1) * shape.each; ++i) mean[i] = from[s], factor[i] = by;
  }
  return {both, {mean, factor, entries, shape.channels, shape.inner}};
}

Tables tables_of(const StandardizedShape& shape, const Tensor& statistics, bool back) {
  const bool wide = statistics.scalar_type() == ScalarType::Double;
  return wide ? tables_of<double>(shape, statistics, back) : tables_of<float>(shape, statistics, back);
}

ScalarType computed_in(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

std::tuple<Tensor, Tensor, Tensor> group_affine_standardized_compress(const Tensor& input, int64_t bits,
                                                                      int64_t group_size, bool stochastic, int64_t seed,
                                                                      int64_t stream, int64_t statistics, int64_t inner,
                                                                      int64_t channels) {
  const char* op = "group_affine_standardized_compress";
  auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream, op);
  const StandardizedShape shape = standardized_shape(op, input.numel(), statistics, inner, channels, group_size);
  Tensor found = make_empty(input, {2, input.numel() ? shape.count : 0}, computed_in(input));
  if (input.numel() == 0) return {call.codes, call.bounds, found};
  auto* means = static_cast<char*>(found.mutable_data_ptr());
  const auto deviations = means + shape.count * static_cast<int64_t>(found.element_size());
  const int64_t elements = input.numel() / shape.count;
  // Columns that are beside each other share the lines of a cache.
  share(shape.count, channels ? std::max<int64_t>(1, 16 / shape.each) : 1, std::max<int64_t>(1, kGrain / elements),
        [&](int64_t begin, int64_t end) {
          cpu::kernels().moments(shape, call.args.type, call.args.input, means, deviations, begin, end);
        });
  const Tables tables = tables_of(shape, found, false);
  call.args.key = read_key(call.args.key);
  expect_all_written(call.codes, call.codes.numel());
  share_groups(call.groups, group_size, [&](int64_t begin, int64_t end) {
    cpu::kernels().standardized_compress(call.args, tables.tables, begin, end);
  });
  return {call.codes, call.bounds, found};
}

Tensor group_affine_standardized_decompress(const Tensor& codes, const Tensor& bounds, const Tensor& statistics,
                                            int64_t numel, int64_t inner, int64_t channels, int64_t bits,
                                            int64_t group_size) {
  const char* op = "group_affine_standardized_decompress";
  const auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size, op);
  require_contiguous(op, "statistics", statistics);
  require(statistics.scalar_type() == computed_in(bounds), op, "statistics must be ",
          computed_in(bounds) == ScalarType::Double ? "float64" : "float32", " beside elements of this dtype");
  if (numel == 0) return call.output;
  require(statistics.dim() == 2 && statistics.size(0) == 2, op, "statistics must be means and deviations: (2, count)");
  const StandardizedShape shape = standardized_shape(op, numel, statistics.size(1), inner, channels, group_size);
  const Tables tables = tables_of(shape, statistics, true);
  expect_all_written(call.output, numel * static_cast<int64_t>(call.output.element_size()));
  share_groups(call.groups, group_size, [&](int64_t begin, int64_t end) {
    cpu::kernels().standardized_decompress(call.args, tables.tables, begin, end);
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

ACTCORE_DIRECT(group_affine_compress, &group_affine_compress<int64_t>);
ACTCORE_DIRECT(group_affine_clamped_compress, &group_affine_clamped_compress);
ACTCORE_DIRECT(group_affine_standardized_compress, &group_affine_standardized_compress);
ACTCORE_DIRECT(group_affine_standardized_decompress, &group_affine_standardized_decompress);
ACTCORE_DIRECT(group_affine_decompress, &group_affine_decompress);

}  // namespace
}  // namespace actcore::ops

extern "C" __attribute__((visibility("default"))) const actcore::ops::Direct* actcore_cpu_kernels() {
  return actcore::ops::directs;
}

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
