// The CPU kernels of the fused operators, one set per instruction set, chosen like those of cpu/kernels.h.
#pragma once

#include <cstdint>

#include "codec/levels.h"
#include "codec/masked.h"
#include "codec/pool.h"
#include "codec/stepwise.h"

namespace actcore::cpu {

struct FusedKernels {
  const char* name;

  // Units: elements; begin is a multiple of 8, and of kStretch where there are guards.
  void (*relu_mask)(const ReluMask& args, int64_t begin, int64_t end);
  void (*dropout_mask)(const DropoutMask& args, int64_t begin, int64_t end);
  void (*mask_backward)(const MaskBackward& args, int64_t begin, int64_t end);
  void (*stepwise_codes)(const StepwiseCodes& args, int64_t begin, int64_t end);
  void (*stepwise_backward)(const StepwiseBackward& args, int64_t begin, int64_t end);
  void (*level_codes)(const LevelCodes& args, int64_t begin, int64_t end);

  // What of a function torch's operators do not compute. Before them, from `input` to `middle`; after them, from both to
  // `output`. `type` is that of input and output; middle has the type that it is computed in.
  void (*function_before)(const Stepwise& args, int64_t begin, int64_t count, void* middle);
  void (*function_after)(const Stepwise& args, int64_t begin, int64_t count, const void* middle);

  // Units: outputs, begin a multiple of 8; of the backward, planes. The one that answers tells whether all fitted.
  void (*max_pool)(const MaxPool& args, int64_t begin, int64_t end);
  void (*max_pool_backward)(const MaxPoolBackward& args, int64_t begin, int64_t end);
  bool (*window_index_pack)(const WindowIndexPack& args, int64_t begin, int64_t end);
  void (*window_index_unpack)(const WindowIndexUnpack& args, int64_t begin, int64_t end);
};

// The set of the instruction set that kernels() chose. Throws what kernels() throws.
const FusedKernels& fused_kernels();

}  // namespace actcore::cpu
