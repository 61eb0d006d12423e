// Max pooling that keeps, for backward, where in its window each maximum was: ceil(log2(window)) bits an output
// instead of torch's 64. The arithmetic of one window, the same on every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "codec/arguments.h"
#include "codec/bits.h"
#include "codec/group_affine.h"

namespace actcore {

constexpr int kPoolDims = 3;
constexpr int64_t kMaxWindow = int64_t{1} << kMaxBits;

// Every pooling is one of three dimensions, of which the first may be 1. Planes are independent images.
struct PoolShape {
  int64_t planes;
  int64_t size[kPoolDims];
  int64_t out[kPoolDims];
  int64_t kernel[kPoolDims];
  int64_t stride[kPoolDims];
  int64_t padding[kPoolDims];
  int64_t dilation[kPoolDims];
  int bits;
};

ACTCORE_FN int64_t plane_size(const PoolShape& shape) { return shape.size[0] * shape.size[1] * shape.size[2]; }
ACTCORE_FN int64_t plane_out(const PoolShape& shape) { return shape.out[0] * shape.out[1] * shape.out[2]; }

struct MaxPool {
  PoolShape shape;
  const void* input;
  ElementType type;
  void* output;
  uint8_t* packed;
};

struct MaxPoolBackward {
  PoolShape shape;
  const void* gradient;
  const uint8_t* packed;
  ElementType type;
  void* output;
};

// Between torch's flat indices in a plane and window indices.
struct WindowIndexPack {
  PoolShape shape;
  const int64_t* indices;
  uint8_t* packed;
  int32_t* misfit;  // set to 1 where an index is not in its window
};

struct WindowIndexUnpack {
  PoolShape shape;
  const uint8_t* packed;
  int64_t* indices;
};

struct PoolPlace {
  int64_t at[kPoolDims];
};

ACTCORE_FN PoolPlace place_of(int64_t flat, const int64_t* extent) {
  return {{flat / (extent[1] * extent[2]), flat / extent[2] % extent[1], flat % extent[2]}};
}

// The places of one dimension that a window covers: first, first + dilation, ... below end; `skipped` of the kernel's
// lie before the input.
struct WindowSpan {
  int64_t first;
  int64_t end;
  int64_t skipped;
};

ACTCORE_FN WindowSpan window_span(const PoolShape& shape, int d, int64_t out) {
  const int64_t start = out * shape.stride[d] - shape.padding[d];
  const int64_t skipped = start < 0 ? (-start + shape.dilation[d] - 1) / shape.dilation[d] : 0;
  const int64_t end = start + (shape.kernel[d] - 1) * shape.dilation[d] + 1;
  return {start + skipped * shape.dilation[d], end < shape.size[d] ? end : shape.size[d], skipped};
}

template <class E>
struct Maximum {
  E value;
  int index;  // in the window, row by row
};

template <class T>
ACTCORE_FN bool replaces(T value, T best) {
  return value > best || value != value;  // as torch: the first of equals, and the last NaN
}

// The maximum over a window of a plane, in scan order; -infinity and the first place where the window is empty.
template <class E>
ACTCORE_FN Maximum<E> window_maximum(const PoolShape& shape, const E* plane, const PoolPlace& out) {
  using T = compute_t<E>;
  const WindowSpan z = window_span(shape, 0, out.at[0]), y = window_span(shape, 1, out.at[1]),
                   x = window_span(shape, 2, out.at[2]);
  const int64_t rows = shape.kernel[1], columns = shape.kernel[2];
  T best = -static_cast<T>(INFINITY);
  int64_t index = (z.skipped * rows + y.skipped) * columns + x.skipped;
  int64_t kz = z.skipped;
  for (int64_t i = z.first; i < z.end; i += shape.dilation[0], ++kz) {
    int64_t ky = y.skipped;
    for (int64_t j = y.first; j < y.end; j += shape.dilation[1], ++ky) {
      const E* row = plane + (i * shape.size[1] + j) * shape.size[2];
      int64_t kx = x.skipped;
      for (int64_t k = x.first; k < x.end; k += shape.dilation[2], ++kx) {
        const T value = load(row[k]);
        if (replaces(value, best)) {
          best = value;
          index = (kz * rows + ky) * columns + kx;
        }
      }
    }
  }
  Maximum<E> found;
  store(&found.value, best);
  found.index = static_cast<int>(index);
  return found;
}

// Where in its plane element `index` of an output's window lies. Outside [0, size) only if the codes are damaged, or
// for a window that covers nothing.
ACTCORE_FN PoolPlace window_place(const PoolShape& shape, const PoolPlace& out, int index) {
  const PoolPlace in = place_of(index, shape.kernel);
  PoolPlace place = {};
  for (int d = 0; d < kPoolDims; ++d) {
    place.at[d] = out.at[d] * shape.stride[d] - shape.padding[d] + in.at[d] * shape.dilation[d];
  }
  return place;
}

ACTCORE_FN bool inside(const PoolShape& shape, const PoolPlace& place) {
  bool all = true;
  for (int d = 0; d < kPoolDims; ++d) all &= place.at[d] >= 0 && place.at[d] < shape.size[d];
  return all;
}

ACTCORE_FN int64_t flat_place(const PoolShape& shape, const PoolPlace& place) {
  return (place.at[0] * shape.size[1] + place.at[1]) * shape.size[2] + place.at[2];
}

// The inverse of window_place; -1 where the place is not in the window.
ACTCORE_FN int window_index(const PoolShape& shape, const PoolPlace& out, int64_t flat) {
  if (flat < 0 || flat >= plane_size(shape)) return -1;
  const PoolPlace place = place_of(flat, shape.size);
  int64_t index = 0;
  for (int d = 0; d < kPoolDims; ++d) {
    const int64_t offset = place.at[d] - (out.at[d] * shape.stride[d] - shape.padding[d]);
    if (offset < 0 || offset % shape.dilation[d] != 0 || offset / shape.dilation[d] >= shape.kernel[d]) return -1;
    index = index * shape.kernel[d] + offset / shape.dilation[d];
  }
  return static_cast<int>(index);
}

// Code `i` >= 0 of a packed stream.
template <class Int>
ACTCORE_FN int code_at(const uint8_t* packed, Int i, int bits) {
  const int begin = static_cast<int>(i & 7) * bits, shift = begin & 7;
  const int64_t byte = static_cast<int64_t>(i >> 3) * bits + (begin >> 3);
  uint32_t word = packed[byte];
  if (shift + bits > 8) word |= static_cast<uint32_t>(packed[byte + 1]) << 8;
  return static_cast<int>(word >> shift & ((1u << bits) - 1u));
}

}  // namespace actcore
