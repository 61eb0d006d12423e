// The group-affine operators on the CPU: kernels shared among torch's threads.
#include <atomic>
#include <cstring>
#include <tuple>
#include <utility>

#include "codec/group_affine.h"
#include "ops/cpu/aten.h"
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

Tensor group_affine_compress_graph(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic, int64_t seed,
                                   const Tensor& stream) {
  auto call = group_affine_pack_call(input, bits, group_size, stochastic, seed, stream);
  call.args.key = read_key(call.args.key);
  expect_all_written(call.payload, call.payload.numel());
  if (call.gap_bytes() > 0) std::memset(call.gap(), 0, call.gap_bytes());
  share_groups(call.groups, group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().group_affine_compress(call.args, begin, end); });
  return call.payload;
}

std::tuple<Tensor, Tensor> group_affine_clamped_compress(const Tensor& input, int64_t bits, int64_t group_size,
                                                         bool stochastic, int64_t seed, int64_t stream, double least,
                                                         double most) {
  return compressed(group_affine_clamped_call(input, bits, group_size, stochastic, seed, stream, least, most));
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
  for (int64_t s = 0; s < shape.count; ++s) {
    const T scale = from[shape.count + s], by = back ? scale : standard_factor(scale);
    for (int64_t i = s * shape.each; i < (s + 1) * shape.each; ++i) mean[i] = from[s], factor[i] = by;
  }
  return {both, {mean, factor, entries, shape.channels, shape.inner}};
}

Tables tables_of(const StandardizedShape& shape, const Tensor& statistics, bool back) {
  const bool wide = statistics.scalar_type() == ScalarType::Double;
  return wide ? tables_of<double>(shape, statistics, back) : tables_of<float>(shape, statistics, back);
}

std::tuple<Tensor, Tensor, Tensor> group_affine_standardized_compress(const Tensor& input, int64_t bits,
                                                                      int64_t group_size, bool stochastic, int64_t seed,
                                                                      int64_t stream, int64_t statistics, int64_t inner,
                                                                      int64_t channels) {
  auto call =
      standardized_compress_call(input, bits, group_size, stochastic, seed, stream, statistics, inner, channels);
  if (input.numel() == 0) return {call.codes.codes, call.codes.bounds, call.found};
  const int64_t elements = input.numel() / call.shape.count;
  // Columns that are beside each other share the lines of a cache.
  share(call.shape.count, channels ? std::max<int64_t>(1, 16 / call.shape.each) : 1,
        std::max<int64_t>(1, kGrain / elements), [&](int64_t begin, int64_t end) {
          cpu::kernels().moments(call.shape, call.codes.args.type, input.const_data_ptr(), call.means, call.deviations,
                                 begin, end);
        });
  const Tables tables = tables_of(call.shape, call.found, false);
  call.codes.args.key = read_key(call.codes.args.key);
  expect_all_written(call.codes.codes, call.codes.codes.numel());
  share_groups(call.codes.groups, group_size, [&](int64_t begin, int64_t end) {
    cpu::kernels().standardized_compress(call.codes.args, tables.tables, begin, end);
  });
  return {call.codes.codes, call.codes.bounds, call.found};
}

// The tables of statistics that the caller has, and into `found` what group_affine_standardized_compress finds.
template <class T>
Tables tables_of_given(const StandardizedGivenCall& call, const Tensor& means) {
  const StandardizedShape& shape = call.shape;
  const int64_t entries = shape.entries();
  Tensor both = make_empty(means, {2, entries});
  const T *from = static_cast<const T*>(call.means), *factors = static_cast<const T*>(call.factors);
  T *mean = static_cast<T*>(both.mutable_data_ptr()), *factor = mean + entries;
  T *found = static_cast<T*>(call.found), *deviations = static_cast<T*>(call.deviations);
  for (int64_t s = 0; s < shape.count; ++s) {
    found[s] = from[s], deviations[s] = T(1) / factors[s];
    for (int64_t i = s * shape.each; i < (s + 1) * shape.each; ++i) mean[i] = from[s], factor[i] = factors[s];
  }
  return {both, {mean, factor, entries, shape.channels, shape.inner}};
}

void group_affine_standardized_compress_given(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic,
                                              int64_t seed, int64_t stream, const Tensor& means, const Tensor& factors,
                                              int64_t inner, int64_t channels, const Tensor& codes,
                                              const Tensor& bounds, const Tensor& statistics) {
  auto call = standardized_given_call(input, bits, group_size, stochastic, seed, stream, means, factors, inner,
                                      channels, codes, bounds, statistics);
  if (call.args.numel == 0) return;
  const bool wide = means.scalar_type() == ScalarType::Double;
  const Tables tables = wide ? tables_of_given<double>(call, means) : tables_of_given<float>(call, means);
  call.args.key = read_key(call.args.key);
  expect_all_written(codes, codes.numel());
  share_groups(call.groups, group_size, [&](int64_t begin, int64_t end) {
    cpu::kernels().standardized_compress(call.args, tables.tables, begin, end);
  });
}

// Elements that are decoded at a time, and go on while they are in cache. torch's operators are called on them: on pairs of
// groups, which are whole numbers of torch's vectors, so that each element is rounded as in a call on all of them.
constexpr int64_t kActivated = 32768, kPair = 2;

void apply(Function function, void* values, int64_t count, ScalarType type) {
  const Tensor whole = borrow(values, count, type);
  if (function == Function::kSilu) {
    call_torch("aten::silu", "out", whole, whole);
  } else {
    call_torch("aten::gelu", "out", whole, std::string(function == Function::kGelu ? "none" : "tanh"), whole);
  }
}

Tensor group_affine_standardized_activation(const Tensor& codes, const Tensor& bounds, const Tensor& scales,
                                            const Tensor& shifts, std::optional<Tensor> added, int64_t numel,
                                            int64_t inner, int64_t channels, int64_t bits, int64_t group_size,
                                            std::string function) {
  const auto call = standardized_activation_call(codes, bounds, scales, shifts, added, numel, inner, channels, bits,
                                                 group_size, function);
  const Tensor& output = call.values.output;
  if (numel == 0) return output;
  const Activation& after = call.activation;
  const Tensor factors = make_empty(scales, {2, after.by.shape.count});
  auto* both = static_cast<char*>(factors.mutable_data_ptr());
  const auto row = static_cast<size_t>(after.by.shape.count) * factors.element_size();
  std::memcpy(both, after.by.means, row), std::memcpy(both + row, after.by.factors, row);
  const Tables tables = tables_of(after.by.shape, factors, true);
  const auto size = static_cast<int64_t>(output.element_size());
  expect_all_written(output, numel * size);
  const bool rectifies = !after.linear && after.function == Function::kRelu, calls = !after.linear && !rectifies;
  const int64_t step = std::max<int64_t>(1, kActivated / group_size / kPair) * kPair;
  share_and_rethrow(call.values.groups, kPair, kGrain / group_size, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g += step) {
      const int64_t last = std::min(end, g + step), first = g * group_size;
      const int64_t count = std::min(numel, last * group_size) - first;
      auto* values = static_cast<char*>(call.values.args.output) + first * size;
      const auto* other = static_cast<const char*>(after.added);
      cpu::kernels().standardized_decompress(call.values.args, tables.tables, g, last);
      if (other != nullptr || rectifies) {
        cpu::kernels().add_and_rectify(call.values.args.type, values, other == nullptr ? nullptr : other + first * size,
                                       rectifies, count);
      }
      if (calls) apply(after.function, values, count, output.scalar_type());
    }
  });
  return output;
}

Tensor group_affine_standardized_decompress(const Tensor& codes, const Tensor& bounds, const Tensor& statistics,
                                            int64_t numel, int64_t inner, int64_t channels, int64_t bits,
                                            int64_t group_size) {
  const auto call = standardized_decompress_call(codes, bounds, statistics, numel, inner, channels, bits, group_size);
  const Tensor& output = call.values.output;
  if (numel == 0) return output;
  const Tables tables = tables_of(call.shape, statistics, true);
  expect_all_written(output, numel * static_cast<int64_t>(output.element_size()));
  share_groups(call.values.groups, group_size, [&](int64_t begin, int64_t end) {
    cpu::kernels().standardized_decompress(call.values.args, tables.tables, begin, end);
  });
  return output;
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

Tensor decompressed(const GroupAffineDecompressCall& call) {
  expect_all_written(call.output, call.args.numel * static_cast<int64_t>(call.output.element_size()));
  share_groups(call.groups, call.args.group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().group_affine_decompress(call.args, begin, end); });
  return call.output;
}

Tensor group_affine_decompress(const Tensor& codes, const Tensor& bounds, int64_t numel, int64_t bits,
                               int64_t group_size) {
  return decompressed(group_affine_decompress_call(codes, bounds, numel, bits, group_size));
}

Tensor group_affine_decompress_graph(const Tensor& payload, int64_t numel, ScalarType dtype, int64_t bits,
                                     int64_t group_size) {
  return decompressed(group_affine_unpack_call(payload, numel, dtype, bits, group_size));
}

ACTCORE_DIRECT(group_affine_compress, &group_affine_compress<int64_t>);
ACTCORE_DIRECT(group_affine_clamped_compress, &group_affine_clamped_compress);
ACTCORE_DIRECT(group_affine_standardized_compress, &group_affine_standardized_compress);
ACTCORE_DIRECT(group_affine_standardized_compress_given, &group_affine_standardized_compress_given);
ACTCORE_DIRECT(group_affine_standardized_decompress, &group_affine_standardized_decompress);
ACTCORE_DIRECT(group_affine_decompress, &group_affine_decompress);
ACTCORE_DIRECT(group_affine_compress_graph, &group_affine_compress_graph);
ACTCORE_DIRECT(group_affine_decompress_graph, &group_affine_decompress_graph);

}  // namespace
}  // namespace actcore::ops

extern "C" __attribute__((visibility("default"))) const actcore::ops::Direct* actcore_cpu_kernels() {
  return actcore::ops::directs;
}

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("group_affine_compress", TORCH_BOX(&group_affine_compress<int64_t>));
  m.impl("group_affine_compress.tensor", TORCH_BOX(&group_affine_compress<Tensor>));
  m.impl("group_affine_compress.graph", TORCH_BOX(&group_affine_compress_graph));
  m.impl("group_affine_clamped_compress", TORCH_BOX(&group_affine_clamped_compress));
  m.impl("group_affine_standardized_compress", TORCH_BOX(&group_affine_standardized_compress));
  m.impl("group_affine_standardized_decompress", TORCH_BOX(&group_affine_standardized_decompress));
  m.impl("group_affine_standardized_compress.given", TORCH_BOX(&group_affine_standardized_compress_given));
  m.impl("group_affine_standardized_activation", TORCH_BOX(&group_affine_standardized_activation));
  m.impl("has_wide_group", TORCH_BOX(&has_wide_group));
  m.impl("group_affine_decompress", TORCH_BOX(&group_affine_decompress));
  m.impl("group_affine_decompress.graph", TORCH_BOX(&group_affine_decompress_graph));
}
