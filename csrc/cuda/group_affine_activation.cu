// What follows a normalization, from its stored input: decoded, scaled, shifted, added to and activated in one pass.
#include "codec/activation.h"

#include "cuda/activations.cuh"
#include "cuda/group_affine_kernels.cuh"
#include "cuda/kernels.h"
#include "cuda/standardize.cuh"

namespace actcore::cuda {
namespace {

// What Standardize makes of elements, plus others, through a function.
template <class E>
class Activate {
 public:
  using T = compute_t<E>;

  explicit Activate(const Activation& after)
      : scaled_(after.by.shape, after.by.means, after.by.factors),
        added_(static_cast<const E*>(after.added)),
        aligned_(is_aligned(after.added, sizeof(Cell<E>))),
        linear_(after.linear),
        function_(after.function) {}

  class Here {
   public:
    static constexpr bool kSmall = false;

    __device__ Here(const Activate& all, int64_t first)
        : all_(all), scaled_(all.scaled_.at(first)), added_(all.added_ == nullptr ? nullptr : all.added_ + first) {}

    __device__ E element(E value, int place) const {
      value = scaled_.element(value, place);
      return all_.activated(added_ == nullptr ? value : sum_of(value, added_[place]));
    }

    __device__ void cell(Cell<E>& cell, int place) const {
      scaled_.cell(cell, place);
      if (added_ != nullptr) {
        Cell<E> other;
        if (all_.aligned_) {  // as a tile's first element is, where cells are moved whole
          other = *reinterpret_cast<const Cell<E>*>(added_ + place);
        } else {
#pragma unroll
          for (int i = 0; i < Cell<E>::kElements; ++i) other.element[i] = added_[place + i];
        }
#pragma unroll
        for (int i = 0; i < Cell<E>::kElements; ++i) cell.element[i] = sum_of(cell.element[i], other.element[i]);
      }
#pragma unroll
      for (int i = 0; i < Cell<E>::kElements; ++i) cell.element[i] = all_.activated(cell.element[i]);
    }

   private:
    const Activate& all_;
    typename Standardize<E, true>::Here scaled_;
    const E* added_;
  };

  __device__ Here at(int64_t first) const { return Here(*this, first); }

 private:
  __device__ E activated(E value) const {
    if (linear_) return value;
    const T x = load(value);
    T made = x;
    switch (function_) {  // the same in all threads
      case Function::kSilu: made = value_of<Function::kSilu, E>(x, T(0), T(0)); break;
      case Function::kGelu: made = value_of<Function::kGelu, E>(x, T(0), T(0)); break;
      case Function::kGeluTanh: made = value_of<Function::kGeluTanh, E>(x, T(0), T(0)); break;
      default: made = value_of<Function::kRelu, E>(x, T(0), T(0));
    }
    E out;
    store(&out, made == made ? made : static_cast<T>(NAN));
    return out;
  }

  Standardize<E, true> scaled_;
  const E* added_;
  bool aligned_, linear_;
  Function function_;
};

}  // namespace

cudaError_t group_affine_standardized_activation(const GroupAffineDecompress& args, const Activation& after,
                                                 cudaStream_t stream) {
  return decompress_elements(args, stream, [&]<class E>() { return Activate<E>(after); });
}

}  // namespace actcore::cuda
