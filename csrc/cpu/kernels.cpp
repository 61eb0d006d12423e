// One instruction set's kernels. CMake compiles this file once per set, with its compiler flags and ACTCORE_ISA.
#include "cpu/kernels.h"

#include "cpu/bits.h"
#include "cpu/group_affine.h"

namespace actcore::ACTCORE_ISA {
namespace {

// Calls a function template's instance for a width that is only known at run time.
template <class Call>
void with_bits(int bits, const Call& call) {
  switch (bits) {
    case 1: return call.template operator()<1>();
    case 2: return call.template operator()<2>();
    case 3: return call.template operator()<3>();
    case 4: return call.template operator()<4>();
    case 5: return call.template operator()<5>();
    case 6: return call.template operator()<6>();
    case 7: return call.template operator()<7>();
    default: return call.template operator()<8>();
  }
}

template <class Call>
void with_type(ElementType type, const Call& call) {
  switch (type) {
    case ElementType::kFloat32: return call.template operator()<float>();
    case ElementType::kFloat64: return call.template operator()<double>();
    case ElementType::kFloat16: return call.template operator()<Half>();
    case ElementType::kBFloat16: return call.template operator()<BFloat16>();
  }
}

template <class Call>
void with_word(int element_size, const Call& call) {
  switch (element_size) {
    case 1: return call.template operator()<uint8_t>();
    case 2: return call.template operator()<uint16_t>();
    case 4: return call.template operator()<uint32_t>();
    default: return call.template operator()<uint64_t>();
  }
}

void group_affine_compress(const GroupAffineCompress& args, int64_t begin, int64_t end) {
  with_type(args.type,
            [&]<class E>() { with_bits(args.bits, [&]<int bits>() { compress_groups<E, bits>(args, begin, end); }); });
}

void group_affine_decompress(const GroupAffineDecompress& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() {
    with_bits(args.bits, [&]<int bits>() { decompress_groups<E, bits>(args, begin, end); });
  });
}

bool pack_bits(const uint8_t* codes, int bits, uint8_t* packed, int64_t begin, int64_t end) {
  bool fits = true;
  with_bits(bits, [&]<int width>() { fits = pack_codes<width>(codes, packed, begin, end); });
  return fits;
}

void unpack_bits(const uint8_t* packed, int bits, uint8_t* codes, int64_t begin, int64_t end) {
  with_bits(bits, [&]<int width>() { unpack_codes<width>(packed, codes, begin, end); });
}

bool bit_mask_compress(const BitMaskCompress& args, int64_t begin, int64_t end) {
  bool two_values = true;
  with_word(args.element_size, [&]<class W>() { two_values = mask_two_values<W>(args, begin, end); });
  return two_values;
}

void bit_mask_decompress(const BitMaskDecompress& args, int64_t begin, int64_t end) {
  with_word(args.element_size, [&]<class W>() { unmask_two_values<W>(args, begin, end); });
}

void positive_mask(const PositiveMask& args, int64_t begin, int64_t end) {
  with_type(args.type, [&]<class E>() { mask_positive<E>(args, begin, end); });
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
    ACTCORE_TEXT(ACTCORE_ISA),        ACTCORE_ISA::group_affine_compress, ACTCORE_ISA::group_affine_decompress,
    ACTCORE_ISA::pack_bits,           ACTCORE_ISA::unpack_bits,           ACTCORE_ISA::bit_mask_compress,
    ACTCORE_ISA::bit_mask_decompress, ACTCORE_ISA::positive_mask,
};

}  // namespace actcore::cpu
