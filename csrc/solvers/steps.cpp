#include "solvers/steps.h"

#include <algorithm>
#include <utility>

#include "solvers/pieces.h"

namespace actcore {

namespace {

// Weight, mean and squared error of a piece that cells are added to, one by one (Welford, Technometrics 4, 1962): sums of
// terms that are not negative, where a difference of prefix sums would lose the digits that a small error is made of.
struct Piece {
  double weight = 0;
  double mean = 0;
  double error = 0;

  void add(double value, double more) {
    if (more == 0) return;
    const double before = weight;
    weight += more;
    const double share = more / weight;
    const double distance = value - mean;
    mean += share * distance;
    error += before * share * distance * distance;
  }
};

double level_of(const std::vector<double>& values, const std::vector<double>& weights, int32_t begin, int32_t end) {
  Piece weighted, plain;
  for (int32_t i = begin; i < end; ++i) {
    weighted.add(values[static_cast<size_t>(i)], weights[static_cast<size_t>(i)]);
    plain.add(values[static_cast<size_t>(i)], 1);
  }
  return weighted.weight > 0 ? weighted.mean : plain.mean;
}

// The values between two neighbouring candidates, measured from the lower one.
struct Bin {
  double weight = 0;
  double first = 0;   // sum of weight * distance
  double second = 0;  // sum of weight * distance^2
};

std::vector<Bin> bins_of(const std::vector<double>& values, const std::vector<double>& weights,
                         const std::vector<double>& candidates) {
  std::vector<Bin> bins(candidates.size() - 1);
  size_t bin = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    while (bin + 1 < bins.size() && values[i] >= candidates[bin + 1]) ++bin;
    const double distance = values[i] - candidates[bin];
    bins[bin].weight += weights[i];
    bins[bin].first += weights[i] * distance;
    bins[bin].second += weights[i] * distance * distance;
  }
  return bins;
}

}  // namespace

std::vector<StepFit> fit_steps(const std::vector<double>& values, const std::vector<double>& weights,
                               const std::vector<int32_t>& pieces) {
  const auto piece_costs = [&](int32_t end, double* costs) {
    Piece piece;
    for (int32_t begin = end; begin-- > 0;) {
      piece.add(values[static_cast<size_t>(begin)], weights[static_cast<size_t>(begin)]);
      costs[begin] = piece.error;
    }
  };
  const auto cells = static_cast<int32_t>(values.size());
  const std::vector<Pieces> best = cut_into_pieces(cells, *std::max_element(pieces.begin(), pieces.end()), piece_costs);
  std::vector<StepFit> result;
  for (const int32_t count : pieces) {
    const Pieces& cut = best[static_cast<size_t>(std::min(count, cells)) - 1];
    StepFit fit{cut.cuts, {}, cut.cost};
    int32_t begin = 0;
    for (size_t piece = 0; piece <= cut.cuts.size(); ++piece) {
      const int32_t end = piece < cut.cuts.size() ? cut.cuts[piece] : cells;
      fit.levels.push_back(level_of(values, weights, begin, end));
      begin = end;
    }
    result.push_back(std::move(fit));
  }
  return result;
}

std::vector<LevelFit> fit_levels(const std::vector<double>& values, const std::vector<double>& weights,
                                 const std::vector<double>& candidates, const std::vector<int32_t>& counts) {
  const std::vector<Bin> bins = bins_of(values, weights, candidates);
  // With the lower level a bin further down, each value's distance from it grows by the bin's width.
  const auto piece_costs = [&](int32_t end, double* costs) {
    double variance = 0;
    double below = 0;  // sum of weight * (upper level - value)
    for (int32_t begin = end; begin-- > 0;) {
      const auto at = static_cast<size_t>(begin);
      const double range = candidates[static_cast<size_t>(end)] - candidates[at];
      variance +=
          (candidates[at + 1] - candidates[at]) * below + std::max(range * bins[at].first - bins[at].second, 0.0);
      below += std::max(range * bins[at].weight - bins[at].first, 0.0);
      costs[begin] = variance;
    }
  };
  const auto cells = static_cast<int32_t>(bins.size());
  const int32_t most = *std::max_element(counts.begin(), counts.end()) - 1;
  const std::vector<Pieces> best = cut_into_pieces(cells, most, piece_costs);
  std::vector<LevelFit> result;
  for (const int32_t count : counts) {
    const Pieces& cut = best[static_cast<size_t>(std::min(count - 1, cells)) - 1];
    LevelFit fit{{0}, cut.cost};
    fit.chosen.insert(fit.chosen.end(), cut.cuts.begin(), cut.cuts.end());
    fit.chosen.push_back(cells);
    result.push_back(std::move(fit));
  }
  return result;
}

}  // namespace actcore
