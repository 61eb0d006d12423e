// Means and deviations of a tensor's elements, as a batch or group norm takes them of its input: one visit of memory,
// for the elements are taken by the piece, twice each while they are in cache.
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
    squares += their_squares + apart * apart * (count * part);
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
constexpr int64_t kPiece = 1024;   // elements end to end, of which each sum has 64
constexpr int64_t kRows = 64;      // of columns
constexpr int64_t kColumns = 128;  // whose moments are on the stack

template <class T>
ACTCORE_FN double total(const Vec<T> (&sums)[kVectors]) {
  T each[kSums];
  for (int v = 0; v < kVectors; ++v) store(each + v * kLanes, sums[v]);
  double sum = 0;
  for (const T one : each) sum += one;
  return sum;
}

// Elements end to end join.
template <class E, class T = compute_t<E>>
ACTCORE_FN void join_run(Moments& moments, const E* x, int64_t count) {
  for (int64_t n; count > 0; x += n, count -= n) {
    n = count < kPiece ? count : kPiece;
    const int64_t whole = n / kSums * kSums;
    Vec<T> sums[kVectors] = {}, squares[kVectors] = {};
    for (int64_t i = 0; i < whole; i += kSums)
      for (int v = 0; v < kVectors; ++v) sums[v] += load(x + i + v * kLanes);
    double sum = total<T>(sums), sum_of_squares = 0;
    for (int64_t i = whole; i < n; ++i) sum += actcore::load(x[i]);
    const T middle = static_cast<T>(sum / static_cast<double>(n));
    for (Vec<T>& each : sums) each = Vec<T>{};
    for (int64_t i = 0; i < whole; i += kSums)
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> off = load(x + i + v * kLanes) - broadcast(middle);
        sums[v] += off, squares[v] += off * off;
      }
    sum = total<T>(sums), sum_of_squares = total<T>(squares);
    for (int64_t i = whole; i < n; ++i) {
      const T off = actcore::load(x[i]) - middle;
      sum += off, sum_of_squares += off * off;
    }
    const auto other = static_cast<double>(n);
    moments.join_about(middle, other, sum, sum_of_squares, other / (moments.count + other));
  }
}

// The elements of some columns join, each those of its column, from `rows` rows that are `apart` elements apart.
template <class E, class T = compute_t<E>>
ACTCORE_FN void join_columns(Moments* moments, const E* x, int64_t rows, int64_t apart, int64_t columns) {
  for (int64_t first = 0; first < rows; first += kRows, x += kRows * apart) {
    const int64_t n = rows - first < kRows ? rows - first : kRows;
    const auto other = static_cast<double>(n);
    const double part = other / (moments->count + other);  // of all columns alike
    const T share = T(1) / static_cast<T>(n);
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      Vec<T> sum = {}, squares = {};
      for (int64_t r = 0; r < n; ++r) sum += load(x + r * apart + c);
      const Vec<T> middle = sum * broadcast(share);
      sum = Vec<T>{};
      for (int64_t r = 0; r < n; ++r) {
        const Vec<T> off = load(x + r * apart + c) - middle;
        sum += off, squares += off * off;
      }
      for (int i = 0; i < kLanes; ++i) moments[c + i].join_about(middle[i], other, sum[i], squares[i], part);
    }
    for (; c < columns; ++c) {
      T sum = 0, squares = 0;
      for (int64_t r = 0; r < n; ++r) sum += actcore::load(x[r * apart + c]);
      const T middle = sum * share;
      sum = 0;
      for (int64_t r = 0; r < n; ++r) {
        const T off = actcore::load(x[r * apart + c]) - middle;
        sum += off, squares += off * off;
      }
      moments[c].join_about(middle, other, sum, squares, part);
    }
  }
}

template <class T>
ACTCORE_FN void put(const Moments& moments, T* mean, T* deviation) {
  const double variance = moments.squares / moments.count;
  const double both[] = {moments.mean, std::sqrt(variance < 0 ? 0 : variance)};
  // Of which NaN one is, instruction sets have their own mind.
  *mean = static_cast<T>(both[0] == both[0] ? both[0] : NAN);
  *deviation = static_cast<T>(both[1] == both[1] ? both[1] : NAN);
}

// Of the statistics from `begin` to `end`.
template <class E, class T = compute_t<E>>
void take_moments(const StandardizedShape& shape, const E* x, T* means, T* deviations, int64_t begin, int64_t end) {
  if (!shape.channels) {
    const int64_t stride = shape.count * shape.inner;
    for (int64_t s = begin; s < end; ++s) {
      Moments moments;
      for (int64_t at = s * shape.inner; at < shape.numel; at += stride) join_run(moments, x + at, shape.inner);
      put(moments, means + s, deviations + s);
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
