// The group-affine codec of elements less their channel's mean, times its factor. They are made some groups at a time,
// in cache, so that no tensor of them is.
#pragma once

#include "codec/activation.h"
#include "codec/functions.h"
#include "cpu/group_affine.h"

namespace actcore::ACTCORE_ISA {

// Goes through stretches of elements whose entries follow each other in the tables, or that have one.
template <class T>
class Stretches {
 public:
  Stretches(const ChannelTables& tables, int64_t element) : tables_(tables), last_(tables.channels > 0) {
    if (last_) {
      const int64_t row = element / tables.channels, place = element % tables.channels;
      row_ = row / tables.inner * tables.channels, turn_ = row % tables.inner;
      entry_ = row_ + place, count_ = tables.channels - place;
    } else {
      entry_ = element / tables.inner % tables.entries, count_ = tables.inner - element % tables.inner;
    }
  }

  bool alike() const { return !last_; }
  int64_t count() const { return count_; }
  const T* mean() const { return static_cast<const T*>(tables_.mean) + entry_; }
  const T* factor() const { return static_cast<const T*>(tables_.factor) + entry_; }

  void next() {
    if (!last_) {
      entry_ = entry_ + 1 == tables_.entries ? 0 : entry_ + 1, count_ = tables_.inner;
      return;
    }
    if (++turn_ == tables_.inner) turn_ = 0, row_ += tables_.channels;
    entry_ = row_, count_ = tables_.channels;
  }

 private:
  const ChannelTables& tables_;
  bool last_;
  int64_t row_ = 0, turn_ = 0, entry_, count_;
};

// Of `count` elements from `first` on: less the mean, times the factor; or back, with another factor.
template <class E, bool back, class T = compute_t<E>>
ACTCORE_FN void standardize(const ChannelTables& tables, const E* x, int64_t first, int64_t count, E* out) {
  const auto made = [](auto value, auto mean, auto factor) {
    return back ? value * factor + mean : (value - mean) * factor;
  };
  for (Stretches<T> here(tables, first); count > 0; here.next()) {
    const int64_t length = here.count() < count ? here.count() : count, whole = length / kLanes * kLanes;
    const T *means = here.mean(), *factors = here.factor();
    if (here.alike()) {
      const Vec<T> mean = broadcast(*means), factor = broadcast(*factors);
      for (int64_t i = 0; i < whole; i += kLanes) store(out + i, made(load(x + i), mean, factor));
    } else {
      for (int64_t i = 0; i < whole; i += kLanes) store(out + i, made(load(x + i), load(means + i), load(factors + i)));
    }
    for (int64_t i = whole; i < length; ++i) {
      const int64_t at = here.alike() ? 0 : i;
      actcore::store(out + i, made(actcore::load(x[i]), means[at], factors[at]));
    }
    x += length, out += length, count -= length;
  }
}

template <class E, int bits>
void compress_standardized(const GroupAffineCompress& args, const ChannelTables& tables, int64_t begin, int64_t end) {
  alignas(64) E elements[kMostStandardized];
  const int64_t step = kMostStandardized / args.group_size;
  for (int64_t g = begin; g < end; g += step) {
    const int64_t groups = end - g < step ? end - g : step, first = g * args.group_size;
    const int64_t rest = args.numel - first, count = rest < groups * args.group_size ? rest : groups * args.group_size;
    standardize<E, false>(tables, static_cast<const E*>(args.input) + first, first, count, elements);
    GroupAffineCompress part = args;
    part.input = elements, part.numel = count, part.position += first;
    part.codes += packed_bytes(first, bits), part.bounds = static_cast<E*>(args.bounds) + 2 * g;
    compress_groups<E, bits>(part, 0, groups);
  }
}

template <class E, int bits>
void decompress_standardized(const GroupAffineDecompress& args, const ChannelTables& tables, int64_t begin,
                             int64_t end) {
  const int64_t step = kMostStandardized / args.group_size;
  for (int64_t g = begin; g < end; g += step) {
    const int64_t groups = end - g < step ? end - g : step, first = g * args.group_size;
    const int64_t rest = args.numel - first, count = rest < groups * args.group_size ? rest : groups * args.group_size;
    decompress_groups<E, bits>(args, g, g + groups);
    E* out = static_cast<E*>(args.output) + first;
    standardize<E, true>(tables, out, first, count, out);
  }
}

template <class E, class T = compute_t<E>>
ACTCORE_FN void add_and_rectify(E* values, const E* added, bool rectify, int64_t count) {
  if (added != nullptr) {
    for (int64_t i = 0; i < count; ++i) values[i] = sum_of(values[i], added[i]);
  }
  if (!rectify) return;
  const int64_t whole = count / kLanes * kLanes;
  const Vec<T> zero = broadcast(T(0));
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec<T> x = load(values + i);
    store(values + i, x < zero ? zero : x);
  }
  for (int64_t i = whole; i < count; ++i) {
    actcore::store(values + i, actcore::simple_value<Function::kRelu, E>(actcore::load(values[i]), T(0), T(0)));
  }
}

}  // namespace actcore::ACTCORE_ISA
