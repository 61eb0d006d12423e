// Max pooling on CUDA. Forward takes an output a thread; backward an element of the input, which sums the gradients of
// the windows that it won, in the order of the outputs: no atomics, and the bits of the CPU.
#include "codec/pool.h"

#include "codec/dispatch.h"
#include "cuda/divisor.cuh"
#include "cuda/fused.h"
#include "cuda/launch.cuh"

namespace actcore::cuda {
namespace {

constexpr int kThreads = 256;

// Packs one code a thread; each eighth thread writes the bytes of eight. Called by whole blocks.
__device__ void store_block_codes(int code, int bits, uint8_t* packed, int64_t first, int64_t numel) {
  alignas(8) __shared__ uint8_t codes[kThreads];
  codes[threadIdx.x] = static_cast<uint8_t>(code);
  __syncthreads();
  const int64_t begin = first + 8 * static_cast<int64_t>(threadIdx.x);
  if (threadIdx.x >= kThreads / 8 || begin >= numel) return;
  const uint64_t word = squeeze8(reinterpret_cast<const uint64_t*>(codes)[threadIdx.x], bits);
  const int bytes = static_cast<int>(packed_bytes(numel - begin < 8 ? numel - begin : 8, bits));
  for (int b = 0; b < bytes; ++b) packed[begin / 8 * bits + b] = static_cast<uint8_t>(word >> (8 * b));
}

// Where element `i` of all planes lies: in which plane, and at which place there.
template <class Int>
struct Place {
  Int plane;
  Int at[kPoolDims];
};

// Divides by the sizes of a plane. With Int = uint32_t all that a kernel computes is below 2^31.
template <class Int>
struct Extent {
  Divisor<Int> plane, slice, row;

  explicit Extent(const int64_t* size) : plane(size[0] * size[1] * size[2]), slice(size[1] * size[2]), row(size[2]) {}

  __device__ Place<Int> place(Int i) const {
    const Int image = plane.quotient(i), inside = plane.remainder(i, image);
    const Int z = slice.quotient(inside), rest = slice.remainder(inside, z);
    const Int y = row.quotient(rest);
    return {image, {z, y, row.remainder(rest, y)}};
  }
};

// Whether no number that backward computes reaches 2^31.
bool fits_32_bits(const PoolShape& shape) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  int64_t in = shape.planes, out = shape.planes;
  for (int d = 0; d < kPoolDims; ++d) {
    in *= shape.size[d];
    out *= shape.out[d];
    const int64_t window = shape.kernel[d] * shape.dilation[d];
    if (shape.size[d] + shape.padding[d] + shape.stride[d] + window >= kLimit) return false;
  }
  return in < kLimit && out < kLimit;
}

template <class E, class Int>
__global__ void __launch_bounds__(kThreads) pool_kernel(MaxPool args, Extent<Int> extent, int64_t numel) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads, i = first + threadIdx.x;
  int code = 0;
  if (i < numel) {
    const Place<Int> place = extent.place(static_cast<Int>(i));
    const E* plane = static_cast<const E*>(args.input) + place.plane * plane_size(args.shape);
    const Maximum<E> found = window_maximum(args.shape, plane, {place.at[0], place.at[1], place.at[2]});
    static_cast<E*>(args.output)[i] = found.value;
    code = found.index;
  }
  store_block_codes(code, args.shape.bits, args.packed, first, numel);
}

// The sides of the windows that have kernels of their own, since most networks have them: squares of one slice, without
// dilation, whose numbers fit in 32 bits. 0 for all others.
int small_side(const PoolShape& shape) {
  const int64_t side = shape.kernel[1];
  bool is_small = (side == 2 || side == 3) && shape.kernel[2] == side && fits_32_bits(shape);
  is_small &= shape.kernel[0] == 1 && shape.size[0] == 1 && shape.out[0] == 1 && shape.padding[0] == 0;
  return is_small && shape.dilation[1] == 1 && shape.dilation[2] == 1 ? static_cast<int>(side) : 0;
}

// As pool_kernel, with all elements of a window read before the first is compared.
template <class E, int side>
__global__ void __launch_bounds__(kThreads) small_pool_kernel(MaxPool args, Extent<uint32_t> extent, int64_t numel) {
  using T = compute_t<E>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads, i = first + threadIdx.x;
  int code = 0;
  if (i < numel) {
    const Place<uint32_t> place = extent.place(static_cast<uint32_t>(i));
    const E* plane = static_cast<const E*>(args.input) + place.plane * plane_size(args.shape);
    const int rows = static_cast<int>(args.shape.size[1]), columns = static_cast<int>(args.shape.size[2]);
    const int y = static_cast<int>(place.at[1] * args.shape.stride[1] - args.shape.padding[1]);
    const int x = static_cast<int>(place.at[2] * args.shape.stride[2] - args.shape.padding[2]);
    T value[side * side];
#pragma unroll
    for (int k = 0; k < side * side; ++k) {
      const int row = y + k / side, column = x + k % side;
      const bool is_inside = row >= 0 && row < rows && column >= 0 && column < columns;
      value[k] = is_inside ? load(plane[row * columns + column]) : -static_cast<T>(INFINITY);
    }
    T best = -static_cast<T>(INFINITY);
    code = (y < 0 ? -y : 0) * side + (x < 0 ? -x : 0);
#pragma unroll
    for (int k = 0; k < side * side; ++k) {  // what lies outside replaces nothing
      if (replaces(value[k], best)) {
        best = value[k];
        code = k;
      }
    }
    store(static_cast<E*>(args.output) + i, best);
  }
  store_block_codes(code, args.shape.bits, args.packed, first, numel);
}

// What backward asks of one dimension: which outputs' windows cover a place, and at which index of theirs.
template <class Int>
struct Windows {
  Divisor<Int> by_stride, by_dilation;
  Int stride, dilation, padding, reach, out, kernel;

  Windows(const PoolShape& shape, int d)
      : by_stride(shape.stride[d]),
        by_dilation(shape.dilation[d]),
        stride(static_cast<Int>(shape.stride[d])),
        dilation(static_cast<Int>(shape.dilation[d])),
        padding(static_cast<Int>(shape.padding[d])),
        reach(static_cast<Int>((shape.kernel[d] - 1) * shape.dilation[d])),
        out(static_cast<Int>(shape.out[d])),
        kernel(static_cast<Int>(shape.kernel[d])) {}

  // Outputs [first, end) begin at most `reach` before the place. `offset` is how far the first does, and of each
  // further one it is less by `stride`.
  struct Covering {
    Int first, end, offset;
  };
  __device__ Covering covering(Int at) const {
    const Int place = at + padding, last = by_stride.quotient(place);
    const Int first = place > reach ? by_stride.quotient(place - reach + stride - 1) : 0;
    return {first, last < out ? last + 1 : out, place - first * stride};
  }
  // The index of the place in such a window; false between two of its elements.
  __device__ bool index(Int offset, Int& index) const {
    index = by_dilation.quotient(offset);
    return index * dilation == offset;
  }
};

template <class Int>
struct AllWindows {
  Windows<Int> z, y, x;
  explicit AllWindows(const PoolShape& shape) : z(shape, 0), y(shape, 1), x(shape, 2) {}
};

template <class E, class Int>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(MaxPoolBackward args, Extent<Int> extent, AllWindows<Int> windows, int64_t numel) {
  using T = compute_t<E>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const auto& [z, y, x] = windows;
  const Place<Int> place = extent.place(static_cast<Int>(i));
  const auto in_z = z.covering(place.at[0]), in_y = y.covering(place.at[1]), in_x = x.covering(place.at[2]);
  const E* gradient = static_cast<const E*>(args.gradient);
  T sum = 0;
  Int kz, ky, kx;
  for (Int oz = in_z.first, offset_z = in_z.offset; oz < in_z.end; ++oz, offset_z -= z.stride) {
    if (!z.index(offset_z, kz)) continue;
    for (Int oy = in_y.first, offset_y = in_y.offset; oy < in_y.end; ++oy, offset_y -= y.stride) {
      if (!y.index(offset_y, ky)) continue;
      const Int row = ((place.plane * z.out + oz) * y.out + oy) * x.out, code_of_row = (kz * y.kernel + ky) * x.kernel;
      for (Int ox = in_x.first, offset_x = in_x.offset; ox < in_x.end; ++ox, offset_x -= x.stride) {
        if (!x.index(offset_x, kx)) continue;
        const auto code = static_cast<Int>(code_at(args.packed, row + ox, args.shape.bits));
        if (code == code_of_row + kx) sum += load(gradient[row + ox]);
      }
    }
  }
  store(static_cast<E*>(args.output) + i, sum);
}

// As backward_kernel, for the windows of small_side that lie two places apart. A thread takes kRun elements beside each
// other, and asks each window that covers one of them which element has won it.
constexpr int kRun = 8;

template <class E, int side>
__global__ void __launch_bounds__(kThreads)
    small_backward_kernel(MaxPoolBackward args, Extent<uint32_t> runs, AllWindows<uint32_t> windows, int64_t numel) {
  using T = compute_t<E>;
  constexpr int bits = side == 2 ? 2 : 4, kStride = 2, kMost = (kRun + side - 2) / kStride + 1;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const auto& y = windows.y;
  const auto& x = windows.x;
  const Place<uint32_t> place = runs.place(static_cast<uint32_t>(i));
  const auto columns = static_cast<uint32_t>(args.shape.size[2]), from = place.at[2] * kRun;
  const auto end = from + kRun < columns ? from + kRun : columns;
  const auto in_y = y.covering(place.at[1]), in_x = x.covering(from);
  const uint32_t last_x = x.covering(end - 1).end;
  const E* gradient = static_cast<const E*>(args.gradient);
  T sum[kRun] = {};
  uint32_t offset_y = in_y.offset;
  for (uint32_t oy = in_y.first; oy < in_y.end; ++oy, offset_y -= kStride) {
    const uint32_t row = (place.plane * y.out + oy) * x.out;
    int code[kMost];
    T value[kMost];
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const bool is_there = in_x.first + k < last_x;
      code[k] = is_there ? code_at(args.packed, row + in_x.first + k, bits) : side * side;
      value[k] = is_there ? load(gradient[row + in_x.first + k]) : T(0);
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int inner = code[k] - static_cast<int>(offset_y) * side;  // of this row's elements in the window, which won
      const int won = inner >= 0 && inner < side ? inner + k * kStride - static_cast<int>(in_x.offset) : -1;
#pragma unroll
      for (int at = 0; at < kRun; ++at) {
        if (won == at) sum[at] += value[k];
      }
    }
  }
  E* output =
      static_cast<E*>(args.output) + (static_cast<int64_t>(place.plane) * args.shape.size[1] + place.at[1]) * columns;
#pragma unroll
  for (int at = 0; at < kRun; ++at) {
    if (from + at < end) store(output + from + at, sum[at]);
  }
}

// The index in an output's window of a place in its plane; -1 where the place is not in the window.
template <class Int>
__device__ int index_in_window(const AllWindows<Int>& windows, const Place<Int>& out, const Place<Int>& place) {
  const Windows<Int>* along[] = {&windows.z, &windows.y, &windows.x};
  Int index = 0;
#pragma unroll
  for (int d = 0; d < kPoolDims; ++d) {
    const Int at = place.at[d] + along[d]->padding, start = out.at[d] * along[d]->stride;
    Int inner;
    if (at < start || !along[d]->index(at - start, inner) || inner >= along[d]->kernel) return -1;
    index = index * along[d]->kernel + inner;
  }
  return static_cast<int>(index);
}

template <class Int>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(WindowIndexPack args, Extent<Int> outputs, Extent<Int> inputs, AllWindows<Int> windows, int64_t numel) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads, i = first + threadIdx.x;
  int code = 0;
  if (i < numel) {
    const int64_t flat = args.indices[i];
    code = flat >= 0 && flat < plane_size(args.shape)
               ? index_in_window(windows, outputs.place(static_cast<Int>(i)), inputs.place(static_cast<Int>(flat)))
               : -1;
    if (code < 0) {
      *args.misfit = 1;
      code = 0;
    }
  }
  store_block_codes(code, args.shape.bits, args.packed, first, numel);
}

template <class Int>
__global__ void __launch_bounds__(kThreads) unpack_kernel(WindowIndexUnpack args, Extent<Int> outputs,
                                                          Extent<Int> kernel, AllWindows<Int> windows, int64_t numel) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const Place<Int> out = outputs.place(static_cast<Int>(i));
  const auto code = static_cast<Int>(code_at(args.packed, static_cast<Int>(i), args.shape.bits));
  const Windows<Int>* along[] = {&windows.z, &windows.y, &windows.x};
  const Int z = kernel.slice.quotient(code), rest = kernel.slice.remainder(code, z), y = kernel.row.quotient(rest);
  const Int inner[] = {z, y, kernel.row.remainder(rest, y)};
  Int flat = 0;
  bool is_inside = true;
#pragma unroll
  for (int d = 0; d < kPoolDims; ++d) {
    const auto size = static_cast<Int>(args.shape.size[d]);
    const Int at = out.at[d] * along[d]->stride + inner[d] * along[d]->dilation, padding = along[d]->padding;
    is_inside &= at >= padding && at - padding < size;
    flat = flat * size + at - padding;
  }
  args.indices[i] = is_inside ? static_cast<int64_t>(flat) : -1;
}

int64_t outputs(const PoolShape& shape) { return shape.planes * plane_out(shape); }

// Calls with the integers that suffice for the shape.
template <class Call>
cudaError_t with_integers(const PoolShape& shape, const Call& call) {
  return fits_32_bits(shape) ? call.template operator()<uint32_t>() : call.template operator()<int64_t>();
}

}  // namespace

cudaError_t max_pool(const MaxPool& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    if (const int side = small_side(args.shape); side != 0) {
      return launch(side == 2 ? small_pool_kernel<E, 2> : small_pool_kernel<E, 3>, blocks_for(numel, kThreads),
                    kThreads, stream, args, Extent<uint32_t>(args.shape.out), numel);
    }
    return with_integers(args.shape, [&]<class Int>() {
      const Extent<Int> extent(args.shape.out);
      return launch(pool_kernel<E, Int>, blocks_for(numel, kThreads), kThreads, stream, args, extent, numel);
    });
  });
}

cudaError_t max_pool_backward(const MaxPoolBackward& args, cudaStream_t stream) {
  const int64_t numel = args.shape.planes * plane_size(args.shape);
  if (numel == 0) return cudaSuccess;
  const int side = small_side(args.shape);
  return with_type(args.type, [&]<class E>() {
    if (side != 0 && args.shape.stride[1] == 2 && args.shape.stride[2] == 2) {
      const int64_t runs[] = {1, args.shape.size[1], (args.shape.size[2] - 1) / kRun + 1};
      const int64_t threads = args.shape.planes * runs[1] * runs[2];
      return launch(side == 2 ? small_backward_kernel<E, 2> : small_backward_kernel<E, 3>,
                    blocks_for(threads, kThreads), kThreads, stream, args, Extent<uint32_t>(runs),
                    AllWindows<uint32_t>(args.shape), threads);
    }
    return with_integers(args.shape, [&]<class Int>() {
      return launch(backward_kernel<E, Int>, blocks_for(numel, kThreads), kThreads, stream, args,
                    Extent<Int>(args.shape.size), AllWindows<Int>(args.shape), numel);
    });
  });
}

cudaError_t window_index_pack(const WindowIndexPack& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return with_integers(args.shape, [&]<class Int>() {
    return launch(pack_kernel<Int>, blocks_for(numel, kThreads), kThreads, stream, args, Extent<Int>(args.shape.out),
                  Extent<Int>(args.shape.size), AllWindows<Int>(args.shape), numel);
  });
}

cudaError_t window_index_unpack(const WindowIndexUnpack& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return with_integers(args.shape, [&]<class Int>() {
    return launch(unpack_kernel<Int>, blocks_for(numel, kThreads), kThreads, stream, args, Extent<Int>(args.shape.out),
                  Extent<Int>(args.shape.kernel), AllWindows<Int>(args.shape), numel);
  });
}

}  // namespace actcore::cuda
