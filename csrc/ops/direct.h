// Operators as they can be called without torch's dispatcher, which takes longer than quantising a small tensor. For
// whoever knows that there is nothing to dispatch: torch's own tensors on the CPU, below autograd, whose memory holds the
// elements as they are read (neither lazily negated nor conjugated).
#pragma once

#include <cstdint>

namespace actcore::ops {

// One operator. Its arguments, and then its results, are on a stack of 64-bit words: tensors as AtenTensorHandle.
struct Direct {
  using Call = void (*)(uint64_t* stack, uint64_t arguments, uint64_t results);
  const char* name;
  Call call;
  const char* arguments;  // a letter each: t a tensor, i an int, b a bool, d a double, s a dtype
  uint64_t results;
  const Direct* next;
};

}  // namespace actcore::ops
