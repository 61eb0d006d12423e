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

__global__ void __launch_bounds__(kThreads) pack_kernel(WindowIndexPack args, int64_t numel) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads, i = first + threadIdx.x;
  int code = 0;
  if (i < numel) {
    const PoolPlace out = place_of(i % plane_out(args.shape), args.shape.out);
    code = window_index(args.shape, out, args.indices[i]);
    if (code < 0) {
      *args.misfit = 1;
      code = 0;
    }
  }
  store_block_codes(code, args.shape.bits, args.packed, first, numel);
}

__global__ void __launch_bounds__(kThreads) unpack_kernel(WindowIndexUnpack args, int64_t numel) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const PoolPlace out = place_of(i % plane_out(args.shape), args.shape.out);
  const PoolPlace place = window_place(args.shape, out, code_at(args.packed, i, args.shape.bits));
  args.indices[i] = inside(args.shape, place) ? flat_place(args.shape, place) : -1;
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
    return with_integers(args.shape, [&]<class Int>() {
      const Extent<Int> extent(args.shape.out);
      return launch(pool_kernel<E, Int>, blocks_for(numel, kThreads), kThreads, stream, args, extent, numel);
    });
  });
}

cudaError_t max_pool_backward(const MaxPoolBackward& args, cudaStream_t stream) {
  const int64_t numel = args.shape.planes * plane_size(args.shape);
  if (numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_integers(args.shape, [&]<class Int>() {
      return launch(backward_kernel<E, Int>, blocks_for(numel, kThreads), kThreads, stream, args,
                    Extent<Int>(args.shape.size), AllWindows<Int>(args.shape), numel);
    });
  });
}

cudaError_t window_index_pack(const WindowIndexPack& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return launch(pack_kernel, blocks_for(numel, kThreads), kThreads, stream, args, numel);
}

cudaError_t window_index_unpack(const WindowIndexUnpack& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return launch(unpack_kernel, blocks_for(numel, kThreads), kThreads, stream, args, numel);
}

}  // namespace actcore::cuda
