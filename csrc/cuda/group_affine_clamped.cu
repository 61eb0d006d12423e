// The group-affine codec of elements that are clamped on their way from memory.
#include "cuda/group_affine_kernels.cuh"
#include "cuda/kernels.h"

namespace actcore::cuda {
namespace {

// Elements between two bounds, in the type of the elements; NaN stays.
template <class E>
class Clamp {
 public:
  using T = compute_t<E>;
  static constexpr bool kSmall = true;

  explicit Clamp(const GroupAffineCompress& args) {
    store(&low_, static_cast<T>(args.least));
    store(&high_, static_cast<T>(args.most));
  }

  __device__ const Clamp& at(int64_t) const { return *this; }

  __device__ E element(E value, int) const {
    const T number = load(value);
    return number < load(low_) ? low_ : number > load(high_) ? high_ : value;
  }

  __device__ void cell(Cell<E>& cell, int) const {
    if constexpr (sizeof(E) == 2) {
      const uint32_t low = low_.bits * 0x10001u, high = high_.bits * 0x10001u;
#pragma unroll
      for (int i = 0; i < Cell<E>::kElements; i += 2) {
        uint32_t pair;
        memcpy(&pair, &cell.element[i], sizeof pair);
        pair = Pair<E>::max(Pair<E>::min(pair, high), low);
        memcpy(&cell.element[i], &pair, sizeof pair);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Cell<E>::kElements; ++i) {
        cell.element[i] = max_or_nan(min_or_nan(cell.element[i], high_), low_);
      }
    }
  }

 private:
  E low_;
  E high_;
};

}  // namespace

cudaError_t group_affine_clamped_compress(const GroupAffineCompress& args, cudaStream_t stream) {
  return compress_elements(args, stream, [&]<class E>() { return Clamp<E>(args); });
}

}  // namespace actcore::cuda
