// Means and deviations of a tensor's elements, as a batch or group norm takes them of its input, in one visit of memory:
// what is added up are distances from the mean of the elements before, so that nothing is lost where they are small
// beside it.
//
// What is added up does not depend on the width of vectors, so that all instruction sets give the same.
#pragma once

#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// How many elements, their mean, and the sum of their squared distances from it.
struct Moments {
  double count = 0, mean = 0, squares = 0;

  // Those of other elements join them, which are a `part` of all then. (Chan, Golub and LeVeque, 1979.)
  void join(double other, double their_mean, double their_squares, double part) {
    const double apart = their_mean - mean;
    squares +=
        their_squares + count * part * apart * apart;  // in this order: 0 of the first, however far from 0 they are
    mean += apart * part;
    count += other;
  }

  // Elements join them, of whose distances from `middle`, which is about their mean, the sums are given.
  void join_about(double middle, double other, double sum, double sum_of_squares, double part) {
    const double off = sum / other;
    join(other, middle + off, sum_of_squares - sum * off, part);
  }
};

constexpr int kSums = 16;  // that run beside each other, in as many vectors as that takes
constexpr int kVectors = kSums / kLanes;
constexpr int64_t kPiece = 1024;     // elements that are added before a sum goes on in double: 64 of each sum
constexpr int64_t kRows = 64;        // of columns, likewise
constexpr int kBeside = 4 * kLanes;  // columns whose sums are in registers
constexpr int64_t kColumns = 128;    // whose moments are on the stack

template <class T>
ACTCORE_FN double total(const Vec<T> (&sums)[kVectors]) {
  T each[kSums];
  for (int v = 0; v < kVectors; ++v) store(each + v * kLanes, sums[v]);
  double sum = 0;
  for (const T one : each) sum += one;
  return sum;
}

// The moments of a statistic whose elements come in runs. Distances are from a middle: the mean of what came before, or
// of the first elements.
template <class E, class T = compute_t<E>>
class Runs {
 public:
  void add(const E* x, int64_t count) {
    if (moments_.count == 0 && pending_ == 0) middle_ = mean_of(x, count < kPiece ? count : kPiece);
    for (int64_t n; count > 0; x += n, count -= n) {
      n = count < kPiece - pending_ ? count : kPiece - pending_;
      const int64_t whole = n / kSums * kSums;
      const Vec<T> middle = broadcast(middle_);
      for (int64_t i = 0; i < whole; i += kSums)
        for (int v = 0; v < kVectors; ++v) {
          const Vec<T> off = load(x + i + v * kLanes) - middle;
          sums_[v] += off, squares_[v] += off * off;
        }
      for (int64_t i = whole; i < n; ++i) {
        const T off = actcore::load(x[i]) - middle_;
        sum_ += off, sum_of_squares_ += off * off;
      }
      pending_ += n;
      if (pending_ == kPiece) fold();
    }
  }

  const Moments& moments() {
    if (pending_) fold();
    return moments_;
  }

 private:
  // By distances from the first element, whose sum is no overflow where the elements are large and alike.
  static T mean_of(const E* x, int64_t count) {
    const int64_t whole = count / kSums * kSums;
    const T first = actcore::load(x[0]);
    Vec<T> sums[kVectors] = {};
    for (int64_t i = 0; i < whole; i += kSums)
      for (int v = 0; v < kVectors; ++v) sums[v] += load(x + i + v * kLanes) - broadcast(first);
    double sum = total<T>(sums);
    for (int64_t i = whole; i < count; ++i) sum += actcore::load(x[i]) - first;
    return first + static_cast<T>(sum / static_cast<double>(count));
  }

  void fold() {
    const auto other = static_cast<double>(pending_);
    const double sum = sum_ + total<T>(sums_), squares = sum_of_squares_ + total<T>(squares_);
    moments_.join_about(middle_, other, sum, squares, other / (moments_.count + other));
    middle_ = static_cast<T>(moments_.mean);
    for (int v = 0; v < kVectors; ++v) sums_[v] = Vec<T>{}, squares_[v] = Vec<T>{};
    sum_ = sum_of_squares_ = 0, pending_ = 0;
  }

  Moments moments_;
  Vec<T> sums_[kVectors] = {}, squares_[kVectors] = {};
  T middle_ = 0;
  double sum_ = 0, sum_of_squares_ = 0;  // of those that fill no vector
  int64_t pending_ = 0;                  // elements that are in the sums
};

// The elements of `vectors` times kLanes columns join, each those of its column, from `rows` rows, at most kRows, that
// are `apart` elements apart.
template <int vectors, class E, class T = compute_t<E>>
ACTCORE_FN void join_block(Moments* moments, const E* x, int64_t rows, int64_t apart) {
  Vec<T> sums[vectors] = {}, squares[vectors] = {}, middle[vectors];
  if (moments->count == 0) {
    for (int64_t r = 0; r < rows; ++r)  // as in Runs::mean_of
      for (int v = 0; v < vectors; ++v) sums[v] += load(x + r * apart + v * kLanes) - load(x + v * kLanes);
    for (int v = 0; v < vectors; ++v)
      middle[v] = load(x + v * kLanes) + sums[v] / broadcast(static_cast<T>(rows)), sums[v] = Vec<T>{};
  } else {
    for (int v = 0; v < vectors; ++v)
      for (int i = 0; i < kLanes; ++i) middle[v][i] = static_cast<T>(moments[v * kLanes + i].mean);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v) {
      const Vec<T> off = load(x + r * apart + v * kLanes) - middle[v];
      sums[v] += off, squares[v] += off * off;
    }
  const auto other = static_cast<double>(rows);
  const double part = other / (moments->count + other);  // of all columns alike
  for (int v = 0; v < vectors; ++v)
    for (int i = 0; i < kLanes; ++i)
      moments[v * kLanes + i].join_about(middle[v][i], other, sums[v][i], squares[v][i], part);
}

// The same of one column.
template <class E, class T = compute_t<E>>
ACTCORE_FN void join_column(Moments* moments, const E* x, int64_t rows, int64_t apart) {
  T sum = 0, squares = 0, middle = static_cast<T>(moments->mean);
  if (moments->count == 0) {
    for (int64_t r = 0; r < rows; ++r) sum += actcore::load(x[r * apart]) - actcore::load(x[0]);
    middle = actcore::load(x[0]) + sum / static_cast<T>(rows), sum = 0;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const T off = actcore::load(x[r * apart]) - middle;
    sum += off, squares += off * off;
  }
  const auto other = static_cast<double>(rows);
  moments->join_about(middle, other, sum, squares, other / (moments->count + other));
}

// The same of some columns and any number of rows.
template <class E>
ACTCORE_FN void join_columns(Moments* moments, const E* x, int64_t rows, int64_t apart, int64_t columns) {
  for (int64_t first = 0; first < rows; first += kRows, x += kRows * apart) {
    const int64_t n = rows - first < kRows ? rows - first : kRows;
    int64_t c = 0;
    for (; c + kBeside <= columns; c += kBeside) join_block<4>(moments + c, x + c, n, apart);
    for (; c + kLanes <= columns; c += kLanes) join_block<1>(moments + c, x + c, n, apart);
    for (; c < columns; ++c) join_column(moments + c, x + c, n, apart);
  }
}

template <class T>
ACTCORE_FN void put(const Moments& moments, T* mean, T* deviation) {
  const double variance = moments.squares / moments.count;
  const double both[] = {moments.mean, std::sqrt(variance < 0 ? 0 : variance)};
  // The sign and the payload of a NaN differ between instruction sets.
  *mean = static_cast<T>(both[0] == both[0] ? both[0] : NAN);
  *deviation = static_cast<T>(both[1] == both[1] ? both[1] : NAN);
}

// Of the statistics from `begin` to `end`.
template <class E, class T = compute_t<E>>
void take_moments(const StandardizedShape& shape, const E* x, T* means, T* deviations, int64_t begin, int64_t end) {
  if (!shape.channels) {
    const int64_t stride = shape.count * shape.inner;
    for (int64_t s = begin; s < end; ++s) {
      Runs<E> runs;
      for (int64_t at = s * shape.inner; at < shape.numel; at += stride) runs.add(x + at, shape.inner);
      put(runs.moments(), means + s, deviations + s);
    }
    return;
  }
  Moments whole;  // of the statistic that goes on
  for (int64_t column = begin * shape.each; column < end * shape.each;) {
    const int64_t block = column / shape.channels, place = column % shape.channels;
    int64_t columns = end * shape.each - column;
    columns = columns < shape.channels - place ? columns : shape.channels - place;
    columns = columns < kColumns ? columns : kColumns;
    Moments moments[kColumns];
    join_columns(moments, x + block * shape.inner * shape.channels + place, shape.inner, shape.channels, columns);
    for (int64_t c = 0; c < columns; ++c, ++column) {
      const Moments& one = moments[c];
      whole.join(one.count, one.mean, one.squares, one.count / (whole.count + one.count));
      if ((column + 1) % shape.each) continue;
      put(whole, means + column / shape.each, deviations + column / shape.each);
      whole = {};
    }
  }
}

}  // namespace actcore::ACTCORE_ISA
