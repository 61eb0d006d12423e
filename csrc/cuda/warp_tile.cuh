// How the kernels touch memory: a warp owns a tile of 32 rows of 32 elements, and each of its threads one row.
//
// A row's 32 codes are `bits` whole words, so no two threads share a byte of the packed form, and a group is a whole
// number of rows. Rows are long, so a thread that read its own would leave every access of the warp scattered over
// 32 cache lines: the tile passes through shared memory instead, and global memory sees consecutive addresses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "codec/bits.h"

namespace actcore::cuda {

constexpr int kWarp = 32;
constexpr int kRow = 32;
constexpr int kTile = kWarp * kRow;

// What one memory instruction moves. What is done to each on the way between global memory and a tile is told by a
// transform: `at(first)`, for a tile that begins with element `first`, has `cell` and `element`, which take the place in
// the tile as well. A `kSmall` one is repeated for each of a thread's cells, while they are in registers.
template <class E>
struct alignas(16) Cell {
  static constexpr int kElements = 16 / sizeof(E);
  E element[kElements];
};

// The transform that changes nothing.
struct Identity {
  static constexpr bool kSmall = true;
  __device__ const Identity& at(int64_t) const { return *this; }
  template <class E>
  __device__ void cell(Cell<E>&, int) const {}
  template <class E>
  __device__ E element(E value, int) const {
    return value;
  }
};

// One thread's elements, in registers: every index must be known once loops are unrolled.
template <class E>
struct Row {
  static constexpr int kCells = kRow / Cell<E>::kElements;
  Cell<E> cell[kCells];

  __device__ E& operator[](int i) { return cell[i / Cell<E>::kElements].element[i % Cell<E>::kElements]; }
  __device__ const E& operator[](int i) const { return cell[i / Cell<E>::kElements].element[i % Cell<E>::kElements]; }
};

// One thread's 32 codes, in registers like Row. Aligned as all of them are where they lie end to end.
template <int bits>
struct alignas(bits % 4 == 0 ? 16 : 4 * (bits & -bits)) PackedRow {
  uint32_t word[bits];

  // Sets code `i`, below 2^bits, in words that start as zeros.
  __device__ void put(int i, uint32_t code) {
    const int at = i * bits;
    word[at / 32] |= code << (at % 32);
    if (at % 32 + bits > 32) word[at / 32 + 1] |= code >> (32 - at % 32);
  }

  __device__ uint32_t get(int i) const {
    const int at = i * bits;
    uint32_t code = word[at / 32] >> (at % 32);
    if (at % 32 + bits > 32) code |= word[at / 32 + 1] << (32 - at % 32);
    return code & ((1u << bits) - 1u);
  }
};

// A warp's shared memory: elements, or codes, never both at a time.
template <class E>
union WarpTile {
  static constexpr int kCells = kWarp * Row<E>::kCells;
  static constexpr unsigned kMixed = Row<E>::kCells < 8 ? 8 : Row<E>::kCells;   // cells that are mixed alike
  static constexpr unsigned kMixers = Row<E>::kCells < 8 ? Row<E>::kCells : 8;  // ways of mixing
  Cell<E> cells[kCells];
  uint32_t words[kWarp * kMaxBits];

  // Where a cell lies. The low three bits of its place choose the banks; mixed with its row, they differ among the
  // eight threads that one access serves, be they reading one column of eight rows or consecutive cells.
  __device__ static unsigned place(unsigned cell) { return cell ^ cell / kMixed % kMixers; }

  // The same for cell `i` of a row, and of those that lie 32 apart from `lane` on, in fewer instructions: the place of
  // the first, and what differs is known when loops are unrolled.
  __device__ static unsigned place_in_row(unsigned row, unsigned i) { return place(row * Row<E>::kCells) ^ i; }
  __device__ static unsigned place_in_column(unsigned i, unsigned lane) {
    return (place(lane) ^ i * kWarp / kMixed % kMixers) + i * kWarp;
  }

  __device__ E& element(int i) { return cells[place(i / Cell<E>::kElements)].element[i % Cell<E>::kElements]; }
};

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x / kWarp); }

// Elements of a tile that starts `left` before the end and has room for `elements`; 0 or less for one that starts beyond it.
__device__ inline int tile_count(int64_t left, int elements = kTile) {
  return static_cast<int>(left < elements ? left : elements);
}

__host__ __device__ inline bool is_aligned(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// The functions below are called by whole warps, with the warp's own tile and 1 <= count <= kTile.

// Whether rows that lie from `pointer` on end to end can be moved whole, each as values of `bytes` bytes.
__device__ inline bool has_whole_rows(const void* pointer, int bytes, int count) {
  return count % kRow == 0 && is_aligned(pointer, bytes);
}

// Reads `count` elements; each thread gets its row. What follows the last element repeats it, or its row, which changes
// neither its group's bounds nor whether the group is finite; transformed elements are repeated, too.
template <class E, class Here = Identity>
__device__ Row<E> load_row(WarpTile<E>& tile, const E* from, int count, const Here& transform = {}) {
  constexpr int kCells = Row<E>::kCells;
  const int lane = lane_index();
  Row<E> row;
  __syncwarp();  // until here others may still read what the tile held
  int mine = lane;
  if (has_whole_rows(from, sizeof(Cell<E>), count)) {
    const Cell<E>* cells = reinterpret_cast<const Cell<E>*>(from);
    const int rows = count >> 5;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (i * kWarp + lane < rows * kCells) row.cell[i] = cells[i * kWarp + lane];
    }
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      if (i * kWarp + lane < rows * kCells) {
        if constexpr (Here::kSmall) transform.cell(row.cell[i], (i * kWarp + lane) * Cell<E>::kElements);
        tile.cells[tile.place_in_column(i, lane)] = row.cell[i];
      }
    }
    if constexpr (!Here::kSmall) {
#pragma unroll 1
      for (int i = lane; i < rows * kCells; i += kWarp) {
        transform.cell(tile.cells[tile.place(i)], i * Cell<E>::kElements);
      }
    }
    mine = lane < rows ? lane : rows - 1;
  } else {
    constexpr int kTimes = Here::kSmall ? 4 : 1;
#pragma unroll kTimes
    for (int i = lane; i < kTile; i += kWarp) {
      const int place = i < count ? i : count - 1;
      tile.element(i) = transform.element(from[place], place);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kCells; ++i) row.cell[i] = tile.cells[tile.place_in_row(mine, i)];
  return row;
}

template <class E, class Here = Identity>
__device__ void store_row(WarpTile<E>& tile, const Row<E>& row, E* to, int count, const Here& transform = {}) {
  constexpr int kCells = Row<E>::kCells;
  const int lane = lane_index();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kCells; ++i) tile.cells[tile.place_in_row(lane, i)] = row.cell[i];
  __syncwarp();
  if (has_whole_rows(to, sizeof(Cell<E>), count)) {
    Cell<E>* cells = reinterpret_cast<Cell<E>*>(to);
    const int end = (count >> 5) * kCells;
    constexpr int kTimes = Here::kSmall ? kCells : 1;
#pragma unroll kTimes
    for (int i = 0; i < kCells; ++i) {
      if (i * kWarp + lane < end) {
        Cell<E> cell = tile.cells[tile.place_in_column(i, lane)];
        transform.cell(cell, (i * kWarp + lane) * Cell<E>::kElements);
        cells[i * kWarp + lane] = cell;
      }
    }
  } else {
#pragma unroll 1
    for (int i = lane; i < count; i += kWarp) to[i] = transform.element(tile.element(i), i);
  }
}

// Bytes of `count` <= kTile codes.
__device__ inline int tile_bytes(int count, int bits) { return (count * bits + 7) >> 3; }

// Whether a thread's codes are one access, so that those of neighbours are consecutive and need no tile.
template <int bits>
constexpr bool kOneAccess = sizeof(PackedRow<bits>) <= 16 && sizeof(PackedRow<bits>) == alignof(PackedRow<bits>);

// Reads the codes of `count` elements. What a thread gets beyond them is undefined.
template <int bits, class E>
__device__ PackedRow<bits> load_codes(WarpTile<E>& tile, const uint8_t* from, int count) {
  const int lane = lane_index();
  if constexpr (kOneAccess<bits>) {
    if (has_whole_rows(from, alignof(PackedRow<bits>), count)) {
      PackedRow<bits> codes = {};
      if (lane * kRow < count) codes = reinterpret_cast<const PackedRow<bits>*>(from)[lane];
      return codes;
    }
  }
  if constexpr (bits == 8) {  // a row of bytes
    if (has_whole_rows(from, sizeof(Cell<uint8_t>), count)) {
      const Row<uint8_t> row = load_row(reinterpret_cast<WarpTile<uint8_t>&>(tile), from, count);
      PackedRow<bits> codes;
      memcpy(&codes, &row, sizeof codes);
      return codes;
    }
  }
  const int size = tile_bytes(count, bits);
  const int words = is_aligned(from, 4) ? size >> 2 : 0;
  uint8_t* bytes = reinterpret_cast<uint8_t*>(tile.words);
  __syncwarp();
#pragma unroll
  for (int w = 0; w < bits; ++w) {
    const int i = w * kWarp + lane;
    if (i < words) tile.words[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
#pragma unroll 1
  for (int i = 4 * words + lane; i < size; i += kWarp) bytes[i] = from[i];
  __syncwarp();
  return reinterpret_cast<const PackedRow<bits>*>(tile.words)[lane];
}

// Sets to 0 what no code of `count` elements fills.
template <int bits>
__device__ void clear_beyond(PackedRow<bits>& codes, int count) {
  const int used = (count - lane_index() * kRow) * bits;  // bits of this thread's words that hold codes of elements
#pragma unroll
  for (int w = 0; w < bits; ++w) {
    const int keep = used - 32 * w;
    if (keep < 32) codes.word[w] = keep > 0 ? codes.word[w] & ((1u << keep) - 1u) : 0u;
  }
}

// Writes the codes of `count` elements: packed_bytes(count, bits) bytes, their last bits 0 where no code fills them.
template <int bits, class E>
__device__ void store_codes(WarpTile<E>& tile, PackedRow<bits> codes, uint8_t* to, int count) {
  const int lane = lane_index();
  if constexpr (kOneAccess<bits>) {
    if (has_whole_rows(to, alignof(PackedRow<bits>), count)) {
      if (lane * kRow < count) reinterpret_cast<PackedRow<bits>*>(to)[lane] = codes;
      return;
    }
  }
  if constexpr (bits == 8) {
    if (has_whole_rows(to, sizeof(Cell<uint8_t>), count)) {
      Row<uint8_t> row;
      memcpy(&row, &codes, sizeof codes);
      return store_row(reinterpret_cast<WarpTile<uint8_t>&>(tile), row, to, count);
    }
  }
  if (count % kRow != 0) clear_beyond(codes, count);
  const int size = tile_bytes(count, bits);
  const int words = is_aligned(to, 4) ? size >> 2 : 0;
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(tile.words);
  __syncwarp();
  reinterpret_cast<PackedRow<bits>*>(tile.words)[lane] = codes;
  __syncwarp();
#pragma unroll
  for (int w = 0; w < bits; ++w) {
    const int i = w * kWarp + lane;
    if (i < words) reinterpret_cast<uint32_t*>(to)[i] = tile.words[i];
  }
#pragma unroll 1
  for (int i = 4 * words + lane; i < size; i += kWarp) to[i] = bytes[i];
}

}  // namespace actcore::cuda
