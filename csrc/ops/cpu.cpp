// The operators on the CPU: kernels shared among torch's threads.
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <tuple>

#include "cpu/kernels.h"
#include "ops/calls.h"

namespace actcore::ops {
namespace {

// Below this many elements a second thread costs more than it saves. A multiple of 8, so that no byte of packed
// codes belongs to two threads.
constexpr int64_t kGrain = 32768;

// Calls work(begin, end) on ranges whose inner borders are multiples of `unit`.
template <class Work>
void share(int64_t count, int64_t unit, int64_t grain, const Work& work) {
  const int64_t units = count / unit + (count % unit != 0);
  cpu::kernels();  // chosen here, where a wrong ACTCORE_CPU can say so: parallel_for hides what is thrown inside
  torch::stable::parallel_for(0, units, std::max<int64_t>(1, grain / unit),
                              [&](int64_t begin, int64_t end) { work(begin * unit, std::min(end * unit, count)); });
}

void share_elements(int64_t numel, const auto& work) { share(numel, 8, kGrain, work); }

void share_groups(int64_t groups, int64_t group_size, const auto& work) { share(groups, 1, kGrain / group_size, work); }

// A large new tensor is a fresh mapping. A page fault per 4 KiB of it costs as much as the arithmetic: with huge pages,
// where the system grants them, 4-bit compression of 256 MiB fell from 1.7 to 1.2 times a copy_ (2 threads, AMD EPYC).
void expect_all_written([[maybe_unused]] const Tensor& output, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(output.mutable_data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

std::tuple<Tensor, Tensor> group_affine_compress(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic,
                                                 int64_t seed, int64_t stream) {
  const auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream);
  expect_all_written(call.codes, call.codes.numel());
  share_groups(call.groups, group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().group_affine_compress(call.args, begin, end); });
  return {call.codes, call.bounds};
}

Tensor group_affine_decompress(const Tensor& codes, const Tensor& bounds, int64_t numel, int64_t bits,
                               int64_t group_size) {
  const auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size);
  expect_all_written(call.output, numel * static_cast<int64_t>(call.output.element_size()));
  share_groups(call.groups, group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().group_affine_decompress(call.args, begin, end); });
  return call.output;
}

void report(const std::atomic<bool>& fits, const Tensor& misfit) {
  *static_cast<int32_t*>(misfit.mutable_data_ptr()) = !fits;
}

std::tuple<Tensor, Tensor> pack_bits(const Tensor& codes, int64_t bits) {
  const auto call = pack_bits_call(codes, bits);
  const auto* from = static_cast<const uint8_t*>(codes.const_data_ptr());
  auto* to = static_cast<uint8_t*>(call.packed.mutable_data_ptr());
  std::atomic<bool> fits = true;
  share_elements(codes.numel(), [&](int64_t begin, int64_t end) {
    if (!cpu::kernels().pack_bits(from, static_cast<int>(bits), to, begin, end)) fits = false;
  });
  report(fits, call.misfit);
  return {call.packed, call.misfit};
}

Tensor unpack_bits(const Tensor& packed, int64_t bits, int64_t numel) {
  const Tensor codes = unpack_bits_call(packed, bits, numel);
  const auto* from = static_cast<const uint8_t*>(packed.const_data_ptr());
  auto* to = static_cast<uint8_t*>(codes.mutable_data_ptr());
  share_elements(numel, [&](int64_t begin, int64_t end) {
    cpu::kernels().unpack_bits(from, static_cast<int>(bits), to, begin, end);
  });
  return codes;
}

std::tuple<Tensor, Tensor> bit_mask_compress(const Tensor& input, double low, double high) {
  const auto call = bit_mask_compress_call(input, low, high);
  std::atomic<bool> fits = true;
  share_elements(call.args.numel, [&](int64_t begin, int64_t end) {
    if (!cpu::kernels().bit_mask_compress(call.args, begin, end)) fits = false;
  });
  report(fits, call.misfit);
  return {call.mask, call.misfit};
}

Tensor bit_mask_decompress(const Tensor& mask, int64_t numel, ScalarType dtype, double low, double high) {
  const auto call = bit_mask_decompress_call(mask, numel, dtype, low, high);
  share_elements(numel, [&](int64_t begin, int64_t end) { cpu::kernels().bit_mask_decompress(call.args, begin, end); });
  return call.output;
}

Tensor positive_mask(const Tensor& input) {
  const auto call = positive_mask_call(input);
  share_elements(call.args.numel,
                 [&](int64_t begin, int64_t end) { cpu::kernels().positive_mask(call.args, begin, end); });
  return call.mask;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("group_affine_compress", TORCH_BOX(&group_affine_compress));
  m.impl("group_affine_decompress", TORCH_BOX(&group_affine_decompress));
  m.impl("pack_bits", TORCH_BOX(&pack_bits));
  m.impl("unpack_bits", TORCH_BOX(&unpack_bits));
  m.impl("bit_mask_compress", TORCH_BOX(&bit_mask_compress));
  m.impl("bit_mask_decompress", TORCH_BOX(&bit_mask_decompress));
  m.impl("positive_mask", TORCH_BOX(&positive_mask));
}
