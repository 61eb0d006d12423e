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

  // Past so many outputs of a row.
  void skip(int64_t count) {
    place.at[2] += count - 1;
    next();
  }

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
  int64_t begin = 0, end = 0;  // of the outputs of a row whose windows leave the plane at neither side

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
    if (distance[count - 1] > INT32_MAX) return;
    const int64_t stride = shape.stride[2], room = shape.size[2] - 1 - offset[count - 1].at[2] + shape.padding[2];
    begin = (shape.padding[2] + stride - 1) / stride;
    end = room < 0 ? 0 : room / stride + 1 < shape.out[2] ? room / stride + 1 : shape.out[2];
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

  // How many outputs from here on are in one row and have their windows inside.
  int64_t inside_from(const PoolPlace& out) const {
    const PoolPlace first = start(out);
    if (out.at[2] < begin || out.at[2] >= end || !covers(first, 0) || !covers(first, count - 1)) return 0;
    return end - out.at[2];
  }

  // As index_of, of at most kTile outputs of which inside_from speaks: of all beside each other. What is in no window
  // is 0; returns whether nothing is.
  bool indices_of(const PoolPlace& out, const int64_t* flat, int64_t outputs, uint8_t* found) const {
    alignas(64) int32_t away[kTile], index[kTile], hits[kTile];
    const int64_t first = flat_place(shape, start(out)), last = distance[count - 1];
    for (int64_t j = 0; j < outputs; ++j) {
      const int64_t far = flat[j] < 0 ? -1 : flat[j] - first - j * shape.stride[2];
      away[j] = far < 0 || far > last ? -1 : static_cast<int32_t>(far);
      index[j] = -1, hits[j] = 0;
    }
    for (int i = 0; i < count; ++i) {
      const auto near = static_cast<int32_t>(distance[i]);
      for (int64_t j = 0; j < outputs; ++j) index[j] += near <= away[j], hits[j] |= near == away[j];
    }
    int32_t all = 1;
    for (int64_t j = 0; j < outputs; ++j) {
      all &= hits[j];
      found[j] = static_cast<uint8_t>(hits[j] ? index[j] : 0);
    }
    return all != 0;
  }

  // As flat_of, of the same outputs; false for codes of no element, which only damaged ones have.
  bool flats_of(const PoolPlace& out, const uint8_t* codes, int64_t outputs, int64_t* found) const {
    const int64_t first = flat_place(shape, start(out));
    int most = 0;
    for (int64_t j = 0; j < outputs; ++j) most = codes[j] > most ? codes[j] : most;
    if (most >= count) return false;
    for (int64_t j = 0; j < outputs; ++j) found[j] = first + j * shape.stride[2] + distance[codes[j]];
    return true;
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
    for (int64_t j = 0; j < count;) {
      if (const int64_t row = table.inside_from(walk.place)) {
        const int64_t outputs = row < count - j ? row : count - j;
        fits &= table.indices_of(walk.place, args.indices + i + j, outputs, tile + j);
        walk.skip(outputs), j += outputs;
        continue;
      }
      const int index = table.index_of(walk.place, args.indices[i + j]);
      fits &= index >= 0;
      tile[j] = static_cast<uint8_t>(index < 0 ? 0 : index);
      walk.next(), ++j;
    }
    with_bits(shape.bits, [&]<int bits>() { pack_tile<bits>(tile, count, args.packed + packed_bytes(i, bits)); });
  }
  return fits;
}

inline void window_index_unpack(const WindowIndexUnpack& args, int64_t begin, int64_t end) {
  const PoolShape& shape = args.shape;
  const WindowTable table(shape);
  alignas(64) uint8_t tile[kTile];
  OutputWalk walk(shape, begin);
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    with_bits(shape.bits, [&]<int bits>() { unpack_tile<bits>(args.packed + packed_bytes(i, bits), count, tile); });
    for (int64_t j = 0; j < count;) {
      const int64_t row = table.inside_from(walk.place), outputs = row < count - j ? row : count - j;
      if (outputs && table.flats_of(walk.place, tile + j, outputs, args.indices + i + j)) {
        walk.skip(outputs), j += outputs;
        continue;
      }
      args.indices[i + j] = table.flat_of(walk.place, tile[j]);
      walk.next(), ++j;
    }
  }
}

}  // namespace actcore::ACTCORE_ISA
