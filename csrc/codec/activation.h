// A standardized tensor's elements on their way through what follows a normalization: its scale and shift, a sum with other
// elements, and an activation. Each result is rounded to the elements' type, as torch's operators leave it to one another.
#pragma once

#include "codec/stepwise.h"

namespace actcore {

// Of `by`, factors are by what the elements of each statistic are multiplied, and means what is added to them then.
struct Activation {
  Standardization by;
  const void* added;  // (numel), in the elements' type and order; null for nothing
  bool linear;        // whether no function follows
  Function function;  // kRelu, kSilu, kGelu or kGeluTanh
};

template <class E>
ACTCORE_FN E sum_of(E one, E other) {
  const compute_t<E> sum = load(one) + load(other);
  E made;
  store(&made, sum == sum ? sum : static_cast<compute_t<E>>(NAN));  // the bits of a NaN are the same on each device
  return made;
}

}  // namespace actcore
