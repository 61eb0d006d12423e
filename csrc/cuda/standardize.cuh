// The transform that takes from each element its statistic's mean and multiplies the rest by a factor, and the one back:
// bit for bit what csrc/cpu/standardized.h does. Cells are transformed where neighbouring threads have neighbouring
// elements, so that what they read of the statistics lies together, too.
#pragma once

#include <type_traits>

#include "codec/arguments.h"
#include "codec/group_affine.h"
#include "cuda/divisor.cuh"
#include "cuda/intrinsics.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

// Things of `length` places each, one after the other: counts how many end before a place of a tile.
class Turn {
 public:
  explicit Turn(int64_t length)
      : length_(length < kTile ? static_cast<int>(length) : kTile),
        inverse_(static_cast<uint32_t>(((1 << 20) + length_ - 1) / length_)) {}

  // The first of them has `left` places left. Below 2^10 a quotient by at most as much is exact: the inverse is too large
  // by less than length / 2^20.
  __device__ int ends(int place, int left) const {
    return place < left ? 0 : 1 + static_cast<int>(static_cast<uint32_t>(place - left) * inverse_ >> 20);
  }

  __device__ int length() const { return length_; }

  // Places that are left, as far as a tile reaches.
  __device__ static int in_tile(int64_t left) { return left < kTile ? static_cast<int>(left) : kTile; }

 private:
  int length_;  // those that no tile holds are as long as one
  uint32_t inverse_;
};

// What is done to elements, and how cells of them are read and written.
template <class E, bool back>
struct StandardArithmetic {
  using T = compute_t<E>;
  static constexpr int kElements = Cell<E>::kElements;

  __device__ static T made(T value, T mean, T factor) { return back ? value * factor + mean : (value - mean) * factor; }

  __device__ static void read(const Cell<E>& cell, T (&number)[kElements]) {
    if constexpr (sizeof(E) == 2) {
#pragma unroll
      for (int i = 0; i < kElements; i += 2) {
        uint32_t pair;
        memcpy(&pair, &cell.element[i], sizeof pair);
        number[i] = Pair<E>::first(pair), number[i + 1] = Pair<E>::second(pair);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) number[i] = cell.element[i];
    }
  }

  __device__ static void read_entries(const T* from, T (&number)[kElements]) {
    constexpr int kOfCell = Cell<T>::kElements;
#pragma unroll
    for (int c = 0; c < kElements / kOfCell; ++c) {
      const Cell<T> cell = reinterpret_cast<const Cell<T>*>(from)[c];
#pragma unroll
      for (int i = 0; i < kOfCell; ++i) number[c * kOfCell + i] = cell.element[i];
    }
  }

  // A NaN out of arithmetic has other bits here than on the CPU.
  __device__ static E rounded(T number) {
    E made;
    store(&made, number == number ? number : static_cast<T>(NAN));
    return made;
  }

  __device__ static void write(Cell<E>& cell, const T (&number)[kElements]) {
    if constexpr (back) {
      T sum = number[0];  // not a number where one of them is none, or two are infinite
#pragma unroll
      for (int i = 1; i < kElements; ++i) sum += number[i];
      if (!(sum == sum)) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) cell.element[i] = rounded(number[i]);
        return;
      }
    }
    if constexpr (sizeof(E) == 2) {
#pragma unroll
      for (int i = 0; i < kElements; i += 2) {
        const uint32_t pair = Pair<E>::pack(number[i], number[i + 1]);
        memcpy(&cell.element[i], &pair, sizeof pair);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) cell.element[i] = number[i];
    }
  }
};

// Elements that have one statistic follow each other in runs. `period` runs are a cycle, and as many statistics take
// turns in the cycles of a block, the next ones in those of the next.
template <class E, bool back>
class Standardize : StandardArithmetic<E, back> {
  using Arithmetic = StandardArithmetic<E, back>;

 public:
  using T = compute_t<E>;
  static constexpr int kElements = Cell<E>::kElements;

  Standardize(const StandardizedShape& shape, const void* means, const void* factors)
      : Standardize(means, factors, shape.channels ? shape.inner * shape.channels : shape.numel,
                    shape.channels ? shape.each : shape.inner,
                    shape.channels ? shape.channels / shape.each : shape.count) {}

  // For a tile that begins with an element.
  class Here {
   public:
    static constexpr bool kSmall = false;

    __device__ Here(const Standardize& all, int64_t first) : all_(all) {
      const int64_t block = all.by_block_.quotient(first), in_block = all.by_block_.remainder(first, block);
      const int64_t run = all.by_run_.quotient(in_block), in_run = all.by_run_.remainder(in_block, run);
      const int64_t cycle = all.by_period_.quotient(run), turn = all.by_period_.remainder(run, cycle);
      entry_ = block * all.by_period_.by() + turn;
      of_block_ = Turn::in_tile(all.by_block_.by() - in_block);
      of_run_ = Turn::in_tile(all.by_run_.by() - in_run);
      of_cycle_ = Turn::in_tile(all.by_period_.by() - turn);
    }

    __device__ E element(E value, int place) const {
      const int64_t entry = entry_after(all_.run_.ends(place, of_run_), place);
      return Arithmetic::rounded(Arithmetic::made(load(value), all_.means_[entry], all_.factors_[entry]));
    }

    __device__ void cell(Cell<E>& cell, int place) const {
      const int runs = all_.run_.ends(place, of_run_);
      const int rest = of_run_ + runs * all_.run_.length() - place;  // elements of the run from here on
      const int64_t entry = entry_after(runs, place);
      T number[kElements];
      Arithmetic::read(cell, number);
      if (all_.consecutive_) {
        T mean[kElements], factor[kElements];
        Arithmetic::read_entries(all_.means_ + entry, mean);
        Arithmetic::read_entries(all_.factors_ + entry, factor);
#pragma unroll
        for (int i = 0; i < kElements; ++i) number[i] = Arithmetic::made(number[i], mean[i], factor[i]);
      } else if (rest >= kElements) {
        const T mean = all_.means_[entry], factor = all_.factors_[entry];
#pragma unroll
        for (int i = 0; i < kElements; ++i) number[i] = Arithmetic::made(number[i], mean, factor);
      } else if (all_.run_.length() >= kElements) {  // two runs
        const int64_t next = entry_after(runs + 1, place + rest);
        const T mean = all_.means_[entry], factor = all_.factors_[entry];
        const T next_mean = all_.means_[next], next_factor = all_.factors_[next];
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          number[i] = Arithmetic::made(number[i], i < rest ? mean : next_mean, i < rest ? factor : next_factor);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          const int64_t own = entry_after(all_.run_.ends(place + i, of_run_), place + i);
          number[i] = Arithmetic::made(number[i], all_.means_[own], all_.factors_[own]);
        }
      }
      Arithmetic::write(cell, number);
    }

   private:
    // That of the element at a place before which `runs` have ended.
    __device__ int64_t entry_after(int runs, int place) const {
      const int blocks = all_.block_.ends(place, of_block_), cycles = all_.cycle_.ends(runs, of_cycle_);
      return entry_ + runs + (blocks - cycles) * all_.by_period_.by();
    }

    const Standardize& all_;
    int64_t entry_;                     // of the first element
    int of_block_, of_run_, of_cycle_;  // elements, and runs, that are left of those that it is in
  };

  __device__ Here at(int64_t first) const { return Here(*this, first); }

 private:
  Standardize(const void* means, const void* factors, int64_t block, int64_t run, int64_t period)
      : means_(static_cast<const T*>(means)),
        factors_(static_cast<const T*>(factors)),
        by_block_(block),
        by_run_(run),
        by_period_(period),
        block_(block),
        run_(run),
        cycle_(period),
        consecutive_(run == 1 && period % kElements == 0 && reinterpret_cast<uintptr_t>(means) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(factors) % 16 == 0) {}

  const T* means_;
  const T* factors_;
  Divisor<int64_t> by_block_, by_run_, by_period_;
  Turn block_, run_, cycle_;
  bool consecutive_;  // whether a cell's elements have statistics that lie beside each other, to be read like it
};

// The same where channels are last and each has one statistic, which is most often so. A cell lies in one row, and its
// place there is a remainder.
template <class E, bool back>
class StandardizeColumns {
  using Arithmetic = StandardArithmetic<E, back>;

 public:
  using T = compute_t<E>;
  static constexpr int kElements = Cell<E>::kElements;

  static bool fits(const Standardization& by) {
    const StandardizedShape& shape = by.shape;
    return shape.channels > 0 && shape.count == shape.channels && shape.channels % kElements == 0 &&
           shape.channels <= (1 << 30) && is_aligned(by.means, 16) && is_aligned(by.factors, 16);
  }

  explicit StandardizeColumns(const Standardization& by)
      : means_(static_cast<const T*>(by.means)),
        factors_(static_cast<const T*>(by.factors)),
        by_row_(by.shape.channels),
        by_channels_(by.shape.channels) {}

  class Here {
   public:
    static constexpr bool kSmall = true;

    __device__ Here(const StandardizeColumns& all, int64_t first)
        : all_(all), column_(static_cast<uint32_t>(all.by_row_.remainder(first, all.by_row_.quotient(first)))) {}

    __device__ E element(E value, int place) const {
      const uint32_t column = column_of(place);
      return Arithmetic::rounded(Arithmetic::made(load(value), all_.means_[column], all_.factors_[column]));
    }

    __device__ void cell(Cell<E>& cell, int place) const {
      const uint32_t column = column_of(place);
      T number[kElements], mean[kElements], factor[kElements];
      Arithmetic::read(cell, number);
      Arithmetic::read_entries(all_.means_ + column, mean);
      Arithmetic::read_entries(all_.factors_ + column, factor);
#pragma unroll
      for (int i = 0; i < kElements; ++i) number[i] = Arithmetic::made(number[i], mean[i], factor[i]);
      Arithmetic::write(cell, number);
    }

   private:
    __device__ uint32_t column_of(int place) const {
      const uint32_t column = column_ + static_cast<uint32_t>(place);
      return all_.by_channels_.remainder(column, all_.by_channels_.quotient(column));
    }

    const StandardizeColumns& all_;
    uint32_t column_;  // of the first element
  };

  __device__ Here at(int64_t first) const { return Here(*this, first); }

 private:
  const T* means_;
  const T* factors_;
  Divisor<int64_t> by_row_;
  Divisor<uint32_t> by_channels_;
};

// Calls work(transform) with the one that fits. Of float64 and of large groups, which are seldom, that is the one for all
// orders.
template <class E, bool back, class Work>
cudaError_t with_standardize(const Standardization& by, bool small_groups, const Work& work) {
  if constexpr (sizeof(E) < sizeof(double)) {
    if (small_groups && StandardizeColumns<E, back>::fits(by)) return work(StandardizeColumns<E, back>(by));
  }
  return work(Standardize<E, back>(by.shape, by.means, by.factors));
}

}  // namespace actcore::cuda
