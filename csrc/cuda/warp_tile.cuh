// How the kernels touch memory: a warp owns a tile of 32 rows of 32 elements, and each of its threads one row.
//
// A row's 32 codes are `bits` whole words, so no two threads share a byte of the packed form, and a group is a whole
// number of rows. Rows are long, so a thread that read its own would leave every access of the warp scattered over
// 32 cache lines: the tile passes through shared memory instead, and global memory sees consecutive addresses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "codec/bits.h"

namespace actcore::cuda {

constexpr int kWarp = 32;
constexpr int kRow = 32;
constexpr int kTile = kWarp * kRow;

// What one memory instruction moves.
template <class E>
struct alignas(16) Cell {
  static constexpr int kElements = 16 / sizeof(E);
  E element[kElements];
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
  Cell<E> cells[kCells];
  uint32_t words[kWarp * kMaxBits];

  // Where a cell lies. The low three bits of its place choose the banks; mixed with its row, they differ among the
  // eight threads that one access serves, be they reading one column of eight rows or consecutive cells.
  __device__ static unsigned place(unsigned cell) {
    constexpr unsigned columns = Row<E>::kCells;
    return cell ^ (cell / (columns < 8 ? 8 : columns) % (columns < 8 ? columns : 8));
  }

  __device__ E& element(int i) { return cells[place(i / Cell<E>::kElements)].element[i % Cell<E>::kElements]; }
};

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x / kWarp); }

// Elements of a tile that starts `left` before the end; 0 or less for one that starts beyond it.
__device__ inline int tile_count(int64_t left) { return static_cast<int>(left < kTile ? left : kTile); }

__device__ inline bool is_aligned(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// The functions below are called by whole warps, with the warp's own tile and 1 <= count <= kTile.

// Reads `count` elements; each thread gets its row. What follows the last element repeats it, which changes neither its
// group's bounds nor whether the group is finite.
template <class E>
__device__ Row<E> load_row(WarpTile<E>& tile, const E* from, int count) {
  const int lane = lane_index();
  Row<E> row;
  __syncwarp();  // until here others may still read what the tile held
  if (count == kTile && is_aligned(from, sizeof(Cell<E>))) {
    const Cell<E>* cells = reinterpret_cast<const Cell<E>*>(from);
#pragma unroll
    for (int i = 0; i < Row<E>::kCells; ++i) row.cell[i] = cells[i * kWarp + lane];
#pragma unroll
    for (int i = 0; i < Row<E>::kCells; ++i) tile.cells[tile.place(i * kWarp + lane)] = row.cell[i];
  } else {
#pragma unroll 4
    for (int i = lane; i < kTile; i += kWarp) tile.element(i) = from[i < count ? i : count - 1];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Row<E>::kCells; ++i) row.cell[i] = tile.cells[tile.place(lane * Row<E>::kCells + i)];
  return row;
}

template <class E>
__device__ void store_row(WarpTile<E>& tile, const Row<E>& row, E* to, int count) {
  const int lane = lane_index();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Row<E>::kCells; ++i) tile.cells[tile.place(lane * Row<E>::kCells + i)] = row.cell[i];
  __syncwarp();
  if (count == kTile && is_aligned(to, sizeof(Cell<E>))) {
    Cell<E>* cells = reinterpret_cast<Cell<E>*>(to);
#pragma unroll
    for (int i = 0; i < Row<E>::kCells; ++i) cells[i * kWarp + lane] = tile.cells[tile.place(i * kWarp + lane)];
  } else {
#pragma unroll 1
    for (int i = lane; i < count; i += kWarp) to[i] = tile.element(i);
  }
}

// Reads the codes of `count` elements. What a thread gets beyond them is undefined.
template <int bits, class E>
__device__ PackedRow<bits> load_codes(WarpTile<E>& tile, const uint8_t* from, int count) {
  const int lane = lane_index();
  const int size = static_cast<int>(packed_bytes(count, bits));
  const int words = is_aligned(from, 4) ? size / 4 : 0;
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

// Writes the codes of `count` elements: packed_bytes(count, bits) bytes, their last bits 0 where no code fills them.
template <int bits, class E>
__device__ void store_codes(WarpTile<E>& tile, PackedRow<bits> codes, uint8_t* to, int count) {
  const int lane = lane_index();
  const int used = (count - lane * kRow) * bits;  // bits of this thread's words that hold codes of elements
#pragma unroll
  for (int w = 0; w < bits; ++w) {
    const int keep = used - 32 * w;
    if (keep < 32) codes.word[w] = keep > 0 ? codes.word[w] & ((1u << keep) - 1u) : 0u;
  }
  const int size = static_cast<int>(packed_bytes(count, bits));
  const int words = is_aligned(to, 4) ? size / 4 : 0;
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
