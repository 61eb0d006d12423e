// Means and deviations of a tensor's elements, as a batch or group norm takes them of its input. A thread takes the moments
// of 32 elements that it holds; from there on sums are of doubles, in an order that follows from the shape alone. Means
// are put together by their distances from one of them, so that equal ones give it exactly.
#include "codec/dispatch.h"
#include "cuda/divisor.cuh"
#include "cuda/intrinsics.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/standardize.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;  // that a block takes at most, where channels are last
constexpr int kRounds = 4;    // times 32 rows that a thread takes of its column

// Of some elements: their mean, and the sum of their squared distances from it.
struct Moments {
  double mean;
  double squares;
};

// The parts of a tensor whose moments are taken first. Where channels are first, a part is of a tile of a statistic's
// elements; where they are last, of some rows of a column.
struct Parts {
  int64_t length;   // elements of those that a column, or a statistic, is divided into
  int64_t size;     // elements that are divided
  int64_t chunks;   // parts of each
  int64_t columns;  // that lie beside each other: channels, or statistics
  int64_t blocks;   // of rows that have statistics of their own
  int width;        // columns of a thread block
  int height;       // rows that it takes at a time

  explicit Parts(const StandardizedShape& shape) : width(1), height(kThreads) {
    if (shape.channels) {
      // As wide as leaves the last block about as many columns.
      width = static_cast<int>(blocks_for(shape.channels, blocks_for(shape.channels, kColumns)));
      height = kThreads / width;
      length = int64_t{kRounds} * kRow * height, size = shape.inner;
      columns = shape.channels, blocks = shape.count * shape.each / columns;
    } else {
      length = kTile, size = shape.numel / shape.count, columns = shape.count, blocks = 1;
    }
    chunks = blocks_for(size, length);
  }

  __host__ __device__ int64_t count() const { return blocks * chunks * columns; }
  __device__ int64_t place(int64_t block, int64_t chunk, int64_t column) const {
    return (block * chunks + chunk) * columns + column;
  }
  __device__ int64_t elements(int64_t chunk) const {
    return size - chunk * length < length ? size - chunk * length : length;
  }
};

template <class E>
__device__ compute_t<E> number(E value) {
  if constexpr (sizeof(E) == 2) {
    return Pair<E>::first(value.bits);
  } else {
    return value;
  }
}

// Of the first `count` of a thread's elements. Distances are from about their mean, which is found as the first element and
// the mean distance from it, so that it is the element itself where all are equal.
template <class T>
__device__ Moments moments_of(const T (&x)[kRow], int count) {
  if (count == 0) return {0, 0};
  T sum = 0;
#pragma unroll
  for (int i = 1; i < kRow; ++i) sum += i < count ? x[i] - x[0] : T(0);
  const T part = T(1) / static_cast<T>(count), middle = x[0] + sum * part;
  T distances = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const T distance = i < count ? x[i] - middle : T(0);
    distances += distance;
    squares = fused_multiply_add(distance, distance, squares);
  }
  const double off = static_cast<double>(distances * part);
  return {static_cast<double>(middle) + off, static_cast<double>(squares) - static_cast<double>(distances) * off};
}

__device__ double sum_of_warp(double value) {
  for (int lanes = 1; lanes < kWarp; lanes *= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
  return value;
}

// The sum that each thread of a block gets; `memory` has room for one of each warp.
__device__ double sum_of_block(double value, double* memory) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = sum_of_warp(value);
  if (warps == 1) return value;
  __syncthreads();  // until here others may still read what was there
  if (lane_index() == 0) memory[warp_index()] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < warps; ++w) sum += memory[w];
  return sum;
}

// Channels first: a warp takes the moments of a tile of a statistic's elements. Runs of them are `between` elements apart.
template <class E>
__global__ void __launch_bounds__(kThreads) runs_kernel(TakeMoments args, Parts parts, Divisor<int64_t> by_count,
                                                        Divisor<int64_t> by_inner, Turn run, bool whole) {
  using T = compute_t<E>;
  constexpr int kElements = Cell<E>::kElements;
  const StandardizedShape& shape = args.shape;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + warp_index();
  if (index >= parts.count()) return;
  const int64_t chunk = by_count.quotient(index), statistic = by_count.remainder(index, chunk);
  const int64_t first = chunk * parts.length, runs = by_inner.quotient(first), in_run = by_inner.remainder(first, runs);
  const int64_t between = (shape.count - 1) * shape.inner;
  const E* from = static_cast<const E*>(args.input) + (runs * shape.count + statistic) * shape.inner + in_run;
  const int count = static_cast<int>(parts.elements(chunk)), left = Turn::in_tile(shape.inner - in_run);
  const int lane = lane_index();
  T x[kRow];
  int mine;
  if (whole) {
    Cell<E> cell[Row<E>::kCells] = {};
#pragma unroll
    for (int c = 0; c < Row<E>::kCells; ++c) {
      const int place = (c * kWarp + lane) * kElements;
      if (place < count) cell[c] = *reinterpret_cast<const Cell<E>*>(from + place + run.ends(place, left) * between);
    }
#pragma unroll
    for (int i = 0; i < kRow; ++i) x[i] = number(cell[i / kElements].element[i % kElements]);
    mine = (count / kElements - lane + kWarp - 1) / kWarp * kElements;
  } else {
#pragma unroll
    for (int i = 0; i < kRow; ++i) {
      const int place = i * kWarp + lane;
      x[i] = place < count ? number(from[place + run.ends(place, left) * between]) : T(0);
    }
    mine = (count - lane + kWarp - 1) / kWarp;
  }
  const Moments own = moments_of(x, mine);
  const double from_one = __shfl_sync(0xFFFFFFFFu, own.mean, 0);
  const double mean = from_one + sum_of_warp(mine * (own.mean - from_one)) / count, apart = own.mean - mean;
  const double squares = sum_of_warp(own.squares + mine * apart * apart);
  if (lane == 0) reinterpret_cast<Moments*>(args.parts)[parts.place(0, chunk, statistic)] = {mean, squares};
}

// Channels last: a thread takes the moments of some rows of a column, and a block those of its threads together.
template <class E>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(TakeMoments args, Parts parts, Divisor<int64_t> by_tiles, Divisor<int64_t> by_chunks) {
  using T = compute_t<E>;
  __shared__ Moments of_thread[kThreads];
  __shared__ int elements[kThreads];
  const StandardizedShape& shape = args.shape;
  const int64_t rest = by_tiles.quotient(blockIdx.x), tile = by_tiles.remainder(blockIdx.x, rest);
  const int64_t block = by_chunks.quotient(rest), chunk = by_chunks.remainder(rest, block);
  const int group = static_cast<int>(threadIdx.x) / parts.width, in_tile = static_cast<int>(threadIdx.x) % parts.width;
  const int64_t column = tile * parts.width + in_tile;
  const bool takes = group < parts.height && column < shape.channels;
  const int rows = static_cast<int>(parts.elements(chunk)), step = kRow * parts.height;
  const E* from = static_cast<const E*>(args.input) +
                  (block * shape.inner + chunk * parts.length + group) * shape.channels + column;
  const int64_t below = parts.height * shape.channels;

  Moments all = {0, 0};
  int taken = 0;
  for (int row = group; takes && row < rows; row += step) {
    const int left = (rows - row + parts.height - 1) / parts.height, mine = left < kRow ? left : kRow;
    T x[kRow];
#pragma unroll
    for (int i = 0; i < kRow; ++i, from += below) x[i] = i < mine ? number(*from) : T(0);
    const Moments more = moments_of(x, mine);
    taken += mine;
    const double part = static_cast<double>(mine) / taken, apart = more.mean - all.mean;
    all.squares += more.squares + (taken - mine) * part * apart * apart;
    all.mean += apart * part;
  }
  of_thread[threadIdx.x] = all;
  elements[threadIdx.x] = taken;
  __syncthreads();
  if (group != 0 || !takes) return;
  const double from_one = of_thread[in_tile].mean;
  double mean = 0, squares = 0;
  for (int i = in_tile; i < parts.height * parts.width; i += parts.width) {
    mean += elements[i] * (of_thread[i].mean - from_one);
  }
  mean = from_one + mean / rows;
  for (int i = in_tile; i < parts.height * parts.width; i += parts.width) {
    const double apart = of_thread[i].mean - mean;
    squares += of_thread[i].squares + elements[i] * apart * apart;  // 0 for a thread without elements
  }
  reinterpret_cast<Moments*>(args.parts)[parts.place(block, chunk, column)] = {mean, squares};
}

// Puts the parts of a statistic together: a block for each.
template <class T>
__global__ void __launch_bounds__(kThreads)
    join_kernel(TakeMoments args, Parts parts, Divisor<int64_t> by_each, Divisor<int64_t> by_columns) {
  __shared__ double memory[kThreads / kWarp];
  const int64_t statistic = blockIdx.x, each = by_each.by();
  const int64_t block = by_columns.quotient(statistic * each), first = by_columns.remainder(statistic * each, block);
  const Moments* all = reinterpret_cast<const Moments*>(args.parts);
  const double count = static_cast<double>(parts.size) * static_cast<double>(each);
  const auto sum_of = [&](const auto& term) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < parts.chunks * each; i += blockDim.x) {
      const int64_t chunk = by_each.quotient(i), column = first + by_each.remainder(i, chunk);
      sum += term(all[parts.place(block, chunk, column)], static_cast<double>(parts.elements(chunk)));
    }
    return sum_of_block(sum, memory);
  };
  const double from_one = all[parts.place(block, 0, first)].mean;
  const double mean = from_one + sum_of([&](const Moments& part, double elements) {
                                   return elements * (part.mean - from_one);
                                 }) / count;
  const double squares = sum_of([&](const Moments& part, double elements) {
    const double apart = part.mean - mean;
    return part.squares + elements * (apart * apart);
  });
  if (threadIdx.x != 0) return;
  const double variance = squares / count, deviation = sqrt(variance < 0 ? 0 : variance);
  // The bits of a NaN are the CPU's.
  const T found = mean == mean ? static_cast<T>(mean) : static_cast<T>(NAN);
  const T apart = deviation == deviation ? static_cast<T>(deviation) : static_cast<T>(NAN);
  static_cast<T*>(args.means)[statistic] = found;
  static_cast<T*>(args.deviations)[statistic] = apart;
  static_cast<T*>(args.factors)[statistic] = standard_factor(apart);
}

template <class E>
cudaError_t take_parts(const TakeMoments& args, const Parts& parts, cudaStream_t stream) {
  const StandardizedShape& shape = args.shape;
  if (shape.channels) {
    const int64_t tiles = blocks_for(shape.channels, parts.width), blocks = tiles * parts.chunks * parts.blocks;
    return launch(columns_kernel<E>, blocks, kThreads, stream, args, parts, Divisor<int64_t>(tiles),
                  Divisor<int64_t>(parts.chunks));
  }
  const bool whole = shape.inner % Cell<E>::kElements == 0 && is_aligned(args.input, sizeof(Cell<E>));
  return launch(runs_kernel<E>, blocks_for(parts.count(), kThreads / kWarp), kThreads, stream, args, parts,
                Divisor<int64_t>(shape.count), Divisor<int64_t>(shape.inner), Turn(shape.inner), whole);
}

}  // namespace

int64_t moment_parts(const StandardizedShape& shape) {
  return Parts(shape).count() * static_cast<int64_t>(sizeof(Moments) / sizeof(double));
}

cudaError_t take_moments(const TakeMoments& args, cudaStream_t stream) {
  const Parts parts(args.shape);
  const cudaError_t error = with_type(args.type, [&]<class E>() { return take_parts<E>(args, parts, stream); });
  if (error != cudaSuccess) return error;
  const int threads = parts.chunks * args.shape.each > kWarp ? kThreads : kWarp;
  const Divisor<int64_t> by_each(args.shape.each), by_columns(parts.columns);
  return with_type(args.type, [&]<class E>() {
    return launch(join_kernel<compute_t<E>>, args.shape.count, threads, stream, args, parts, by_each, by_columns);
  });
}

}  // namespace actcore::cuda
