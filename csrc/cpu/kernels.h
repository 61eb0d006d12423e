// The CPU kernels, one set per instruction set, and the choice among them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codec/arguments.h"

namespace actcore::cpu {

// Every kernel works on a range of its units, so that the caller can share them among threads. The result does not
// depend on how the range is cut.
struct Kernels {
  const char* name;

  // Units: groups.
  void (*group_affine_compress)(const GroupAffineCompress& args, int64_t begin, int64_t end);
  void (*group_affine_decompress)(const GroupAffineDecompress& args, int64_t begin, int64_t end);
  void (*standardized_compress)(const GroupAffineCompress& args, const ChannelTables& tables, int64_t begin,
                                int64_t end);
  void (*standardized_decompress)(const GroupAffineDecompress& args, const ChannelTables& tables, int64_t begin,
                                  int64_t end);
  // In place: to `values` plus `added`, if it is not null, and ReLU of that, if `rectify`.
  void (*add_and_rectify)(ElementType type, void* values, const void* added, bool rectify, int64_t count);
  // Units: statistics. Means and deviations are of the type that elements are computed in.
  void (*moments)(const StandardizedShape& shape, ElementType type, const void* input, void* means, void* deviations,
                  int64_t begin, int64_t end);
  // Whether one of the groups is wide.
  bool (*has_wide_group)(const WideGroup& args, int64_t begin, int64_t end);
  void (*float8_compress)(const Float8Compress& args, int64_t begin, int64_t end);
  void (*float8_decompress)(const Float8Decompress& args, int64_t begin, int64_t end);

  // Units: elements; begin is a multiple of 8. Those that answer tell whether every element fitted.
  bool (*pack_bits)(const uint8_t* codes, int bits, uint8_t* packed, int64_t begin, int64_t end);
  void (*unpack_bits)(const uint8_t* packed, int bits, uint8_t* codes, int64_t begin, int64_t end);
  bool (*bit_mask_compress)(const BitMaskCompress& args, int64_t begin, int64_t end);
  void (*bit_mask_decompress)(const BitMaskDecompress& args, int64_t begin, int64_t end);
  void (*positive_mask)(const PositiveMask& args, int64_t begin, int64_t end);
  bool (*narrow_compress)(const NarrowCompress& args, int64_t begin, int64_t end);
  void (*narrow_decompress)(const NarrowDecompress& args, int64_t begin, int64_t end);
};

// The sets that this build has and this processor runs, the fastest first.
std::vector<const Kernels*> runnable_kernels();

// The set in use: the fastest, or the one that the environment variable ACTCORE_CPU names when the process first
// asks. Throws std::runtime_error for a name that does not run here.
const Kernels& kernels();

}  // namespace actcore::cpu
