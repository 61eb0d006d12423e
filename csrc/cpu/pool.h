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

// The first elements of the windows of a tile's outputs, inside of the plane or not.
struct Starts {
  alignas(64) int32_t flat[kTile], row[kTile], column[kTile];
};

// The elements of a window by their index, for windows of few elements: no place in them takes a division.
struct WindowTable {
  static constexpr int kMost = 32;

  const PoolShape& shape;
  int count = 0;            // of elements; 0 where it has too many, is as wide as the plane, or the plane is over 2^30
  int32_t distance[kMost];  // in a plane, from the window's first element, inside or not; in ascending order
  int32_t row[kMost], column[kMost];
  PoolPlace offset[kMost];

  explicit WindowTable(const PoolShape& of) : shape(of) {
    int64_t elements = 1;
    for (int d = 0; d < kPoolDims; ++d) {
      elements *= shape.kernel[d];
      if ((shape.kernel[d] - 1) * shape.dilation[d] >= shape.size[d]) return;
    }
    // Half, since windows begin and end outside by less than their own width.
    if (elements > kMost || plane_size(shape) > INT32_MAX / 2) return;
    count = static_cast<int>(elements);
    for (int i = 0; i < count; ++i) {
      offset[i] = place_of(i, shape.kernel);
      for (int d = 0; d < kPoolDims; ++d) offset[i].at[d] *= shape.dilation[d];
      distance[i] = static_cast<int32_t>(flat_place(shape, offset[i]));
      row[i] = static_cast<int32_t>(offset[i].at[1]), column[i] = static_cast<int32_t>(offset[i].at[2]);
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

  // Of at most kTile outputs from where the walk is, which goes past them.
  void starts_of(OutputWalk& walk, int64_t outputs, Starts& found) const {
    const auto stride = static_cast<int32_t>(shape.stride[2]);
    for (int64_t j = 0; j < outputs;) {
      const PoolPlace first = start(walk.place);
      const auto flat = static_cast<int32_t>(flat_place(shape, first));
      const auto row = static_cast<int32_t>(first.at[1]), column = static_cast<int32_t>(first.at[2]);
      const int64_t left = shape.out[2] - walk.place.at[2];
      const auto beside = static_cast<int32_t>(left < outputs - j ? left : outputs - j);
      for (int32_t k = 0; k < beside; ++k) {
        found.flat[j + k] = flat + k * stride, found.row[j + k] = row, found.column[j + k] = column + k * stride;
      }
      walk.skip(beside), j += beside;
    }
  }

  // Whether an element of a window is in the rows and columns of the plane. What is, and is a place in the plane, has
  // the right depth, too.
  bool in_rows(const Starts& starts, int64_t j, int index) const {
    const int32_t x = starts.column[j] + column[index], y = starts.row[j] + row[index];
    return (x >= 0) & (x < shape.size[2]) & (y >= 0) & (y < shape.size[1]);
  }

  // As window_index, of at most kTile outputs beside each other. What is in no window is 0; returns whether nothing is.
  bool indices_of(const Starts& starts, const int64_t* flat, int64_t outputs, uint8_t* found) const {
    alignas(64) int32_t away[kTile], index[kTile], hits[kTile];
    const int64_t size = plane_size(shape);
    for (int64_t j = 0; j < outputs; ++j) {
      const bool there = (flat[j] >= 0) & (flat[j] < size);
      away[j] = there ? static_cast<int32_t>(flat[j]) - starts.flat[j] : -1;
      index[j] = -1, hits[j] = 0;
    }
    for (int i = 0; i < count; ++i) {
      const int32_t near = distance[i];
      for (int64_t j = 0; j < outputs; ++j) index[j] += near <= away[j], hits[j] |= near == away[j];
    }
    int32_t all = 1;
    for (int64_t j = 0; j < outputs; ++j) {
      const int32_t at = hits[j] ? index[j] : 0, hit = hits[j] & static_cast<int32_t>(in_rows(starts, j, at));
      all &= hit;
      found[j] = static_cast<uint8_t>(hit ? at : 0);
    }
    return all != 0;
  }

  // As flat_of, of the same outputs; false for codes of no element, which only damaged ones have.
  bool flats_of(const Starts& starts, const uint8_t* codes, int64_t outputs, int64_t* found) const {
    const int64_t size = plane_size(shape);
    int most = 0;
    for (int64_t j = 0; j < outputs; ++j) most = codes[j] > most ? codes[j] : most;
    if (most >= count) return false;
    for (int64_t j = 0; j < outputs; ++j) {
      const int32_t flat = starts.flat[j] + distance[codes[j]];
      found[j] = in_rows(starts, j, codes[j]) & (flat >= 0) & (flat < size) ? flat : -1;
    }
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
  Starts starts;
  bool fits = true;
  OutputWalk walk(shape, begin);
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    if (table.count) {
      table.starts_of(walk, count, starts);
      fits &= table.indices_of(starts, args.indices + i, count, tile);
    } else {
      for (int64_t j = 0; j < count; ++j, walk.next()) {
        const int index = window_index(shape, walk.place, args.indices[i + j]);
        fits &= index >= 0;
        tile[j] = static_cast<uint8_t>(index < 0 ? 0 : index);
      }
    }
    with_bits(shape.bits, [&]<int bits>() { pack_tile<bits>(tile, count, args.packed + packed_bytes(i, bits)); });
  }
  return fits;
}

inline void window_index_unpack(const WindowIndexUnpack& args, int64_t begin, int64_t end) {
  const PoolShape& shape = args.shape;
  const WindowTable table(shape);
  alignas(64) uint8_t tile[kTile];
  Starts starts;
  OutputWalk walk(shape, begin);
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    with_bits(shape.bits, [&]<int bits>() { unpack_tile<bits>(args.packed + packed_bytes(i, bits), count, tile); });
    if (table.count) {
      OutputWalk past = walk;
      table.starts_of(past, count, starts);
      if (table.flats_of(starts, tile, count, args.indices + i)) {
        walk.plane = past.plane, walk.place = past.place;
        continue;
      }
    }
    for (int64_t j = 0; j < count; ++j, walk.next()) args.indices[i + j] = table.flat_of(walk.place, tile[j]);
  }
}

}  // namespace actcore::ACTCORE_ISA
