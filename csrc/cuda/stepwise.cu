// The stepwise family on CUDA: value and code in one pass. Boundaries and levels are in shared memory.
#include "codec/stepwise.h"

#include "codec/dispatch.h"
#include "cuda/activations.cuh"
#include "cuda/fused.h"
#include "cuda/guard.cuh"
#include "cuda/launch.cuh"
#include "cuda/warp_codes.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxTable = 1 << kMaxBits;

template <class E>
__device__ RowCodes row_codes(const Row<E>& row, const compute_t<E>* boundaries, const StepwiseCodes& args, int count) {
  RowCodes codes = {};
  const int left = count - lane_index() * kRow;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const compute_t<E> x = load(row[i]);
    if (i < left) codes.put(i, interval_of(args.even ? magnitude(x) : x, boundaries, args.boundary_count));
  }
  return codes;
}

template <class T>
__device__ void load_table(T* table, const void* from, int count, int size) {
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    table[i] = i < count ? static_cast<const T*>(from)[i] : static_cast<T>(NAN);
  }
  __syncthreads();
}

// A row's codes and, where there are guards, its stretch's byte to memory.
template <class E>
__device__ void store_coded(WarpTile<E>& tile, const Row<E>& row, const compute_t<E>* boundaries,
                            const StepwiseCodes& args, int64_t first, int count) {
  if (args.guards != nullptr) store_guard(is_guarded(row, args.guard), args.guards, first);
  const RowCodes codes = row_codes(row, boundaries, args, count);
  store_row_codes(tile, codes, args.bits, args.codes + packed_bytes(first, args.bits), count);
}

template <class E>
__global__ void __launch_bounds__(kThreads) codes_kernel(StepwiseCodes args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T boundaries[kMaxTable];
  load_table(boundaries, args.boundaries, args.boundary_count, args.boundary_count);
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count);
  store_coded(tile, row, boundaries, args, first, count);
}

template <class E, Function function>
__global__ void __launch_bounds__(kThreads) stepwise_kernel(Stepwise args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T boundaries[kMaxTable];
  const StepwiseCodes& coded = args.codes;
  load_table(boundaries, coded.boundaries, coded.boundary_count, coded.boundary_count);
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(coded.numel - first);
  if (count <= 0) return;

  Row<E> row = load_row(tile, static_cast<const E*>(coded.input) + first, count);
  store_coded(tile, row, boundaries, coded, first, count);
  const T a = static_cast<T>(args.parameters[0]), b = static_cast<T>(args.parameters[1]);
#pragma unroll
  for (int i = 0; i < kRow; ++i) store(&row[i], value_of<function, E>(load(row[i]), a, b));
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
}

template <class E>
__global__ void __launch_bounds__(kThreads) backward_kernel(StepwiseBackward args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T levels[kMaxTable];
  load_table(levels, args.levels, args.level_count, kMaxTable);
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const bool lost = args.guards != nullptr && args.guards[first / kStretch] != 0;
  const RowCodes codes = load_row_codes(tile, args.bits, args.codes + packed_bytes(first, args.bits), count);
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
    return launch(codes_kernel<E>, blocks_for(args.numel, kWarps * kTile), kThreads, stream, args);
  });
}

cudaError_t stepwise_backward(const StepwiseBackward& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return launch(backward_kernel<E>, blocks_for(args.numel, kWarps * kTile), kThreads, stream, args);
  });
}

}  // namespace actcore::cuda
