// One instruction set's kernels of the fused operators, compiled like kernels.cpp.
#include "cpu/fused.h"

#include "codec/dispatch.h"
#include "cpu/functions.h"
#include "cpu/levels.h"
#include "cpu/masked.h"
#include "cpu/pool.h"
#include "cpu/stepwise.h"

namespace actcore::ACTCORE_ISA {
namespace {

void relu(const ReluMask& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() { relu_mask<E>(args, begin, end); });
}

void dropout(const DropoutMask& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() { dropout_mask<E>(args, begin, end); });
}

void backward_of_mask(const MaskBackward& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() { mask_backward<E>(args, begin, end); });
}

void codes_of(const StepwiseCodes& args, int64_t begin, int64_t end) {
  with_type(args.type,
            [&]<class E>() { with_bits(args.bits, [&]<int bits>() { stepwise_codes<E, bits>(args, begin, end); }); });
}

void backward_of_codes(const StepwiseBackward& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() {
    with_bits(args.bits, [&]<int bits>() { stepwise_backward<E, bits>(args, begin, end); });
  });
}

void codes_of_levels(const LevelCodes& args, int64_t begin, int64_t end) {
  with_type(args.type,
            [&]<class E>() { with_bits(args.bits, [&]<int bits>() { level_codes<E, bits>(args, begin, end); }); });
}

void before(const Stepwise& args, int64_t begin, int64_t count, void* middle) {
  with_type(args.codes.type, [&]<class E>() { function_before<E>(args, begin, count, middle); });
}

void after(const Stepwise& args, int64_t begin, int64_t count, const void* middle) {
  with_type(args.codes.type, [&]<class E>() { function_after<E>(args, begin, count, middle); });
}

void pool(const MaxPool& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() { max_pool<E>(args, begin, end); });
}

void backward_of_pool(const MaxPoolBackward& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() { max_pool_backward<E>(args, begin, end); });
}

bool pack_window(const WindowIndexPack& args, int64_t begin, int64_t end) {
  return window_index_pack(args, begin, end);
}

void unpack_window(const WindowIndexUnpack& args, int64_t begin, int64_t end) { window_index_unpack(args, begin, end); }

}  // namespace
}  // namespace actcore::ACTCORE_ISA

#define ACTCORE_JOIN_(a, b) a##b
#define ACTCORE_JOIN(a, b) ACTCORE_JOIN_(a, b)
#define ACTCORE_TEXT_(a) #a
#define ACTCORE_TEXT(a) ACTCORE_TEXT_(a)

namespace actcore::cpu {

extern const FusedKernels ACTCORE_JOIN(ACTCORE_ISA, _fused_kernels);
const FusedKernels ACTCORE_JOIN(ACTCORE_ISA, _fused_kernels) = {
    ACTCORE_TEXT(ACTCORE_ISA),
    ACTCORE_ISA::relu,
    ACTCORE_ISA::dropout,
    ACTCORE_ISA::backward_of_mask,
    ACTCORE_ISA::codes_of,
    ACTCORE_ISA::backward_of_codes,
    ACTCORE_ISA::codes_of_levels,
    ACTCORE_ISA::before,
    ACTCORE_ISA::after,
    ACTCORE_ISA::pool,
    ACTCORE_ISA::backward_of_pool,
    ACTCORE_ISA::pack_window,
    ACTCORE_ISA::unpack_window,
};

}  // namespace actcore::cpu
