// The stepwise family on CUDA: value and code in one pass. Boundaries and levels are in shared memory.
#include "codec/stepwise.h"

#include "codec/dispatch.h"
#include "cuda/activations.cuh"
#include "cuda/fused.h"
#include "cuda/guard.cuh"
#include "cuda/launch.cuh"
#include "cuda/tables.cuh"
#include "cuda/warp_codes.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxTable = 1 << kMaxBits;

// A row's codes, with its stretch's guard to memory where there are guards. For `known`, see find_intervals.
template <int known, class E>
__device__ void find_codes(const Row<E>& row, const compute_t<E>* boundaries, const StepwiseCodes& args, int64_t first,
                           int (&codes)[kRow]) {
  if (args.guards != nullptr) store_guard(is_guarded(row, args.guard), args.guards, first);
  compute_t<E> x[kRow];
#pragma unroll
  for (int i = 0; i < kRow; ++i) x[i] = args.even ? magnitude(load(row[i])) : load(row[i]);
  find_intervals<known>(x, boundaries, args.boundary_count, args.bits, codes);
}

template <class E, int bits>
__global__ void __launch_bounds__(kThreads) codes_kernel(StepwiseCodes args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T boundaries[1 << bits];
  load_table<kThreads>(boundaries, args.boundaries, args.boundary_count, 1 << bits, static_cast<T>(INFINITY));
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count);
  int codes[kRow];
  find_codes<bits>(row, boundaries, args, first, codes);
  store_codes(tile, packed_row<bits>(codes), args.codes + packed_bytes(first, bits), count);
}

template <class E, Function function>
__global__ void __launch_bounds__(kThreads) stepwise_kernel(Stepwise args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T boundaries[kMaxTable];
  const StepwiseCodes& coded = args.codes;
  load_table<kThreads>(boundaries, coded.boundaries, coded.boundary_count, kMaxTable, static_cast<T>(INFINITY));
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(coded.numel - first);
  if (count <= 0) return;

  Row<E> row = load_row(tile, static_cast<const E*>(coded.input) + first, count);
  int codes[kRow];
  find_codes<0>(row, boundaries, coded, first, codes);  // one kernel for all widths, because there are many functions
  store_row_codes(tile, codes, coded.bits, coded.codes + packed_bytes(first, coded.bits), count);
  const T a = static_cast<T>(args.parameters[0]), b = static_cast<T>(args.parameters[1]);
#pragma unroll
  for (int i = 0; i < kRow; ++i) store(&row[i], value_of<function, E>(load(row[i]), a, b));
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
}

template <class E, int bits>
__global__ void __launch_bounds__(kThreads) backward_kernel(StepwiseBackward args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T levels[1 << bits];
  load_table<kThreads>(levels, args.levels, args.level_count, 1 << bits, static_cast<T>(NAN));
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const bool lost = args.guards != nullptr && args.guards[first / kStretch] != 0;
  const PackedRow<bits> codes = load_codes<bits>(tile, args.codes + packed_bytes(first, bits), count);
  Row<E> row = load_row(tile, static_cast<const E*>(args.gradient) + first, count);
#pragma unroll
  for (int i = 0; i < kRow; ++i) store(&row[i], lost ? static_cast<T>(NAN) : load(row[i]) * levels[codes.get(i)]);
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
}

template <class E, Function function>
cudaError_t launch_function(const Stepwise& args, cudaStream_t stream) {
  return launch(stepwise_kernel<E, function>, blocks_for(args.codes.numel, kWarps * kTile), kThreads, stream, args);
}

template <class E>
cudaError_t launch_stepwise(const Stepwise& args, cudaStream_t stream) {
  switch (args.function) {
    case Function::kRelu: return launch_function<E, Function::kRelu>(args, stream);
    case Function::kLeakyRelu: return launch_function<E, Function::kLeakyRelu>(args, stream);
    case Function::kThreshold: return launch_function<E, Function::kThreshold>(args, stream);
    case Function::kHardsigmoid: return launch_function<E, Function::kHardsigmoid>(args, stream);
    case Function::kHardtanh: return launch_function<E, Function::kHardtanh>(args, stream);
    case Function::kRelu6: return launch_function<E, Function::kRelu6>(args, stream);
    case Function::kHardshrink: return launch_function<E, Function::kHardshrink>(args, stream);
    case Function::kSoftshrink: return launch_function<E, Function::kSoftshrink>(args, stream);
    case Function::kCelu: return launch_function<E, Function::kCelu>(args, stream);
    case Function::kElu: return launch_function<E, Function::kElu>(args, stream);
    case Function::kGelu: return launch_function<E, Function::kGelu>(args, stream);
    case Function::kGeluTanh: return launch_function<E, Function::kGeluTanh>(args, stream);
    case Function::kHardswish: return launch_function<E, Function::kHardswish>(args, stream);
    case Function::kLogsigmoid: return launch_function<E, Function::kLogsigmoid>(args, stream);
    case Function::kMish: return launch_function<E, Function::kMish>(args, stream);
    case Function::kSelu: return launch_function<E, Function::kSelu>(args, stream);
    case Function::kSigmoid: return launch_function<E, Function::kSigmoid>(args, stream);
    case Function::kSilu: return launch_function<E, Function::kSilu>(args, stream);
    case Function::kSoftplus: return launch_function<E, Function::kSoftplus>(args, stream);
    case Function::kSoftsign: return launch_function<E, Function::kSoftsign>(args, stream);
    case Function::kTanh: return launch_function<E, Function::kTanh>(args, stream);
    case Function::kTanhshrink: return launch_function<E, Function::kTanhshrink>(args, stream);
    case Function::kQuickGelu: return launch_function<E, Function::kQuickGelu>(args, stream);
    case Function::kSquaredRelu: return launch_function<E, Function::kSquaredRelu>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t stepwise(const Stepwise& args, cudaStream_t stream) {
  if (args.codes.numel == 0) return cudaSuccess;
  return with_type(args.codes.type, [&]<class E>() { return launch_stepwise<E>(args, stream); });
}

cudaError_t stepwise_codes(const StepwiseCodes& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_bits(args.bits, [&]<int bits>() {
      return launch(codes_kernel<E, bits>, blocks_for(args.numel, kWarps * kTile), kThreads, stream, args);
    });
  });
}

cudaError_t stepwise_backward(const StepwiseBackward& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_bits(args.bits, [&]<int bits>() {
      return launch(backward_kernel<E, bits>, blocks_for(args.numel, kWarps * kTile), kThreads, stream, args);
    });
  });
}

}  // namespace actcore::cuda
