// How tiles are laid over groups that a tile can hold: each holds as many whole groups as there is room for. Of its 32
// threads (32 / rows) * rows have something to do, rounded down in between: all where a group has a power of two rows,
// 30 where it has 3 or 6 (groups of 96, 192), 24 of 12 (384), 22 of 11 (352), and the fewest, 17, of 17 (544).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "codec/macros.h"
#include "cuda/launch.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

struct GroupTiles {
  int rows;          // of a group, at most 32
  int groups;        // of a tile
  int elements;      // of a tile
  uint32_t inverse;  // 1024 / rows, rounded up

  // Longer groups are taken for those of 32 rows.
  __host__ __device__ explicit GroupTiles(int64_t group_size)
      : rows(group_size < kTile ? static_cast<int>(group_size / kRow) : kWarp),
        groups(kWarp / rows),
        elements(groups * rows * kRow),
        inverse(static_cast<uint32_t>((1024 + rows - 1) / rows)) {}

  int64_t count(int64_t numel) const { return blocks_for(numel, elements); }
};

// Where a thread stands in its tile. One that has nothing to do does what the last row's does, except for what is written.
struct GroupPlace {
  int row;    // in the tile
  int group;  // in the tile
  int first;  // row of the group
  int rows;   // of a group

  __device__ explicit GroupPlace(const GroupTiles& tiles) : rows(tiles.rows) {
    const int used = tiles.groups * tiles.rows;
    row = lane_index() < used ? lane_index() : used - 1;
    group = static_cast<int>(static_cast<uint32_t>(row) * tiles.inverse >> 10);  // row / rows: the excess is below 1/32
    first = group * rows;
  }

  // Calls `merge(lane)` for threads of the group, until each has what all of them had: each step doubles how many rows
  // have come together, counted around the group, some of them twice. What is merged must not mind.
  template <class Merge>
  __device__ void for_each_merge(const Merge& merge) const {
    for (int step = 1; step < rows; step *= 2) {
      const int from = row + step;
      merge(from < first + rows ? from : from - rows);
    }
  }

  __device__ bool begins_group() const { return row == first; }
};

}  // namespace actcore::cuda
