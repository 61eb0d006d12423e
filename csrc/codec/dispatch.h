// From widths and element types that are only known at run time to template arguments: calls the instance of a generic
// lambda and returns what it returns. The values were checked by csrc/ops.
#pragma once

#include <cstdint>

#include "codec/arguments.h"
#include "codec/float16.h"
#include "codec/float8.h"

namespace actcore {

template <class Call>
auto with_bits(int bits, const Call& call) {
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
auto with_type(ElementType type, const Call& call) {
  switch (type) {
    case ElementType::kFloat64: return call.template operator()<double>();
    case ElementType::kFloat16: return call.template operator()<Half>();
    case ElementType::kBFloat16: return call.template operator()<BFloat16>();
    default: return call.template operator()<float>();
  }
}

template <class Call>
auto with_format(Float8Format format, const Call& call) {
  if (format == Float8Format::kE5M2) return call.template operator()<E5M2>();
  return call.template operator()<E4M3>();
}

// The unsigned integer of `size` bytes, for elements that are only moved and compared.
template <class Call>
auto with_word(int size, const Call& call) {
  switch (size) {
    case 1: return call.template operator()<uint8_t>();
    case 2: return call.template operator()<uint16_t>();
    case 4: return call.template operator()<uint32_t>();
    default: return call.template operator()<uint64_t>();
  }
}

}  // namespace actcore
