// Max pooling on the CPU. Forward shares outputs among threads, backward planes: within a plane windows overlap.
#pragma once

#include "codec/dispatch.h"
#include "codec/pool.h"
#include "cpu/bits.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// Steps through outputs in order without a division each.
struct OutputWalk {
  const PoolShape& shape;
  int64_t plane;
  PoolPlace place;

  OutputWalk(const PoolShape& of, int64_t first)
      : shape(of), plane(first / plane_out(of)), place(place_of(first % plane_out(of), of.out)) {}

  void next() {
    if (++place.at[2] < shape.out[2]) return;
    place.at[2] = 0;
    if (++place.at[1] < shape.out[1]) return;
    place.at[1] = 0;
    if (++place.at[0] < shape.out[0]) return;
    place.at[0] = 0;
    ++plane;
  }
};

// The elements of a window by their index, for windows of few elements: no place in them takes a division.
struct WindowTable {
  static constexpr int kMost = 32;

  const PoolShape& shape;
  int count = 0;            // of elements; 0 where the window has too many, or is as wide as the plane
  int64_t distance[kMost];  // in a plane, from the window's first element, inside or not; in ascending order
  PoolPlace offset[kMost];

  explicit WindowTable(const PoolShape& of) : shape(of) {
    int64_t elements = 1;
    for (int d = 0; d < kPoolDims; ++d) {
      elements *= shape.kernel[d];
      if ((shape.kernel[d] - 1) * shape.dilation[d] >= shape.size[d]) return;
    }
    if (elements > kMost) return;
    count = static_cast<int>(elements);
    for (int i = 0; i < count; ++i) {
      offset[i] = place_of(i, shape.kernel);
      for (int d = 0; d < kPoolDims; ++d) offset[i].at[d] *= shape.dilation[d];
      distance[i] = flat_place(shape, offset[i]);
    }
  }

  PoolPlace start(const PoolPlace& out) const {
    PoolPlace place;
    for (int d = 0; d < kPoolDims; ++d) place.at[d] = out.at[d] * shape.stride[d] - shape.padding[d];
    return place;
  }

  bool covers(const PoolPlace& start, int index) const {
    PoolPlace place = start;
    for (int d = 0; d < kPoolDims; ++d) place.at[d] += offset[index].at[d];
    return inside(shape, place);
  }

  // As window_index.
  int index_of(const PoolPlace& out, int64_t flat) const {
    if (count == 0) return window_index(shape, out, flat);
    if (flat < 0 || flat >= plane_size(shape)) return -1;
    const PoolPlace first = start(out);
    const int64_t away = flat - flat_place(shape, first);
    int index = -1;
    for (int i = 0; i < count; ++i) index += distance[i] <= away;
    return index >= 0 && distance[index] == away && covers(first, index) ? index : -1;
  }

  // As flat_place of window_place; -1 outside.
  int64_t flat_of(const PoolPlace& out, int index) const {
    if (index >= count) {
      const PoolPlace place = window_place(shape, out, index);
      return inside(shape, place) ? flat_place(shape, place) : -1;
    }
    const PoolPlace first = start(out);
    return covers(first, index) ? flat_place(shape, first) + distance[index] : -1;
  }
};

template <class E>
void max_pool(const MaxPool& args, int64_t begin, int64_t end) {
  const PoolShape& shape = args.shape;
  const E* input = static_cast<const E*>(args.input);
  E* output = static_cast<E*>(args.output);
  alignas(64) uint8_t tile[kTile];
  OutputWalk walk(shape, begin);
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    for (int64_t j = 0; j < count; ++j, walk.next()) {
      const Maximum<E> found = window_maximum(shape, input + walk.plane * plane_size(shape), walk.place);
      output[i + j] = found.value;
      tile[j] = static_cast<uint8_t>(found.index);
    }
    with_bits(shape.bits, [&]<int bits>() { pack_tile<bits>(tile, count, args.packed + packed_bytes(i, bits)); });
  }
}

// Sums each element's gradients in the order of the outputs, in the type that it is computed in, and rounds once.
template <class E>
void max_pool_backward(const MaxPoolBackward& args, int64_t begin, int64_t end) {
  using T = compute_t<E>;
  const PoolShape& shape = args.shape;
  const int64_t size = plane_size(shape), outs = plane_out(shape);
  const WindowTable table(shape);
  T* sums = new T[static_cast<size_t>(size)];  // no std:: container: its code would be shared by instruction sets
  for (int64_t plane = begin; plane < end; ++plane) {
    memset(sums, 0, static_cast<size_t>(size) * sizeof(T));
    const E* gradient = static_cast<const E*>(args.gradient) + plane * outs;
    OutputWalk walk(shape, 0);
    for (int64_t i = 0; i < outs; ++i, walk.next()) {
      const int64_t flat = table.flat_of(walk.place, code_at(args.packed, plane * outs + i, shape.bits));
      if (flat >= 0) sums[flat] += actcore::load(gradient[i]);
    }
    E* output = static_cast<E*>(args.output) + plane * size;
    for (int64_t i = 0; i < size; ++i) actcore::store(output + i, sums[i]);
  }
  delete[] sums;
}

inline bool window_index_pack(const WindowIndexPack& args, int64_t begin, int64_t end) {
  const PoolShape& shape = args.shape;
  const WindowTable table(shape);
  alignas(64) uint8_t tile[kTile];
  bool fits = true;
  OutputWalk walk(shape, begin);
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    for (int64_t j = 0; j < count; ++j, walk.next()) {
      const int index = table.index_of(walk.place, args.indices[i + j]);
      fits &= index >= 0;
      tile[j] = static_cast<uint8_t>(index < 0 ? 0 : index);
    }
    with_bits(shape.bits, [&]<int bits>() { pack_tile<bits>(tile, count, args.packed + packed_bytes(i, bits)); });
  }
  return fits;
}

inline void window_index_unpack(const WindowIndexUnpack& args, int64_t begin, int64_t end) {
  const PoolShape& shape = args.shape;
  const WindowTable table(shape);
  OutputWalk walk(shape, begin);
  for (int64_t i = begin; i < end; ++i, walk.next())
    args.indices[i] = table.flat_of(walk.place, code_at(args.packed, i, shape.bits));
}

}  // namespace actcore::ACTCORE_ISA
