// One instruction set's kernels. CMake compiles this file once per set, with its compiler flags and ACTCORE_ISA.
#include "cpu/kernels.h"

#include "codec/dispatch.h"
#include "cpu/bits.h"
#include "cpu/float8.h"
#include "cpu/group_affine.h"
#include "cpu/moments.h"
#include "cpu/narrow.h"
#include "cpu/standardized.h"
#include "cpu/wide_group.h"

namespace actcore::ACTCORE_ISA {
namespace {

void group_affine_compress(const GroupAffineCompress& args, int64_t begin, int64_t end) {
  with_type(args.type,
            [&]<class E>() { with_bits(args.bits, [&]<int bits>() { compress_groups<E, bits>(args, begin, end); }); });
}

void group_affine_decompress(const GroupAffineDecompress& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() {
    with_bits(args.bits, [&]<int bits>() { decompress_groups<E, bits>(args, begin, end); });
  });
}

void standardized_compress(const GroupAffineCompress& args, const ChannelTables& tables, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() {
    with_bits(args.bits, [&]<int bits>() { compress_standardized<E, bits>(args, tables, begin, end); });
  });
}

void add_to_elements(ElementType type, void* values, const void* added, bool rectify, int64_t count) {
  with_type(type, [&]<class E>() {
    add_and_rectify<E>(static_cast<E*>(values), static_cast<const E*>(added), rectify, count);
  });
}

void standardized_decompress(const GroupAffineDecompress& args, const ChannelTables& tables, int64_t begin,
                             int64_t end) {
  with_type(args.type, [&]<class E>() {
    with_bits(args.bits, [&]<int bits>() { decompress_standardized<E, bits>(args, tables, begin, end); });
  });
}

void moments(const StandardizedShape& shape, ElementType type, const void* input, void* means, void* deviations,
             int64_t begin, int64_t end) {
  with_type(type, [&]<class E>() {
    using T = compute_t<E>;
    take_moments(shape, static_cast<const E*>(input), static_cast<T*>(means), static_cast<T*>(deviations), begin, end);
  });
}

bool has_wide_group(const WideGroup& args, int64_t begin, int64_t end) {
  return with_type(args.type, [&]<class E>() { return any_wide<E>(args, begin, end); });
}

void float8_compress(const Float8Compress& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() {
    with_format(args.format, [&]<class Format>() { compress_float8<E, Format>(args, begin, end); });
  });
}

void float8_decompress(const Float8Decompress& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() {
    with_format(args.format, [&]<class Format>() { decompress_float8<E, Format>(args, begin, end); });
  });
}

bool pack_bits(const uint8_t* codes, int bits, uint8_t* packed, int64_t begin, int64_t end) {
  return with_bits(bits, [&]<int width>() { return pack_codes<width>(codes, packed, begin, end); });
}

void unpack_bits(const uint8_t* packed, int bits, uint8_t* codes, int64_t begin, int64_t end) {
  with_bits(bits, [&]<int width>() { unpack_codes<width>(packed, codes, begin, end); });
}

bool bit_mask_compress(const BitMaskCompress& args, int64_t begin, int64_t end) {
  if (args.boolean) return mask_two_values<uint8_t, true>(args, begin, end);
  return with_word(args.element_size, [&]<class W>() { return mask_two_values<W, false>(args, begin, end); });
}

void bit_mask_decompress(const BitMaskDecompress& args, int64_t begin, int64_t end) {
  with_word(args.element_size, [&]<class W>() { unmask_two_values<W>(args, begin, end); });
}

void positive_mask(const PositiveMask& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() { mask_positive<E>(args, begin, end); });
}

bool narrow_compress(const NarrowCompress& args, int64_t begin, int64_t end) {
  return with_word(args.element_size, [&]<class W>() { return compress_narrow<W>(args, begin, end); });
}

void narrow_decompress(const NarrowDecompress& args, int64_t begin, int64_t end) {
  with_word(args.element_size, [&]<class W>() { decompress_narrow<W>(args, begin, end); });
}

}  // namespace
}  // namespace actcore::ACTCORE_ISA

#define ACTCORE_JOIN_(a, b) a##b
#define ACTCORE_JOIN(a, b) ACTCORE_JOIN_(a, b)
#define ACTCORE_TEXT_(a) #a
#define ACTCORE_TEXT(a) ACTCORE_TEXT_(a)

namespace actcore::cpu {

extern const Kernels ACTCORE_JOIN(ACTCORE_ISA, _kernels);
const Kernels ACTCORE_JOIN(ACTCORE_ISA, _kernels) = {
    ACTCORE_TEXT(ACTCORE_ISA),
    ACTCORE_ISA::group_affine_compress,
    ACTCORE_ISA::group_affine_decompress,
    ACTCORE_ISA::standardized_compress,
    ACTCORE_ISA::standardized_decompress,
    ACTCORE_ISA::add_to_elements,
    ACTCORE_ISA::moments,
    ACTCORE_ISA::has_wide_group,
    ACTCORE_ISA::float8_compress,
    ACTCORE_ISA::float8_decompress,
    ACTCORE_ISA::pack_bits,
    ACTCORE_ISA::unpack_bits,
    ACTCORE_ISA::bit_mask_compress,
    ACTCORE_ISA::bit_mask_decompress,
    ACTCORE_ISA::positive_mask,
    ACTCORE_ISA::narrow_compress,
    ACTCORE_ISA::narrow_decompress,
};

}  // namespace actcore::cpu
