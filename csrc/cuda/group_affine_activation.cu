// What follows a normalization, from its stored input: decoded, scaled, shifted, added to and activated in one pass.
#include "codec/activation.h"

#include "cuda/activations.cuh"
#include "cuda/group_affine_kernels.cuh"
#include "cuda/kernels.h"
#include "cuda/standardize.cuh"

namespace actcore::cuda {
namespace {

// What another transform makes of elements, plus others, through a function.
template <class E, class Scale>
class Activate {
  using Arithmetic = StandardArithmetic<E, true>;

 public:
  using T = compute_t<E>;
  static constexpr int kElements = Cell<E>::kElements;

  Activate(const Scale& scaled, const Activation& after)
      : scaled_(scaled),
        added_(static_cast<const E*>(after.added)),
        aligned_(is_aligned(after.added, sizeof(Cell<E>))),
        linear_(after.linear),
        function_(after.function) {}

  class Here {
   public:
    static constexpr bool kSmall = false;  // it may be an exponential

    __device__ Here(const Activate& all, int64_t first)
        : all_(all), scaled_(all.scaled_.at(first)), added_(all.added_ == nullptr ? nullptr : all.added_ + first) {}

    __device__ E element(E value, int place) const {
      value = scaled_.element(value, place);
      if (added_ != nullptr) value = sum_of(value, added_[place]);
      if (all_.linear_) return value;
      T number[1] = {load(value)};
      all_.activate(number);
      return Arithmetic::rounded(number[0]);
    }

    __device__ void cell(Cell<E>& cell, int place) const {
      scaled_.cell(cell, place);
      T number[kElements];
      if (added_ != nullptr) {
        Cell<E> other;
        if (all_.aligned_) {  // as a tile's first element is, where cells are moved whole
          other = *reinterpret_cast<const Cell<E>*>(added_ + place);
        } else {
#pragma unroll
          for (int i = 0; i < kElements; ++i) other.element[i] = added_[place + i];
        }
        T more[kElements];
        Arithmetic::read(cell, number);
        Arithmetic::read(other, more);
#pragma unroll
        for (int i = 0; i < kElements; ++i) number[i] = number[i] + more[i];
        Arithmetic::write(cell, number);
      }
      if (all_.linear_) return;
      Arithmetic::read(cell, number);
      all_.activate(number);
      Arithmetic::write(cell, number);
    }

   private:
    const Activate& all_;
    typename Scale::Here scaled_;
    const E* added_;
  };

  __device__ Here at(int64_t first) const { return Here(*this, first); }

 private:
  template <Function function, int count>
  __device__ static void apply(T (&number)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) number[i] = value_of<function, E>(number[i], T(0), T(0));
  }

  template <int count>
  __device__ void activate(T (&number)[count]) const {
    switch (function_) {  // the same in all threads
      case Function::kSilu: return apply<Function::kSilu>(number);
      case Function::kGelu: return apply<Function::kGelu>(number);
      case Function::kGeluTanh: return apply<Function::kGeluTanh>(number);
      default: return apply<Function::kRelu>(number);
    }
  }

  Scale scaled_;
  const E* added_;
  bool aligned_, linear_;
  Function function_;
};

}  // namespace

cudaError_t group_affine_standardized_activation(const GroupAffineDecompress& args, const Activation& after,
                                                 cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_standardize<E, true>(after.by, true, [&]<class Scale>(const Scale& scaled) {
      return decompress_with<E>(args, Activate<E, Scale>(scaled, after), stream);
    });
  });
}

}  // namespace actcore::cuda
