// Numbers of values, operators and events, which are int32_t, as places in vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace actcore {

inline size_t at(int32_t index) { return static_cast<size_t>(index); }

}  // namespace actcore
